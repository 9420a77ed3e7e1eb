"""How soon a fault and its end are reported: the agent's delays on virtual time, with the default settings."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from baton.agent.cards.watch import GpuWatch
from baton.agent.config import Health
from baton.errors import UnavailableError
from baton.gpu.cards import Card, CardEvent, CardHealth, Sample
from baton.gpu.containers import DriverFiles
from baton.gpu.nvidia import NVIDIA
from baton.gpu.xids import classify
from baton.model.ids import CardId
from tests.gpu.fake import FakeNvidia

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

LIMIT_S = 2.0
A, B = CardId("GPU-a"), CardId("GPU-b")
MOMENTS_S = [0.0, 0.01, 0.13, 0.27, 0.399]
"""The time between a probe and an event."""


class AtOnce(Executor):
    """Answers before the loop continues, so that no virtual time passes meanwhile."""

    def __init__(self, **_: Any) -> None:
        pass

    def submit(self, question: Callable[..., Any], /, *arguments: Any, **named: Any) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_result(question(*arguments, **named))
        return answer


class Driver:
    """A `GpuSource` whose cards fail on command."""

    description = "cards in memory"
    driver_files = DriverFiles()
    silent_cards = 0

    def __init__(self) -> None:
        self.bad: dict[CardId, str] = {}
        self.gone: set[CardId] = set()
        self.closed = False
        self.released = threading.Event()
        """Ends the wait for an event."""

    def cards(self) -> tuple[Card, ...]:
        return tuple(Card(card, index, NVIDIA.name, "Tesla T4", 16384, (7, 5), "") for index, card in enumerate((A, B)))

    def telemetry(self) -> tuple[Sample, ...]:
        return ()

    def health(self) -> tuple[CardHealth, ...]:
        return tuple(
            CardHealth(card, card not in self.bad, self.bad.get(card, "")) for card in (A, B) if card not in self.gone
        )

    def events(self, timeout_s: float) -> tuple[CardEvent, ...]:
        self.released.wait()
        return ()

    def close(self) -> None:
        self.closed = True
        self.released.set()


class Node:
    """A watch over a driver, and how long it takes to report a change."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.loaded = True
        self.watch = GpuWatch([FakeNvidia(self._open)], Health())

    def _open(self) -> Driver:
        if not self.loaded:
            raise UnavailableError("no driver is loaded")
        return self.driver

    def event(self, xid: int) -> None:
        self.watch.drivers[0].take_events((CardEvent(A, classify(xid).severity, f"Xid {xid}", xid),))

    async def reported_after_s(self, unhealthy: set[CardId], limit_s: float = 600.0) -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(limit_s):
            while True:
                await self.watch.changed.wait()
                self.watch.changed.clear()
                if self.watch.unhealthy == unhealthy:
                    return loop.time() - began_s


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Node]:
    node = Node()
    await node.watch.start()
    node.watch.changed.clear()
    running = asyncio.create_task(node.watch.run())
    try:
        yield node
    finally:
        node.driver.released.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture(autouse=True)
def _answers_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.agent.cards.watch.ThreadPoolExecutor", AtOnce)


@pytest.mark.parametrize("moment_s", MOMENTS_S)
@pytest.mark.parametrize("fault", ["a defect", "off the bus"])
async def test_a_defect_and_its_end_are_reported_within_two_seconds(fault: str, moment_s: float) -> None:
    async with watched() as node:
        await asyncio.sleep(1.2 + moment_s)
        if fault == "a defect":
            node.driver.bad[A] = "the driver asks for a reset of this GPU"
        else:
            node.driver.gone.add(A)
        assert await node.reported_after_s({A}) <= LIMIT_S
        await asyncio.sleep(moment_s)
        node.driver.bad.clear()
        node.driver.gone.clear()
        assert await node.reported_after_s(set()) <= LIMIT_S


@pytest.mark.parametrize("moment_s", MOMENTS_S)
async def test_even_a_short_fatal_xid_and_its_end_are_reported_within_two_seconds(moment_s: float) -> None:
    """The driver is probed at once: otherwise a fault that ends before the next probe would count as unseen by it."""
    async with watched() as node:
        await asyncio.sleep(1.2 + moment_s)
        node.driver.bad[A] = "GPU is lost"
        node.event(79)
        assert await node.reported_after_s({A}) <= LIMIT_S
        node.driver.bad.clear()
        assert await node.reported_after_s(set()) <= LIMIT_S


async def test_a_fatal_xid_that_the_driver_cannot_confirm_holds_the_card() -> None:
    async with watched() as node:
        node.event(79)
        assert await node.reported_after_s({A}) <= LIMIT_S
        assert Health().hold_s <= await node.reported_after_s(set()) <= Health().hold_s + LIMIT_S


async def test_an_application_error_is_never_reported() -> None:
    async with watched() as node:
        node.event(31)
        with pytest.raises(TimeoutError):
            await node.reported_after_s({A}, limit_s=300.0)


async def test_a_driver_that_was_loaded_again_is_opened_again() -> None:
    """The old source never answers again, and must be closed before the library can be opened again."""
    async with watched() as node:
        former, node.driver = node.driver, Driver()
        former.released.set()
        former.bad = {A: "GPU is lost", B: "GPU is lost"}
        assert await node.reported_after_s({A, B}) <= LIMIT_S
        await node.reported_after_s(set())
        assert former.closed


async def test_cards_stay_away_while_their_driver_is_not_loaded() -> None:
    async with watched() as node:
        node.loaded = False
        node.driver.released.set()
        node.driver.bad = {A: "GPU is lost", B: "GPU is lost"}
        assert await node.reported_after_s({A, B}) <= LIMIT_S
        with pytest.raises(TimeoutError):
            await node.reported_after_s(set(), limit_s=300.0)
        assert node.watch.description == "no driver is loaded"
        node.driver, node.loaded = Driver(), True
        await node.reported_after_s(set())
        assert node.watch.description == "cards in memory"
