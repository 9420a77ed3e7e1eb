"""Which pod a process belongs to, according to the kernel and kubelet's records, never to the process itself.

The runtime puts a process into its pod's cgroup before the first instruction, and the process cannot leave it. The path
contains the pod's UID and the container's id, in one of a few spellings (cgroup v1 or v2, systemd or cgroupfs driver,
containerd or CRI-O). The UID leads to kubelet's checkpoint, and the checkpoint to the slots.
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
    """The pod and the container of a process."""

    uid: PodUid
    container_id: str


def pod_in_cgroup(text: str) -> PodProcess | None:
    """The pod in the content of `/proc/PID/cgroup`; None for a process outside of pods."""
    found = _POD.search(text)
    if found is None:
        return None
    return PodProcess(PodUid(found["uid"].replace("_", "-")), found["container"])


def pod_of_process(pid: int, proc: Path = Path("/proc")) -> PodProcess | None:
    """The pod of a process on this host; the pid is that of this process namespace."""
    try:
        return pod_in_cgroup((proc / str(pid) / "cgroup").read_text())
    except OSError:
        return None
