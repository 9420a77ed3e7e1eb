"""One memory limit for all processes of a run, whatever happens to them or to the daemon."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hook.conftest import Workloads
from tests.lock import daemons
from tests.waiting import until

GIB = 1 << 30
CARD = ("GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", 16 * GIB)
SERVER = """
use()
held = {}
for line in iter(sys.stdin.readline, ''):
    word, size = line.split()
    if word == 'allocate':
        result, pointer = allocate(int(size))
        if result == 0: held.setdefault(int(size), []).append(pointer)
        say(result)
    elif word == 'free':
        say(free(held[int(size)].pop()))
    elif word == 'left':
        say(memory()[0])
"""


class Process:
    """A process of a run that allocates on command."""

    def __init__(self, workloads: Workloads, sockets: Path, run: str, **more: str) -> None:
        settings = {"BATON_RUN_ID": run, "BATON_MEMORY_LIMIT": "4Gi", "BATON_SOCKET_DIR": str(sockets)}
        self.process: subprocess.Popen[str] = workloads.python(SERVER, **(settings | more))

    def ask(self, word: str, size: int = 0) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word} {size}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def allocate(self, size: int) -> bool:
        result = self.ask("allocate", size)
        assert result in (0, 2)
        return result == 0

    def left(self) -> int:
        return self.ask("left")

    def await_left(self, size: int) -> None:
        until(self.left, lambda left: left == size)


@pytest.fixture
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[daemons.Nursery]:
    with daemons.running(tmp_path_factory.mktemp("daemon"), cards=[CARD]) as running:
        yield running


def test_processes_of_a_run_share_the_limit(workloads: Workloads, nursery: daemons.Nursery) -> None:
    first, second = (Process(workloads, nursery.sockets, "r1") for _ in range(2))
    assert first.allocate(3 * GIB)
    assert second.left() == GIB
    assert not second.allocate(2 * GIB)
    assert second.allocate(GIB)
    assert not first.allocate(1)
    assert first.ask("free", 3 * GIB) == 0
    assert second.allocate(3 * GIB)


def test_runs_do_not_share(workloads: Workloads, nursery: daemons.Nursery) -> None:
    first, second = (Process(workloads, nursery.sockets, run) for run in ("r1", "r2"))
    assert first.allocate(4 * GIB)
    assert second.allocate(4 * GIB)


def test_without_a_run_each_process_has_its_own_limit(workloads: Workloads, nursery: daemons.Nursery) -> None:
    first, second = (Process(workloads, nursery.sockets, "") for _ in range(2))
    assert first.allocate(4 * GIB)
    assert second.allocate(4 * GIB)


def test_the_memory_of_a_killed_process_is_returned(workloads: Workloads, nursery: daemons.Nursery) -> None:
    first, second = (Process(workloads, nursery.sockets, "r1") for _ in range(2))
    assert first.allocate(4 * GIB)
    assert not second.allocate(1)
    first.process.kill()
    second.await_left(4 * GIB)
    assert second.allocate(4 * GIB)


def test_the_limit_is_shared_again_after_a_restart_of_the_daemon(
    workloads: Workloads, nursery: daemons.Nursery
) -> None:
    first, second = (Process(workloads, nursery.sockets, "r1") for _ in range(2))
    assert first.allocate(GIB)
    assert second.allocate(GIB)
    nursery.end()
    assert second.allocate(GIB)  # using the page of the daemon that is gone
    assert not second.allocate(2 * GIB)
    nursery.start(cards=[CARD])
    third = Process(workloads, nursery.sockets, "r1")
    third.await_left(GIB)
    assert not third.allocate(2 * GIB)
    first.process.kill()
    third.await_left(2 * GIB)


def test_concurrent_processes_get_exactly_the_limit(workloads: Workloads, nursery: daemons.Nursery) -> None:
    """Each process takes 64 MiB until it gets no more: together they get exactly the limit, despite the race."""
    code = """
use()
say('ready')
next_line()
count = 0
while allocate(1 << 26)[0] == 0: count += 1
say(count)
next_line()
"""
    settings = {"BATON_RUN_ID": "r1", "BATON_MEMORY_LIMIT": "4Gi", "BATON_SOCKET_DIR": str(nursery.sockets)}
    work = [workloads.python(code, **settings) for _ in range(6)]
    for process in work:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in work:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    counts = []
    for process in work:
        assert process.stdout is not None
        counts.append(int(process.stdout.readline()))
    assert sum(counts) == 64, counts
