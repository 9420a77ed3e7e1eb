"""Clocks that jump: the time of day during a run of the daemon, the monotonic clock between two daemons."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baton.lock.control import ControlClient
from tests.lock.clocks import DAY_S, JUMPS, Clock
from tests.lock.clocks import clock as clock  # the fixture
from tests.lock.daemon.test_faults import FAST, SLOW, Starter
from tests.lock.daemon.test_faults import workload as workload  # the fixture
from tests.lock.daemons import Nursery, running

pytestmark = pytest.mark.process


def test_processes_see_the_jumps(clock: Clock) -> None:
    """Otherwise the other tests of this module would test nothing."""
    clock.jump(10 * DAY_S)
    told = subprocess.run([sys.executable, "-c", "import time; print(time.time())"], capture_output=True, check=True)
    assert float(told.stdout) - time.time() > 9 * DAY_S


def received_s(control: ControlClient) -> float:
    return sum(client.account.received_s for client in control.status().clients)


def test_turns_continue_when_the_time_of_day_jumps(clock: Clock, tmp_path: Path, workload: Starter) -> None:
    began_s = time.monotonic()
    with running(tmp_path, FAST) as nursery:
        pair = [workload(nursery) for _ in range(2)]
        for by_s in JUMPS:
            clock.jump(by_s)
            for _ in range(5):
                for one in pair:
                    one.turn()
        assert 0 < received_s(nursery.control) <= time.monotonic() - began_s
        for one in pair:
            one.finish()


def test_a_jump_does_not_shorten_a_long_turn(clock: Clock, tmp_path: Path, workload: Starter) -> None:
    with running(tmp_path, SLOW) as nursery:
        holder = workload(nursery)
        holder.turn()
        waiter = workload(nursery)
        for by_s in JUMPS:
            clock.jump(by_s)
            card = nursery.control.status().gpus[0]
            assert len(card.holders) == 1
        holder.finish()
        waiter.turn()


@pytest.mark.parametrize("offset_s", [10**6, -60])
def test_the_next_daemon_may_have_a_different_monotonic_clock(tmp_path: Path, workload: Starter, offset_s: int) -> None:
    """As after a move into another time namespace: the files contain no points in time, only durations."""
    if os.geteuid() != 0:
        pytest.skip("a time namespace needs root")
    began_s = time.monotonic()
    with Nursery(tmp_path) as nursery:
        nursery.start(FAST)
        pair = [workload(nursery) for _ in range(2)]
        for _ in range(5):
            for one in pair:
                one.turn()
        nursery.end(signal.SIGKILL)
        if not nursery.shift_monotonic_clock(offset_s):
            pytest.skip("this kernel has no time namespaces")
        nursery.start(FAST)
        for _ in range(5):
            for one in pair:
                one.turn()
        accounts = [client.account for client in nursery.control.status().clients]
        spent_s = time.monotonic() - began_s
        assert all(0 <= account.received_s <= spent_s for account in accounts)
        assert all(0 <= account.waited_s <= spent_s for account in accounts)
        for one in pair:
            one.finish()
