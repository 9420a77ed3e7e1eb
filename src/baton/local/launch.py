"""Running a program under the lock: choosing its GPUs, setting its environment, and reading what it received.

The program does not change: the hook is preloaded, finds the daemon through the socket directory, and learns its limits
from the daemon. A machine without an NVIDIA driver uses its simulated GPUs if it has any.
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
_POLL_S = 0.02
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_TYPED = (signal.SIGINT, signal.SIGQUIT)


class NotRunnableError(BatonError):
    """The program cannot be started; the exit codes are those of a shell."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"cannot run {program!r}: {error.strerror}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


@dataclass(frozen=True)
class Requests:
    """What the user asked for; empty or zero where the user asked for nothing."""

    gpus: int = 0
    memory_bytes: int = 0
    cores_percent: int = 0
    weight: int = 0
    priority: str = ""
    tenant: str = ""
    gang: bool = False
    oversubscribe: bool | None = None

    def environment(self) -> dict[str, str]:
        """The hook's settings for these requests."""
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
    """One run of a program, from its environment to its account."""

    command: Sequence[str]
    requests: Requests
    sockets: Path
    machine: Mapping[str, str] = field(default_factory=dict)
    """The environment for the simulated GPUs; empty on a machine with a driver."""
    run_id: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def control(self) -> ControlClient:
        return ControlClient(Paths(self.sockets).control)

    @contextmanager
    def choosing(self, status: Status | None) -> Iterator[Sequence[str]]:
        """The GPUs for the program, which count as used from now on.

        None if CUDA_VISIBLE_DEVICES names them already, or if there is no status to choose by: then it sees all GPUs.
        """
        if status is None or (not self.requests.gpus and "CUDA_VISIBLE_DEVICES" in os.environ):
            yield ()
            return
        count = self.requests.gpus or 1
        placement.check(status, count)
        with self.control.choosing(self.run_id, count) as gpus:
            yield gpus

    def environment(self, gpus: Sequence[str]) -> dict[str, str]:
        """The program's environment: the current one, the simulated GPUs, the hook, and the requests."""
        result = {**os.environ, **self.machine, **self.requests.environment()}
        hook = str(library("libbaton.so"))
        preloaded = [path for path in result.get("LD_PRELOAD", "").replace(":", " ").split() if path != hook]
        result["LD_PRELOAD"] = ":".join([hook, *preloaded])
        result["BATON_SOCKET_DIR"] = str(self.sockets)
        result["BATON_RUN_ID"] = self.run_id
        if gpus:
            result["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return result

    def run(self, environment: Mapping[str, str]) -> int:
        """Run the program to its end, and return the exit code that a shell would return."""
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

        # Installed before the program starts, so that no signal is lost. The terminal sends an interrupt to the
        # program, too, and the program decides whether to end.
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
        """What the program received; None if it did not use a GPU, or if this user may not ask the daemon."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            try:
                status = self.control.status()
            except BatonError:
                return None
            leaving = any(client.run == self.run_id for client in status.clients)
            if not leaving or time.monotonic() > deadline:
                return next((run.account for run in status.runs if run.run == self.run_id), None)
            time.sleep(_POLL_S)


def _in_foreground() -> bool:
    """Whether this process is in the foreground of a terminal, so that Ctrl-C reaches it and its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def user_name() -> str:
    """The default tenant: the name that the daemon uses for this user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def find_sockets() -> Path:
    """The socket directory to use: the one that is set, or that of a running system daemon, or that of this user."""
    if not os.environ.get("BATON_SOCKET_DIR") and daemon.answers(SYSTEM_SOCKET_DIR):
        return SYSTEM_SOCKET_DIR
    return default_socket_dir()


def find_machine() -> dict[str, str]:
    """The environment for the simulated GPUs if there is no driver; empty if there is one."""
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
            "this machine has no GPU: libcuda.so.1 does not load; install the NVIDIA driver, or start simulated GPUs "
            "with `baton simgpu start`"
        ) from None
    return simulated.environment(directory)
