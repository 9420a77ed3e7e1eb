"""Who is at the other end of a socket, by what the kernel says rather than by what the peer does."""

import os
import re
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")
_POD = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$"
)


class Peer(NamedTuple):
    """Credentials at the time of connecting. `pod` is the cgroup's pod id, empty outside Kubernetes; pid 0 means
    that the peer lives in a process namespace that cannot be seen from here."""

    pid: int
    uid: int
    gid: int
    pod: str = ""


UNKNOWN_POD = "unknown"
"""In a pod, but the path does not say in which; or perhaps in one, and nobody can look any more."""


def peer_of(connection: socket.socket) -> Peer:
    """The credentials of a connected peer."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Peer(pid, uid, gid, pod_of(pid) if pid else "")


def pod_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The pod id in the process's cgroup path, as kubelet names it with either cgroup driver; empty when none.

    Seen from a container, with a cgroup namespace of its own, the path of another pod begins with `..` where they part,
    and need not say `kubepods` any more.
    """
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        # It ended, or we have no descriptor left to look. A pod's root would only have to exit in time to be taken for
        # the host's; outside Kubernetes a control tool writes its command and is gone.
        return UNKNOWN_POD if "KUBERNETES_SERVICE_HOST" in os.environ else ""
    for part in text.replace("\n", "/").split("/"):
        if found := _POD.search(part):
            return found[1].replace("_", "-")
    return UNKNOWN_POD if "kubepods" in text else ""


class Rights(NamedTuple):
    """Who may control the daemon: root, the daemon's own user and one group, but nobody from inside another pod."""

    gid: int | None = None
    own_pod: str = ""

    def may_control(self, peer: Peer) -> bool:
        """Whether this peer's commands and wishes count."""
        if peer.pod == UNKNOWN_POD or peer.pod not in ("", self.own_pod):
            return False
        if peer.uid in (0, os.getuid()):
            # Root of a process namespace that cannot be seen may be root of a container.
            return peer.pid != 0
        return self.gid is not None and peer.pid != 0 and (peer.gid == self.gid or self.gid in _groups(peer.pid))


def _groups(pid: int) -> list[int]:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Groups:"):
                return [int(word) for word in line.split()[1:]]
    except OSError:
        pass
    return []


def start_ticks(pid: int) -> int:
    """When the process started, in kernel ticks: with the pid it names a process for ever; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
