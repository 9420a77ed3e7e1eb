"""Shared by the lock benchmarks: a private daemon and a minimal client."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.lock import wire
from baton.lock.wire import Frame, Kind

GPU = bytes(range(16))
ASK = Frame(Kind.REQ_LOCK).pack()
RELEASE = Frame(Kind.LOCK_RELEASED).pack()


class Client:
    """A connection that only sends and receives frames."""

    def __init__(self, sockets: Path, gpu: bytes | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(sockets / "scheduler.sock"))
        self.socket.sendall(wire.registration(gpu))
        self.read()
        if gpu is not None:
            self.read()

    def read(self) -> int:
        """The kind of the next frame."""
        raw = self.socket.recv(wire.FRAME_BYTES, socket.MSG_WAITALL)
        if len(raw) < wire.FRAME_BYTES:
            raise EOFError("the daemon closed the connection")
        return raw[0]

    def identify(self, **values: object) -> None:
        """Send IDENTITY and read the limits that the daemon returns."""
        self.socket.sendall(wire.extension(Kind.IDENTITY, values))
        self.read()


@contextmanager
def daemon(*arguments: str) -> Iterator[tuple[int, Path]]:
    """A daemon in its own process: its pid and its socket directory."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as directory:
        sockets = Path(directory) / "b" / "lock"
        process = subprocess.Popen(
            [sys.executable, "-m", "baton.cli.main", "lockd", "--socket-dir", str(sockets), *arguments],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr
        for line in process.stderr:
            if "ready" in line:
                break
        try:
            yield process.pid, sockets
        finally:
            process.terminate()
            process.communicate()


def cpu_s(pid: int) -> float:
    """CPU time that a process has used so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
