"""`baton top` on a terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.local.conftest import PATIENCE_S, Machine

pytestmark = pytest.mark.process


class Screen:
    """A terminal on which a program runs."""

    def __init__(self, machine: Machine, *words: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 40, 160, 0, 0))
        command = [sys.executable, "-m", "baton.cli.main", *words]
        environment = {**machine.environment, "TERM": "xterm"}
        self.program = subprocess.Popen(command, env=environment, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def shows(self, words: str) -> None:
        """Wait until the screen shows these words."""
        painted, until = b"", time.monotonic() + PATIENCE_S
        while words.encode() not in painted:
            ready, _, _ = select.select([self.master], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{words!r} is not in {painted[-2000:]!r}"
            painted += os.read(self.master, 1 << 16)

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self.master)


@pytest.fixture
def screen(machine: Machine) -> Iterator[Screen]:
    machine.baton("run", "-q", "--", "true")  # starts the daemon
    made = Screen(machine, "top", "--every", "0.1")
    yield made
    made.close()


def test_the_view_outlives_the_daemon(machine: Machine, screen: Screen) -> None:
    screen.shows("0 programs")
    os.kill(machine.control.status().pid, signal.SIGKILL)
    screen.shows("no lock daemon answers")
    machine.baton("run", "-q", "--", "true")
    screen.shows("0 programs")


def test_the_view_outlives_a_daemon_that_hangs(machine: Machine, screen: Screen) -> None:
    screen.shows("0 programs")
    pid = machine.control.status().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        screen.shows("no lock daemon answers")
    finally:
        os.kill(pid, signal.SIGCONT)
    screen.shows("0 programs")
