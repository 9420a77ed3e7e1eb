"""Cgroups of a bed's nodes, in every hierarchy of cgroup v1 and in the unified hierarchy of v2.

Kubelet places its pods under a `cgroupRoot` that must exist; with several kubelets on one machine, each needs its own.
On v1 that is a directory per hierarchy, and a new cpuset has no processors or memory nodes until they are assigned. On
a hybrid machine runc creates directories in the unified hierarchy as well, so removal checks all hierarchies.
"""

import contextlib
import os
from pathlib import Path

from testbed.errors import BedError
from testbed.processes import wait_until

_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "io")


def hierarchies() -> dict[Path, str]:
    """The mount points of all cgroup hierarchies, each with its type: cgroup or cgroup2."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        kind = words[words.index("-") + 1]
        if kind in {"cgroup", "cgroup2"}:
            found[Path(words[4])] = kind
    return found


def uses_v1() -> bool:
    """Whether the controllers are in v1 hierarchies (pure v1 or hybrid)."""
    return "cgroup" in hierarchies().values()


def create(name: str) -> None:
    """Create the cgroup under the root of every hierarchy that has controllers."""
    v1 = uses_v1()
    for mount, kind in hierarchies().items():
        if v1 != (kind == "cgroup"):
            continue
        try:
            if v1:
                _create_v1(mount, name)
            else:
                _create_v2(mount, name)
        except OSError as error:
            raise BedError(
                f"cannot create a cgroup under {mount} ({error}); real kubelets need root and writable cgroups"
            ) from error


def _create_v1(mount: Path, name: str) -> None:
    group = mount / name
    group.mkdir(exist_ok=True)
    for setting in ("cpuset.cpus", "cpuset.mems"):
        if (mount / setting).exists():
            (group / setting).write_text((mount / setting).read_text())


def _create_v2(mount: Path, name: str) -> None:
    available = (mount / "cgroup.controllers").read_text().split()
    for controller in _V2_CONTROLLERS:
        if controller in available:
            (mount / "cgroup.subtree_control").write_text(f"+{controller}")
    (mount / name).mkdir(exist_ok=True)


def existing(prefix: str) -> list[Path]:
    """The top-level cgroups of any hierarchy whose names begin with `prefix`."""
    return [path for mount in hierarchies() for path in mount.glob(f"{prefix}*") if path.is_dir()]


def remove(prefix: str, timeout_s: float = 10.0) -> None:
    """Remove the cgroups with that prefix and everything below. The kernel needs a moment after the last process."""

    def gone() -> bool:
        for top in existing(prefix):
            for directory, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        return not existing(prefix)

    wait_until(gone, timeout_s, poll_s=0.05)
