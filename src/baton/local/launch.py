"""Running a program under the lock: which GPUs it gets, what goes into its environment, what it got in the end.

The program itself needs nothing: the hook is preloaded, finds the daemon through the socket directory, and learns its
limits from the daemon. A machine without an NVIDIA driver uses its simulated GPUs if it has any.
"""

import ctypes
import getpass
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton.errors import BatonError, UnavailableError
from baton.gpu import simulated
from baton.local import daemon
from baton.lock import placement
from baton.lock.control import ControlClient
from baton.lock.paths import SYSTEM_SOCKET_DIR, Paths, default_socket_dir
from baton.lock.status import Account, Status
from baton.native import library

_SETTLE_S = 1.0
_LOOK_EVERY_S = 0.02
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_TYPED = (signal.SIGINT, signal.SIGQUIT)


class NotRunnableError(BatonError):
    """The program cannot be started; the exit codes are those of a shell."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"cannot run {program!r}: {error.strerror}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


@dataclass(frozen=True)
class Wishes:
    """What the user asked for, as the hook's settings name it; empty or zero means nothing was asked."""

    gpus: int = 0
    memory_bytes: int = 0
    cores_percent: int = 0
    weight: int = 0
    priority: str = ""
    tenant: str = ""
    gang: bool = False
    oversubscribe: bool | None = None

    def environment(self) -> dict[str, str]:
        """The hook's settings for these wishes."""
        asked: dict[str, Any] = {
            "BATON_MEMORY_LIMIT": self.memory_bytes,
            "BATON_CORES": self.cores_percent,
            "BATON_WEIGHT": self.weight,
            "BATON_PRIORITY": self.priority,
            "BATON_TENANT": self.tenant,
            "BATON_GANG": int(self.gang),
        }
        chosen = {name: str(value) for name, value in asked.items() if value}
        if self.oversubscribe is not None:
            chosen["BATON_OVERSUBSCRIBE"] = str(int(self.oversubscribe))
        return chosen


@dataclass
class Launch:
    """One program, from its environment to its account."""

    command: Sequence[str]
    wishes: Wishes
    sockets: Path
    machine: Mapping[str, str] = field(default_factory=dict)
    """What leads to the simulated GPUs; empty on a machine with a driver."""
    run_id: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def control(self) -> ControlClient:
        return ControlClient(Paths(self.sockets).control)

    @contextmanager
    def choosing(self, status: Status | None) -> Iterator[Sequence[str]]:
        """The GPUs for the program, where it is counted from now on; none when it brings its own, or all are its."""
        if status is None or (not self.wishes.gpus and "CUDA_VISIBLE_DEVICES" in os.environ):
            yield ()
            return
        count = self.wishes.gpus or 1
        placement.check(status, count)
        with self.control.choosing(self.run_id, count) as gpus:
            yield gpus

    def environment(self, gpus: Sequence[str]) -> dict[str, str]:
        """The program's environment: ours, what leads to the GPUs, the hook, and what was asked for."""
        result = {**os.environ, **self.machine, **self.wishes.environment()}
        hook = str(library("libbaton.so"))
        preloaded = [path for path in result.get("LD_PRELOAD", "").replace(":", " ").split() if path != hook]
        result["LD_PRELOAD"] = ":".join([hook, *preloaded])
        result["BATON_SOCKET_DIR"] = str(self.sockets)
        result["BATON_RUN_ID"] = self.run_id
        if gpus:
            result["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return result

    def run(self, environment: Mapping[str, str]) -> int:
        """Run the program to its end and return its exit code as a shell would."""
        early: list[int] = []
        process: subprocess.Popen[bytes] | None = None

        def forward(number: int, _: object) -> None:
            if process is None:
                early.append(number)
            else:
                process.send_signal(number)

        def forward_unless_typed(number: int, frame: object) -> None:
            if not _in_foreground():
                forward(number, frame)

        # Before the program starts, so that no signal finds us without them. The terminal sends an interrupt to the
        # program as well; whether it ends the program is the program's business.
        kept = {number: signal.signal(number, forward) for number in _FORWARDED}
        kept |= {number: signal.signal(number, forward_unless_typed) for number in _TYPED}
        try:
            process = subprocess.Popen(self.command, env=dict(environment))
            for number in early:
                process.send_signal(number)
            code = process.wait()
        except OSError as error:
            raise NotRunnableError(self.command[0], error) from None
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
        return code if code >= 0 else 128 - code

    def account(self) -> Account | None:
        """What the program got; None when it never used a GPU, or when we may not ask."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            try:
                status = self.control.status()
            except BatonError:
                return None
            leaving = any(client.run == self.run_id for client in status.clients)
            if not leaving or time.monotonic() > deadline:
                return next((run.account for run in status.runs if run.run == self.run_id), None)
            time.sleep(_LOOK_EVERY_S)


def _in_foreground() -> bool:
    """Whether what is typed at a terminal reaches this process and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def user_name() -> str:
    """On whose account a program runs, by default: as the daemon would call the user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def find_sockets() -> Path:
    """The socket directory to use: the one that is set, else a running daemon of the whole machine, else our own."""
    if not os.environ.get("BATON_SOCKET_DIR") and daemon.answers(SYSTEM_SOCKET_DIR):
        return SYSTEM_SOCKET_DIR
    return default_socket_dir()


def find_machine() -> dict[str, str]:
    """What leads to the simulated GPUs where there is no driver; empty where there is one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        return {}
    directory = simulated.default_directory()
    try:
        simulated.status(directory)
    except UnavailableError:
        raise UnavailableError(
            "no GPU here: libcuda.so.1 does not load; install the NVIDIA driver, or make simulated GPUs with "
            "`baton simgpu start`"
        ) from None
    return simulated.environment(directory)
