"""The node's cards over time: inventory, samples and health, from a source that blocks, for a loop that must not.

All questions to the source go through one thread, because a source is not made for several; only waiting for events
has a thread of its own, which the interface allows. A driver that is not there yet (it may be loaded after us) is
looked for again and again; until then the node simply has no cards.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from baton.agent.cards.health import HealthTracker
from baton.agent.config import Health
from baton.errors import BatonError, UnavailableError
from baton.gpu.cards import Card, CardEvent, GpuSource, Sample

_log = structlog.get_logger(__name__)

T = TypeVar("T")

OpenSource = Callable[[], GpuSource]

_SEARCH_EVERY_S = 5.0
_EVENT_WAIT_S = 1.0
_INVENTORY_EVERY_S = 30.0
"""Cards that appear while we run are rare; those that vanish are found by the probes."""


class GpuWatch:
    """Keeps `cards`, `samples` and `tracker` current while `run` runs; `changed` is set on every change of the
    inventory or of a verdict, at most once per settling time."""

    def __init__(self, open_source: OpenSource, health: Health) -> None:
        self._open_source = open_source
        self._health = health
        self._source: GpuSource | None = None
        self._asking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpu")
        self._stopping = threading.Event()
        self._listener: threading.Thread | None = None
        self.tracker = HealthTracker(
            health.heal_s,
            health.hold_s,
            max_temperature_c=health.max_temperature_c,
            min_link_percent=health.min_link_percent,
            ignore_xids=health.ignore_xids,
        )
        self.cards: tuple[Card, ...] = ()
        self.samples: tuple[Sample, ...] = ()
        self.description = "no GPU driver yet"
        self.simulated = False
        self.changed = asyncio.Event()
        self._probe_now = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """One attempt to find the driver, before anything is offered: it takes milliseconds and spares kubelet an
        empty list."""
        self._loop = asyncio.get_running_loop()
        await self._open()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        try:
            while True:
                if self._source is None:
                    await asyncio.sleep(_SEARCH_EVERY_S)
                    await self._open()
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._health.probe_every_s):
                        await self._probe_now.wait()
                self._probe_now.clear()
                await self._probe(loop.time())
                if loop.time() - looked_s >= _INVENTORY_EVERY_S:
                    looked_s = loop.time()
                    await self._take_inventory()
        finally:
            await self.close()

    async def close(self) -> None:
        self._stopping.set()
        if self._settling is not None:
            self._settling.cancel()
        source, self._source = self._source, None
        if self._listener is not None:
            await asyncio.to_thread(self._listener.join, _EVENT_WAIT_S * 2)
        if source is not None:
            await self._ask(source.close)
        self._asking.shutdown(wait=False)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._asking, question)

    async def _open(self) -> None:
        try:
            source = await self._ask(self._open_source)
            self.description = await self._ask(lambda: source.description)
        except UnavailableError as error:
            if self.description != str(error):
                self.description = str(error)
                _log.warning("no GPU driver", reason=str(error), again_in_s=_SEARCH_EVERY_S)
            return
        self._source = source
        self.simulated = bool(getattr(source, "simulated", False))
        await self._take_inventory()
        await self._probe(asyncio.get_running_loop().time())
        _log.info("GPUs", driver=self.description, cards=[f"{card.index}: {card.model}" for card in self.cards])
        if self._health.enabled:
            self._listener = threading.Thread(target=self._listen, args=(source,), name="gpu-events", daemon=True)
            self._listener.start()

    async def _take_inventory(self) -> None:
        source = self._source
        if source is None:
            return
        try:
            found = {card.id: card for card in await self._ask(source.cards)}
        except BatonError as error:
            _log.warning("the inventory cannot be taken", reason=str(error))
            return
        # A card that has vanished stays listed, as unhealthy: pods may hold slots of it, and it may come back.
        merged = {card.id: card for card in self.cards} | found
        cards = tuple(sorted(merged.values(), key=lambda card: (card.index, card.id)))
        if cards != self.cards:
            self.cards = cards
            self.tracker.know(card.id for card in cards)
            self.changed.set()

    async def _probe(self, now_s: float) -> None:
        source = self._source
        if source is None:
            return
        try:
            states = await self._ask(source.health)
            self.samples = await self._ask(source.telemetry)
        except BatonError as error:
            _log.warning("the cards cannot be probed", reason=str(error))
            return
        if self._health.enabled and self.tracker.probes(states, self.samples, now_s):
            self._settle()

    def _listen(self, source: GpuSource) -> None:
        assert self._loop is not None
        while not self._stopping.is_set():
            try:
                happened = source.events(_EVENT_WAIT_S)
            except BatonError as error:
                _log.warning("GPU events cannot be read", reason=str(error))
                self._stopping.wait(_SEARCH_EVERY_S)
                continue
            if happened:
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    self._loop.call_soon_threadsafe(self.take_events, happened)

    def take_events(self, happened: tuple[CardEvent, ...]) -> None:
        """Take what the driver reported, on the loop's thread."""
        for event in happened:
            _log.warning("GPU event", card=event.card, severity=event.severity.value, what=event.summary)
        if self.tracker.events(happened, asyncio.get_running_loop().time()):
            self._settle()
            # Whether the driver still knows of it decides what heals the card, so it is asked before it can forget.
            self._probe_now.set()

    def _settle(self) -> None:
        """Tell of this change and of those that follow closely in one go."""
        if self._settling is None:
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(self._health.settle_s, self._tell)

    def _tell(self) -> None:
        self._settling = None
        self.changed.set()
