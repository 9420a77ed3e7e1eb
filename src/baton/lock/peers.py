"""Who is at the other end of a socket, according to the kernel rather than to the peer."""

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
    """Credentials at the time of connecting. `pod` is the pod id in the cgroup path, empty outside Kubernetes. Pid 0
    means that the peer is in a process namespace that is not visible from here."""

    pid: int
    uid: int
    gid: int
    pod: str = ""


UNKNOWN_POD = "unknown"
"""The peer is in a pod, but the path does not say in which; or it may be in one, but its path cannot be read any
more."""


def peer_of(connection: socket.socket) -> Peer:
    """The credentials of a connected peer."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Peer(pid, uid, gid, pod_of(pid) if pid else "")


def pod_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The pod id in the process's cgroup path, as the kubelet names it with either cgroup driver; empty if there is
    none.

    Seen from a container with a private cgroup namespace, the path of another pod is relative (it begins with `..`) and
    may lack the word `kubepods`.
    """
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        # The process has ended, or no descriptor is left to read the file. In Kubernetes, treating it as outside every
        # pod would let the root user of a pod pass for the host's by exiting in time. Elsewhere that is safe, and
        # needed for control tools that write their command and exit.
        return UNKNOWN_POD if "KUBERNETES_SERVICE_HOST" in os.environ else ""
    for part in text.replace("\n", "/").split("/"):
        if found := _POD.search(part):
            return found[1].replace("_", "-")
    return UNKNOWN_POD if "kubepods" in text else ""


class Rights(NamedTuple):
    """Who may control the daemon: root, the daemon's user and one group, but no process of another pod."""

    gid: int | None = None
    own_pod: str = ""

    def may_control(self, peer: Peer) -> bool:
        """Whether the daemon follows this peer's commands and requested terms."""
        if peer.pod == UNKNOWN_POD or peer.pod not in ("", self.own_pod):
            return False
        if peer.uid in (0, os.getuid()):
            # Root of an invisible process namespace may be root of a container.
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
    """When the process started, in kernel ticks; together with the pid it identifies a process. 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
