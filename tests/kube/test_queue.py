"""The work queue on virtual time: one worker per key, nothing lost, failures return after growing pauses."""

import asyncio

import pytest
import structlog.testing

from baton.kube.queue import WorkQueue

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def drained(queue: WorkQueue[str], work: "Work", seconds: float, workers: int = 1) -> list[tuple[float, str]]:
    task = asyncio.create_task(queue.run(work, workers=workers))
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    queue.close()
    return work.started


class Work:
    """Remembers when each key was worked on; may take time and fail; a key is never worked on twice at once."""

    def __init__(self, takes_s: float = 0.0, failures: int = 0) -> None:
        self.takes_s = takes_s
        self.failures = failures
        self.started: list[tuple[float, str]] = []
        self.running: set[str] = set()

    async def __call__(self, key: str) -> None:
        assert key not in self.running
        self.running.add(key)
        self.started.append((round(asyncio.get_running_loop().time(), 3), key))
        await asyncio.sleep(self.takes_s)
        self.running.discard(key)
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError("not yet")


async def test_a_key_added_often_is_worked_on_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(5):
        queue.add("a")
    queue.add("b")
    assert [key for _, key in await drained(queue, Work(), 1)] == ["a", "b"]


async def test_a_key_added_during_its_work_is_worked_on_again_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    asyncio.get_running_loop().call_later(1, queue.add, "a")
    started = await drained(queue, Work(takes_s=3), 10, workers=4)
    assert started == [(0, "a"), (3, "a")]


async def test_several_workers_share_different_keys() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in "abcd":
        queue.add(key)
    started = await drained(queue, Work(takes_s=1), 5, workers=2)
    assert started == [(0, "a"), (0, "b"), (1, "c"), (1, "d")]


async def test_failures_come_back_with_growing_pauses_and_success_resets_them() -> None:
    queue: WorkQueue[str] = WorkQueue(first_pause_s=1, longest_pause_s=4)
    queue.add("a")
    started = await drained(queue, Work(failures=4), 30)
    assert [at for at, _ in started] == [0, 1, 3, 7, 11]


async def test_an_addition_overtakes_a_pause() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 10)
    queue.add_after("a", 20)
    asyncio.get_running_loop().call_later(2, queue.add, "a")
    assert await drained(queue, Work(), 30) == [(2, "a")]


async def test_of_two_delays_the_shorter_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    assert await drained(queue, Work(), 30) == [(5, "a")]


async def test_a_key_that_fails_for_a_day_still_comes_back() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    with structlog.testing.capture_logs():
        started = await drained(queue, Work(failures=1 << 30), 24 * 3600)
    assert len(started) > 24 * 60
