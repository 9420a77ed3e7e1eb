"""The programs of a bed as processes: started in their own sessions, marked, watched, disturbed and restarted.

Every process of a bed carries `BATON_TESTBED_BED=<id>` in its environment, and its children inherit it. The mark,
rather than a list of pids, decides what belongs to a bed: it cannot be lost between a fork and a write, and it survives
the death of the process that started it.
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
    """The environment of a bed's programs: this process's environment and the mark.

    HTTP proxies are removed: Go programs would send requests for the bed's own addresses to them.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**inherited, **(more or {}), MARK: bed_id}


class ProcessKey(NamedTuple):
    """Identifies a process so that a later one with the same pid cannot be mistaken for it."""

    pid: int
    start_ticks: int


def wait_until(condition: Callable[[], bool], timeout_s: float, *, poll_s: float = _POLL_S) -> bool:
    """Poll until the condition holds or the timeout expires; returns whether it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def process_key(pid: int) -> ProcessKey | None:
    """The identity of a living process; None for one that has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    state, start_ticks = fields[0], int(fields[19])
    return None if state in "ZX" else ProcessKey(pid, start_ticks)


def is_alive(key: ProcessKey) -> bool:
    """Whether exactly this process is still running."""
    return process_key(key.pid) == key


def marked_processes(bed_id: str) -> Iterator[ProcessKey]:
    """The living processes of a bed, no matter who started them, except the caller."""
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
    """The end of a log on one line, for an error message."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no log"
    return " | ".join(line[:240] for line in lines[-count:]) or "an empty log"


@dataclass
class Component:
    """One program of a bed, with methods to inject faults.

    `enter` is a command prefix that runs the program inside a node; the program is then the child of the process that
    we started, and signals go to the program. `prepare` runs before each start; `is_ready` checks once and does not
    raise.
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
            raise BedError(f"{self.name} is already running; kill or restart it")
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
        """Wait until the program is ready; a program that dies before that is started again up to `attempts` times."""
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
                    f"{self.name} is not ready after {self.ready_timeout_s:.0f} s; end of its log {self.log}: "
                    f"{last_lines(self.log)}"
                )
        raise BedError(f"{self.name} exited during startup; end of its log {self.log}: {last_lines(self.log)}")

    @property
    def is_running(self) -> bool:
        """Whether the program is alive (a stopped one counts as alive)."""
        self._reap()
        return self._key is not None and is_alive(self._key)

    @property
    def pid(self) -> int:
        """The program's pid in the machine's namespace."""
        if self._key is None or not self.is_running:
            raise BedError(f"{self.name} is not running; start it first")
        return self._key.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it like a crash, with SIGKILL, and wait until it is gone."""
        key = self._key
        if key is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(key.pid, signal.SIGKILL)
            self._wait_gone(key, 10.0)
        self._reap(timeout_s=5.0)

    def terminate(self, timeout_s: float = 30.0) -> None:
        """End it gracefully, with SIGTERM, and wait until it is gone."""
        key = self._key
        if key is None or not self.is_running:
            return
        os.kill(key.pid, signal.SIGTERM)
        self._wait_gone(key, timeout_s)

    def stop(self) -> None:
        """Freeze it with SIGSTOP: its connections stay open but it does not answer."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a frozen program. The wrapper around a program in a node freezes with it, so both are resumed."""
        self.send(signal.SIGCONT)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)

    def restart(self, *, politely: bool = False) -> None:
        """End it, start it again with the same command and wait until it is ready."""
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
