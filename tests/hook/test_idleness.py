"""When an unused turn is released: the hook's own code in virtual time, so results do not depend on the machine."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hook.conftest import ROOT, compile_c

_SOURCES = ROOT / "native" / "hook"
COST_US = 1_000_000


class Holder:
    """A program with the turn, on its own clock. Only `work` and `wait_in_driver` keep the GPU busy."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._calls = 0
        self.now_us = 1_000
        self._look_us = 0
        self._tell("cost", COST_US)
        self._tell("begin", self.now_us)

    def _tell(self, word: str, number: int) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word} {number}\n")
        self._process.stdin.flush()
        answer, look = self._process.stdout.readline().split()
        self._look_us = int(look)
        return answer == "1"

    def _pass(self, until_us: int) -> int | None:
        """Let time pass as the client thread does; returns when the turn was released, if it was."""
        while self._look_us <= until_us:
            self.now_us = max(self._look_us, self.now_us)
            if self._tell("look", self.now_us):
                return self.now_us
        self.now_us = until_us
        return None

    def work(self, for_us: int = 10_000) -> None:
        """Make calls at intervals for a while."""
        for _ in range(10):
            self._calls += 1
            self._tell("number", self._calls)
            assert self._pass(self.now_us + for_us // 10) is None

    def wait_in_driver(self, for_us: int) -> int | None:
        """Wait for the GPU; returns when the turn was released during the wait, if it was."""
        self._tell("wait", 0)
        released_us = self._pass(self.now_us + for_us)
        self._tell("wait", self.now_us)
        return released_us

    def pause(self, for_us: int) -> int | None:
        """Leave the GPU unused, then request it again; returns after how long the turn was released, if it was."""
        began_us = self.now_us
        released_us = self._pass(began_us + for_us)
        if released_us is None:
            return None
        self.now_us = began_us + for_us
        self._tell("ask", self.now_us)
        self._tell("begin", self.now_us)
        return released_us - began_us


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("idleness")
    return compile_c("idleness.c", folder / "idleness", str(_SOURCES / "idle.c"), f"-I{_SOURCES}")


@pytest.fixture
def holder(built: Path) -> Iterator[Holder]:
    process = subprocess.Popen([built], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield Holder(process)
        process.kill()


def test_the_patience_with_an_unknown_program_is_the_cost_of_coming_back(holder: Holder) -> None:
    holder.work()
    released_us = holder.pause(10 * COST_US)
    assert released_us is not None
    assert COST_US <= released_us <= 1.125 * COST_US  # the time of the last call is known to an eighth of the patience


def test_a_pause_shorter_than_coming_back_keeps_the_turn(holder: Holder) -> None:
    for _ in range(50):
        holder.work()
        assert holder.pause(COST_US * 9 // 10) is None


def test_a_program_that_waits_in_the_driver_is_busy(holder: Holder) -> None:
    holder.work()
    assert holder.wait_in_driver(20 * COST_US) is None


def test_idleness_begins_at_the_end_of_the_wait(holder: Holder) -> None:
    holder.work()
    holder.wait_in_driver(3 * COST_US + 12_345)
    assert holder.pause(10 * COST_US) == COST_US


def test_a_program_with_only_long_pauses_releases_the_turn_almost_at_once(holder: Holder) -> None:
    for _ in range(4):
        holder.work()
        holder.wait_in_driver(COST_US)
        holder.pause(10 * COST_US)
    holder.work()
    holder.wait_in_driver(COST_US)
    assert holder.pause(10 * COST_US) == COST_US // 8


def test_short_pauses_between_long_ones_still_keep_the_turn(holder: Holder) -> None:
    """Bursts of work with short pauses inside a burst and long pauses between bursts."""
    given_back: list[int | None] = []
    for _ in range(20):
        for _ in range(3):
            holder.work()
            holder.wait_in_driver(COST_US // 2)
            assert holder.pause(COST_US // 5) is None
        holder.work()
        holder.wait_in_driver(COST_US // 2)
        given_back.append(holder.pause(5 * COST_US))
    assert given_back[0] == COST_US
    assert given_back[-1] is not None
    assert COST_US // 5 < given_back[-1] < COST_US // 3


@pytest.mark.parametrize("pause_us", [COST_US // 20, COST_US // 3, COST_US * 9 // 10])
def test_a_change_in_behaviour_is_learned(holder: Holder, pause_us: int) -> None:
    for _ in range(20):
        holder.work()
        holder.wait_in_driver(COST_US)
        holder.pause(10 * COST_US)
    needless = 0
    for _ in range(50):
        holder.work()
        holder.wait_in_driver(COST_US)
        needless += holder.pause(pause_us) is not None
    assert needless <= 16  # the number of pauses that are remembered


def test_work_seen_only_by_the_drain_restarts_the_idle_time(holder: Holder) -> None:
    holder.work()
    began_us = holder.now_us
    assert holder._pass(began_us + 2 * COST_US) is not None
    holder._tell("drain", holder.now_us)
    found_us = holder.now_us
    again_us = holder._pass(found_us + 2 * COST_US)
    assert again_us == found_us + COST_US
