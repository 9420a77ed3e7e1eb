"""Starting the daemon of a machine where another one may be starting, too."""

import fcntl
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton.errors import UnavailableError
from baton.local import daemon
from baton.lock.paths import Paths
from tests.local.conftest import PATIENCE_S


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "run" / "lock")
    made.prepare()
    return made


def test_another_daemon_that_is_not_ready_yet_is_waited_for(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    log, looks = paths.sockets.parent / "lockd.log", 0
    sleep = time.sleep

    def look_again(seconds: float) -> None:
        nonlocal looks
        looks += log.exists() and "another lock daemon" in log.read_text()
        if looks == 100:  # ours has given way long ago: now the other one is ready
            listener.bind(str(paths.sockets / "scheduler.sock"))
            listener.listen()
        sleep(seconds)

    with paths.lock.open("w") as taken, socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as thread:
        fcntl.flock(taken, fcntl.LOCK_EX)
        monkeypatch.setattr(time, "sleep", look_again)
        assert thread.submit(daemon.ensure, paths.sockets).result(PATIENCE_S)
        assert looks >= 100


def test_a_daemon_that_cannot_start_is_told_with_its_reason(paths: Paths) -> None:
    with pytest.raises(UnavailableError, match=r"did not start: .*--gpu"):
        daemon.spawn(paths.sockets, options=["--gpu", "nonsense=much"])
