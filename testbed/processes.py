"""The programs of a bed as processes: started in sessions of their own, marked, watched, hurt and restarted.

Every process of a bed carries `BATON_TESTBED_BED=<id>` in its environment, inherited by whatever it starts. The mark,
not a list of pids, says what belongs to a bed: it cannot be lost between a fork and a write, and it survives the
death of whoever started the process.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BedError

MARK = "BATON_TESTBED_BED"

_POLL_S = 0.02


def bed_environment(bed_id: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the programs of a bed inherit: this process's environment and the mark.

    Without HTTP proxies: Go programs would send what is meant for the bed's own addresses to them.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**inherited, **(more or {}), MARK: bed_id}


class ProcessKey(NamedTuple):
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    start_ticks: int


def wait_until(condition: Callable[[], bool], timeout_s: float, *, poll_s: float = _POLL_S) -> bool:
    """Look until the condition holds or the time is over; says which."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def process_key(pid: int) -> ProcessKey | None:
    """The identity of a living process; None for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    state, start_ticks = fields[0], int(fields[19])
    return None if state in "ZX" else ProcessKey(pid, start_ticks)


def is_alive(key: ProcessKey) -> bool:
    """Whether exactly this process still runs."""
    return process_key(key.pid) == key


def marked_processes(bed_id: str) -> Iterator[ProcessKey]:
    """The living processes of a bed, whoever started them; never the caller."""
    mark = f"{MARK}={bed_id}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0") and (key := process_key(int(entry))):
            yield key


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def last_lines(log: Path, count: int = 3) -> str:
    """The end of a log, on one line, for the sentence of an error."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    return " | ".join(line[:240] for line in lines[-count:]) or "an empty log"


@dataclass
class Component:
    """One program of a bed, with its fault levers.

    `enter` is put before the program's words to run it inside a node; such a program is the child of the process that
    we started, and it is the program that is signalled. `prepare` runs before each start; `is_ready` looks once and
    does not raise.
    """

    name: str
    argv: Sequence[str]
    bed_id: str
    log: Path
    is_ready: Callable[[], bool] = lambda: True
    prepare: Callable[[], None] = lambda: None
    environment: Mapping[str, str] = field(default_factory=dict)
    enter: Sequence[str] = ()
    ready_timeout_s: float = 60.0
    attempts: int = 1
    _process: subprocess.Popen[bytes] | None = None
    _key: ProcessKey | None = None

    def start(self) -> None:
        """Start the program; it must not be running."""
        if self.is_running:
            raise BedError(f"{self.name} is running already; kill or restart it")
        self.prepare()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.enter, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=bed_environment(self.bed_id, self.environment),
                start_new_session=True,
                cwd="/",
            )
        self._key = self._find_program(self._process)

    def _find_program(self, process: subprocess.Popen[bytes]) -> ProcessKey | None:
        if not self.enter:
            return process_key(process.pid)
        inner: list[int] = []

        def entered() -> bool:
            inner[:] = children(process.pid)
            return bool(inner) or process.poll() is not None

        wait_until(entered, 10.0, poll_s=0.005)
        return process_key(inner[0]) if inner else None

    def wait_ready(self) -> None:
        """Wait until the program does its work; a program that dies meanwhile is started again `attempts` times."""
        for attempt in range(self.attempts):
            if attempt:
                self.start()
            died = False

            def settled() -> bool:
                nonlocal died
                died = not self.is_running
                return died or self.is_ready()

            if wait_until(settled, self.ready_timeout_s) and not died:
                return
            if not died:
                raise BedError(
                    f"{self.name} is not ready after {self.ready_timeout_s:.0f} s; its log {self.log} ends: "
                    f"{last_lines(self.log)}"
                )
        raise BedError(f"{self.name} ended at start; its log {self.log} ends: {last_lines(self.log)}")

    @property
    def is_running(self) -> bool:
        """Whether the program is alive (a stopped one is)."""
        self._reap()
        return self._key is not None and is_alive(self._key)

    @property
    def pid(self) -> int:
        """The program's process number, as the machine counts."""
        if self._key is None or not self.is_running:
            raise BedError(f"{self.name} is not running; start it first")
        return self._key.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a crash would, with SIGKILL, and wait until it is gone."""
        key = self._key
        if key is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(key.pid, signal.SIGKILL)
            self._wait_gone(key, 10.0)
        self._reap(timeout_s=5.0)

    def terminate(self, timeout_s: float = 30.0) -> None:
        """End it politely, with SIGTERM, and wait until it is gone."""
        key = self._key
        if key is None or not self.is_running:
            return
        os.kill(key.pid, signal.SIGTERM)
        self._wait_gone(key, timeout_s)

    def stop(self) -> None:
        """Freeze it with SIGSTOP: its connections stay open and nobody answers."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen program go on. The wrapper around a program in a node freezes with it, so both are told."""
        self.send(signal.SIGCONT)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)

    def restart(self, *, politely: bool = False) -> None:
        """End it, start it again with the same words and wait until it does its work."""
        if politely:
            self.terminate()
        else:
            self.kill()
        self.start()
        self.wait_ready()

    def _wait_gone(self, key: ProcessKey, timeout_s: float) -> None:
        if not wait_until(lambda: not is_alive(key), timeout_s, poll_s=0.005):
            raise BedError(f"{self.name} (process {key.pid}) did not end within {timeout_s:.0f} s")
        self._reap(timeout_s=5.0)

    def _reap(self, timeout_s: float = 0.0) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        if timeout_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        else:
            self._process.poll()
