"""Starting the daemon of a machine on which another one may be starting at the same time."""

import fcntl
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton.errors import UnavailableError, UsageError
from baton.local import daemon
from baton.lock.paths import Paths
from tests.local.conftest import PATIENCE_S


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "run" / "lock")
    made.prepare()
    return made


@pytest.mark.process
def test_a_daemon_that_another_command_is_starting_is_used(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    log, polls = paths.sockets.parent / "lockd.log", 0
    sleep = time.sleep

    def poll(seconds: float) -> None:
        nonlocal polls
        polls += log.exists() and "another lock daemon" in log.read_text()
        if polls == 100:  # our daemon has exited long ago; now the other one is ready
            listener.bind(str(paths.sockets / "scheduler.sock"))
            listener.listen()
        sleep(seconds)

    with paths.lock.open("w") as taken, socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as thread:
        fcntl.flock(taken, fcntl.LOCK_EX)
        monkeypatch.setattr(time, "sleep", poll)
        assert thread.submit(daemon.ensure, paths.sockets).result(PATIENCE_S)
        assert polls >= 100


def test_an_unusable_directory_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"cannot be used: .*file"):
        daemon.ensure(tmp_path / "file" / "lock")
    (tmp_path / "run" / "lockd.log").mkdir(parents=True)
    with pytest.raises(UnavailableError, match=r"cannot be used: .*lockd\.log"):
        daemon.ensure(tmp_path / "run" / "lock")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may create `/tmp/baton-UID`, with a link in place of the log."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lockd.log").symlink_to(tmp_path / "diary")
    os.chown(tmp_path / "run", 4321, 4321)
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    with pytest.raises(UsageError, match="belongs to user 4321"):
        daemon.spawn(tmp_path / "run" / "lock")
    assert not (tmp_path / "diary").exists()


@pytest.mark.process
def test_a_daemon_that_cannot_start_is_reported_with_its_reason(paths: Paths) -> None:
    with pytest.raises(UnavailableError, match=r"did not start: .*--gpu"):
        daemon.spawn(paths.sockets, options=["--gpu", "nonsense=much"])
