"""The lock daemon of this machine: finding a running one, and starting one when there is none.

A daemon that is started here outlives the command that needed it. Its log is beside its sockets, and the next command
finds it through the socket directory.
"""

import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from baton.errors import UnavailableError
from baton.lock.paths import Paths
from baton.lock.peers import peer_of
from baton.lock.process import start_daemon

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02


def answers(sockets: Path) -> bool:
    """Whether a daemon accepts connections in this socket directory."""
    return _answering_pid(sockets) is not None


def _answering_pid(sockets: Path) -> int | None:
    """The process that accepts connections; 0 when it is outside this process namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(sockets / "scheduler.sock"))
        except OSError:
            return None
        return peer_of(probe).pid


def spawn(
    sockets: Path, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start a daemon and wait until a daemon answers.

    If another one was started at the same time and answers first, the one started here is ended.
    """
    paths = Paths(sockets)
    log = paths.private / "lockd.log"
    try:
        paths.prepare()
        output = log.open("ab")
    except OSError as error:
        raise paths.unusable(error) from error
    with output:
        process = start_daemon(sockets, options, environment={**os.environ, **(environment or {})}, log=output)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (pid := _answering_pid(sockets)) is None:
        # Our daemon exits if another one is starting in the same directory; that one will answer soon.
        if process.poll() is not None and not _taken(sockets):
            raise UnavailableError(f"the lock daemon did not start: {_last_line(log)} (log: {log})")
        if time.monotonic() > deadline:
            _end(process)
            raise UnavailableError(f"the lock daemon did not answer within {_START_TIMEOUT_S:.0f} s (log: {log})")
        time.sleep(_POLL_S)
    if pid != process.pid:
        # It would exit by itself, but if the other daemon ended first, ours would take over unnoticed.
        _end(process)
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate a daemon; kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _taken(sockets: Path) -> bool:
    """Whether a daemon has locked this socket directory, even if it does not answer yet."""
    try:
        with Paths(sockets).lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def ensure(sockets: Path, environment: Mapping[str, str] | None = None) -> bool:
    """Make sure that a daemon answers; returns True if it had to be started.

    Two commands may both find no daemon. The second daemon then refuses to start beside the first, and both commands
    use the first.
    """
    if answers(sockets):
        return False
    spawn(sockets, environment)
    return True


class OwnDaemon:
    """A daemon that is ended by the program that started it: for the demo and for measurements."""

    def __init__(self, sockets: Path, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
        self.sockets = sockets
        self._environment = environment
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = spawn(self.sockets, self._environment, self._options)

    def stop(self) -> None:
        if self._process is not None:
            _end(self._process)
        self._process = None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "its log is empty"
