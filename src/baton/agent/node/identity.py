"""Whose process it is: from the kernel's word and kubelet's records, never from counts, times or what it says itself.

A process is placed in its pod's cgroup by the runtime before it runs its first instruction and cannot leave it. The
path holds the pod's UID and the container's id, in one of a few spellings (cgroup v1 or v2, systemd or cgroupfs
driver, containerd or CRI-O). The UID leads to kubelet's checkpoint, and that to the slots.
"""

import re
from pathlib import Path

import msgspec

from baton.model.ids import PodUid

_POD = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?/"
    r"(?:[a-z-]+[-:])?(?P<container>[0-9a-f]{64})"
)


class PodProcess(msgspec.Struct, frozen=True):
    """Where a process lives."""

    uid: PodUid
    container_id: str


def pod_in_cgroup(text: str) -> PodProcess | None:
    """The pod in the content of `/proc/PID/cgroup`; None for a process of no pod."""
    found = _POD.search(text)
    if found is None:
        return None
    return PodProcess(PodUid(found["uid"].replace("_", "-")), found["container"])


def pod_of_process(pid: int, proc: Path = Path("/proc")) -> PodProcess | None:
    """The pod of a process of this host; the pid is the one that this process namespace sees."""
    try:
        return pod_in_cgroup((proc / str(pid) / "cgroup").read_text())
    except OSError:
        return None
