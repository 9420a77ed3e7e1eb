"""The lock daemon of this machine: is one running, and starting one when there is none.

A daemon started here outlives the command that needed it: it leads a session of its own, writes its log beside its
sockets, and is found again by the next command through the socket directory.
"""

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from baton.errors import UnavailableError
from baton.lock.paths import Paths
from baton.lock.peers import peer_of

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 0.02


def answers(sockets: Path) -> bool:
    """Whether a daemon accepts connections in this socket directory."""
    return _who_answers(sockets) is not None


def _who_answers(sockets: Path) -> int | None:
    """The process that accepts connections there; 0 when this process cannot see it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(sockets / "scheduler.sock"))
        except OSError:
            return None
        return peer_of(probe).pid


def spawn(
    sockets: Path, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start a daemon and wait until it, or another that was started at the same time, answers; ours ends then."""
    paths = Paths(sockets)
    log = paths.private / "lockd.log"
    try:
        paths.prepare()
        output = log.open("ab")
    except OSError as error:
        raise paths.unusable(error) from error
    with output:
        process = subprocess.Popen(
            [sys.executable, "-m", "baton.cli.main", "lockd", "--socket-dir", str(sockets), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (pid := _who_answers(sockets)) is None:
        # Beside another daemon that is just starting ours gives way, and that one will answer in a moment.
        if process.poll() is not None and not _taken(sockets):
            raise UnavailableError(f"the lock daemon did not start: {_last_line(log)} (log: {log})")
        if time.monotonic() > deadline:
            _end(process)
            raise UnavailableError(f"the lock daemon did not answer in {_START_TIMEOUT_S:.0f} s (log: {log})")
        time.sleep(_LOOK_EVERY_S)
    if pid != process.pid:
        # It would give way, but perhaps so late that the other has ended meanwhile, and nobody knows of it.
        _end(process)
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a daemon of ours, gently first."""
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _taken(sockets: Path) -> bool:
    """Whether a daemon has this socket directory, be it not ready to answer yet."""
    try:
        with Paths(sockets).lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def ensure(sockets: Path, environment: Mapping[str, str] | None = None) -> bool:
    """Make sure that a daemon answers; True when it had to be started.

    Two commands may find none at the same moment: the second daemon refuses to start beside the first, and then
    the first one answers.
    """
    if answers(sockets):
        return False
    spawn(sockets, environment)
    return True


class OwnDaemon:
    """A daemon for one purpose, ended with it: for the demo, for measurements."""

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
    return lines[-1] if lines else "it said nothing"
