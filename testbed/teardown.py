"""Tears a bed down from its record alone, so any process can do it.

Used by the bed itself, by the reaper after the owner's death, by `down` and by `gc`; running it twice is harmless.
Killing the init process of a node also ends the node's process, mount and network namespaces, so containers need no
cleanup of their own.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from testbed import cgroups, network
from testbed.errors import BedError
from testbed.processes import ProcessKey, is_alive, marked_processes, wait_until
from testbed.state import BedRecord, beds

_KILL_TIMEOUT_S = 20.0
_SETTLE_S = 5.0


def tear_down(record: BedRecord) -> None:
    """End the bed's processes, then remove its links, cgroups, mounts and files."""
    kill_processes(record.id)
    network.remove(record)
    cgroups.remove(record.cgroup_prefix)
    _unmount_below(record.directory)
    shutil.rmtree(record.directory, ignore_errors=True)
    # Another process may be tearing it down as well (a reaper and `gc`): wait for leftovers that it is removing.
    if not wait_until(lambda: not leftovers(record), _SETTLE_S, poll_s=0.1):
        left = leftovers(record)
        raise BedError(f"bed {record.name} left behind: {'; '.join(left)}; run `python -m testbed gc` to try again")


def kill_processes(bed_id: str) -> None:
    """Kill until no process carries the mark: a process may have been forked but not marked at the first pass."""
    killed: set[ProcessKey] = set()
    clean_looks = 0

    def none_left() -> bool:
        nonlocal clean_looks
        found = set(marked_processes(bed_id))
        for key in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(key.pid, signal.SIGKILL)
        killed.update(found)
        clean_looks = 0 if found or any(map(is_alive, killed)) else clean_looks + 1
        return clean_looks == 2

    wait_until(none_left, _KILL_TIMEOUT_S)


def _mounts_below(directory: Path) -> list[str]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [mount for mount in reversed(mounts) if mount.startswith(f"{directory}/")]


def _unmount_below(directory: Path) -> None:
    """Nothing of a bed is mounted outside its nodes; this only protects the removal of its files."""
    for mount in _mounts_below(directory):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)


def leftovers(record: BedRecord) -> list[str]:
    """What remains of the bed on the machine, in words."""
    found = [f"process {key.pid}" for key in marked_processes(record.id)]
    found += [f"link {name}" for name in network.links() if name.startswith(record.link_prefix)]
    found += [f"cgroup {path}" for path in cgroups.existing(record.cgroup_prefix)]
    found += [f"mount {mount}" for mount in _mounts_below(record.directory)]
    if record.directory.exists():
        found.append(f"directory {record.directory}")
    return found


def collect_garbage() -> list[str]:
    """Tear down the beds whose owner is gone; returns their names."""
    names = []
    for record in beds():
        if record.is_garbage:
            tear_down(record)
            names.append(record.name)
    return names
