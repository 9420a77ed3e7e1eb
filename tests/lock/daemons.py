"""Daemons as separate processes, forked from a nursery process that has imported everything.

`Nursery.start` returns when the daemon listens. The daemon may then be killed with any signal and started again.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from baton.lock.config import Config
from baton.lock.control import ControlClient
from baton.lock.paths import Paths
from tests.lock.peer import PATIENCE_S

_PROGRAM = """
import asyncio, os, sys
import msgspec
from pathlib import Path
from baton.lock.config import Config
from baton.lock.daemon.daemon import LockDaemon
from baton.model.ids import CardId
from baton.lock.paths import Paths
from baton.lock.telemetry import CardInfo, NoTelemetry
from baton.observe import logs
import baton.lock.daemon.metrics

async def serve(paths, config, cards):
    daemon = LockDaemon(paths, config, NoTelemetry(cards))
    announce = daemon.start
    async def start():
        await announce()
        os.write(1, b"%d\\n" % os.getpid())
    daemon.start = start
    await daemon.run()

logs.set_up(open(sys.argv[2], "a", buffering=1))
paths = Paths(Path(sys.argv[1]))
def shift_monotonic_clock(by_s):
    import ctypes
    if ctypes.CDLL(None).unshare(0x80) != 0:  # CLONE_NEWTIME: for future children
        return False
    with open("/proc/self/timens_offsets", "w") as file:
        file.write(f"monotonic {by_s} 0\\n")
    return True

for line in sys.stdin:
    if line.startswith("shift "):
        os.write(1, b"shifted\\n" if shift_monotonic_clock(int(line.split()[1])) else b"cannot\\n")
        continue
    limit, config, cards = msgspec.json.decode(line, type=tuple[int, Config, list[tuple[str, int]]])
    pid = os.fork()
    if pid == 0:
        if limit:
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            asyncio.run(serve(paths, config, [CardInfo(CardId(name), size) for name, size in cards]))
        except BaseException as error:
            os.write(1, f"failed: {error}\\n".encode())
            os._exit(1)
        os._exit(0)
    os.waitpid(pid, 0)
    os.write(1, b"ended\\n")
"""


class Nursery:
    """One socket directory and the daemons that serve it, one after another."""

    def __init__(self, directory: Path) -> None:
        self.paths = Paths(directory / "b" / "lock")
        self.sockets = self.paths.sockets
        self.log = directory / "lockd.log"
        self.control = ControlClient(self.paths.control, PATIENCE_S)
        self.pid = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self.sockets), str(self.log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.pid:
            self.end()
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        if error is not None and self.log.exists():
            sys.stderr.write("".join(self.log.read_text().splitlines(keepends=True)[-60:]))

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def start(
        self, config: Config = Config(), cards: list[tuple[str, int]] | None = None, descriptors: int = 0
    ) -> None:
        """Start a daemon and wait until it listens."""
        assert self._process.stdin
        request = msgspec.json.encode((descriptors, config, cards or [])).decode()
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        line = self._line()
        assert line.isdigit(), line
        self.pid = int(line)

    def shift_monotonic_clock(self, by_s: int) -> bool:
        """Give future daemons a different monotonic clock; False where that is not possible."""
        assert self._process.stdin
        self._process.stdin.write(f"shift {by_s}\n")
        self._process.stdin.flush()
        return self._line() == "shifted"

    def tell(self, number: int) -> None:
        """Send the daemon a signal."""
        os.kill(self.pid, number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """End the daemon, and wait until it has ended."""
        self.tell(number)
        assert self._line() == "ended"
        self.pid = 0


@contextmanager
def running(
    directory: Path, config: Config = Config(), cards: list[tuple[str, int]] | None = None
) -> Iterator[Nursery]:
    """A daemon for the duration of a test."""
    with Nursery(directory) as nursery:
        nursery.start(config, cards)
        yield nursery
