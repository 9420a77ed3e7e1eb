"""An eviction until its outcome is known: which failures are retried, and which are withdrawn in the engine."""

import asyncio
from collections import deque
from typing import Any

import msgspec
import pytest

from baton.engine.events import Event, EvictFailed
from baton.engine.plan import Eviction
from baton.kube.errors import ApiError, ConflictError, NotFoundError, ThrottledError, UnreachableError
from baton.kube.recorder import Recorder
from baton.model import core
from baton.model.ids import NodeName, PodKey
from baton.scheduler.evictor import Evictor
from baton.scheduler.feed.feed import Feed
from baton.scheduler.metrics import Metrics
from baton.scheduler.settings import Settings

GONE = (NotFoundError, ConflictError)


class Answers:
    """A client that answers evictions by a script, and keeps what was asked."""

    def __init__(self, *script: Exception) -> None:
        self._script = deque(script)
        self.asked: list[dict[str, Any]] = []
        self.heard, self.done = asyncio.Event(), asyncio.Event()

    async def request(self, _method: str, _path: str, *, body: dict[str, Any]) -> bytes:
        self.asked.append(body)
        self.heard.set()
        answer = self._script.popleft() if self._script else None
        if answer is None or isinstance(answer, GONE):
            self.done.set()
        if answer is not None:
            raise answer
        return b""


async def evict(answers: Answers, *, times: int = 1, made_anew: bool = False) -> list[Event]:
    """Evict a pod, and return what the engine is told once the outcome is certain; again, if more `times`."""
    told = asyncio.Event()
    client: Any = answers
    feed = Feed(client, ("volcano",), (), told.set)
    feed.pods.put(pod("u"))
    feed.take()
    told.clear()
    evictor = Evictor(client, feed, Recorder(client, "test"), Settings(evict_retry_s=0.01), Metrics(), lambda: 1000.0)
    work = asyncio.create_task(evictor.run())
    events = []
    for _ in range(times):
        evictor.submit([Eviction(PodKey("team/low"), NodeName("n"), "preempted for team/high")])
        waiting = [asyncio.create_task(told.wait()), asyncio.create_task(answers.done.wait())]
        if made_anew:
            await answers.heard.wait()
            feed.pods.put(pod("another"))
            feed.take()
            told.clear()
            await asyncio.sleep(0.05)
            answers.done.set()
        async with asyncio.timeout(30):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        told.clear()
        for task in waiting:
            task.cancel()
        events += feed.take()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return events


def pod(uid: str) -> core.Pod:
    metadata = {"name": "low", "namespace": "team", "uid": uid, "resourceVersion": uid}
    return msgspec.convert({"metadata": metadata}, core.Pod)


async def test_an_eviction_names_the_pods_uid() -> None:
    answers = Answers()
    assert await evict(answers) == []
    assert answers.asked[0]["deleteOptions"]["preconditions"] == {"uid": "u"}


@pytest.mark.parametrize(
    "refusal",
    [
        ThrottledError(429, "TooManyRequests", "a budget covers it"),
        ApiError(500, "InternalError", "several budgets cover it"),
        ApiError(403, "Forbidden", "no"),
    ],
    ids=["a budget", "several budgets", "no right"],
)
async def test_a_victim_that_stays_is_one_no_longer(refusal: Exception) -> None:
    assert await evict(Answers(refusal)) == [EvictFailed(PodKey("team/low"), 1000.01)]


async def test_a_victim_is_asked_ever_more_rarely() -> None:
    refusals = [ThrottledError(429, "TooManyRequests", "a budget covers it") for _ in range(4)]
    told = await evict(Answers(*refusals), times=4)
    assert [event.until_s for event in told if isinstance(event, EvictFailed)] == [1000.01, 1000.02, 1000.04, 1000.08]


async def test_a_refused_eviction_does_not_count_for_a_later_pod_of_the_same_name() -> None:
    refusal = ThrottledError(429, "TooManyRequests", "a budget covers it")
    assert await evict(Answers(refusal), made_anew=True) == []


@pytest.mark.parametrize("fault", [UnreachableError("cut"), ApiError(504, "Timeout", "later")], ids=["cut", "timeout"])
async def test_a_temporary_failure_is_retried(fault: Exception) -> None:
    answers = Answers(fault)
    assert await evict(answers) == []
    assert len(answers.asked) == 2


@pytest.mark.parametrize("error", GONE)
async def test_a_pod_that_is_gone_is_no_failure(error: type[ApiError]) -> None:
    assert await evict(Answers(error(404, "Gone", "it is gone, or another one has its name"))) == []
