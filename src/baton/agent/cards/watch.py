"""The node's cards over time: inventory, samples and health, from drivers that block, for a loop that must not.

Each vendor's driver has its own thread, so a driver that hangs does not hide the cards of another vendor. All questions
to a driver go through that thread, because a source is not safe for several; only waiting for events has a separate
thread, which the interface allows. The agent keeps searching for a driver that is not loaded yet; until then the node
has no cards of that vendor. A driver that was loaded again answers only through a new source, so a source none of whose
cards answers is closed and opened again.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from baton.agent.cards.health import HealthTracker, Verdict
from baton.agent.config import Health
from baton.errors import BatonError, UnavailableError
from baton.gpu.cards import Card, CardEvent, GpuSource, NoDriverError, Sample, VendorName
from baton.gpu.containers import DriverFiles
from baton.gpu.vendor import GpuVendor
from baton.model.ids import CardId
from baton.observe.program import together

_log = structlog.get_logger("baton.agent")

T = TypeVar("T")

_SEARCH_EVERY_S = 5.0
_EVENT_WAIT_S = 1.0
_INVENTORY_EVERY_S = 30.0
"""Cards that appear while the agent runs are rare; the probes find those that vanish."""


class GpuWatch:
    """The cards of all vendors. `changed` is set on every change of the inventory or of a verdict, at most once per
    settling time."""

    def __init__(self, vendors: Sequence[GpuVendor], health: Health) -> None:
        self.changed = asyncio.Event()
        self._health = health
        self._settling: asyncio.TimerHandle | None = None
        self.drivers = tuple(DriverWatch(vendor, health, self.changed.set, self._settle) for vendor in vendors)

    async def start(self) -> None:
        """One attempt to find each driver, before anything is offered: it takes milliseconds and spares kubelet an
        empty list."""
        await asyncio.gather(*(driver.start() for driver in self.drivers))
        if not any(driver.present for driver in self.drivers):
            _log.warning("no GPU driver", reason=self.description, again_in_s=_SEARCH_EVERY_S)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await together(*(driver.run() for driver in self.drivers))
        finally:
            if self._settling is not None:
                self._settling.cancel()

    @property
    def cards(self) -> tuple[Card, ...]:
        """Every card that was seen since the start, vendor by vendor in the order of their indices."""
        return tuple(card for driver in self.drivers for card in driver.cards)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What the cards were doing at the last probe."""
        return tuple(sample for driver in self.drivers for sample in driver.samples)

    @property
    def description(self) -> str:
        """The drivers that were found; without any, why there is none."""
        told = [driver.description for driver in self.drivers if driver.present]
        return "; ".join(told or [driver.description for driver in self.drivers])

    @property
    def driver_files(self) -> dict[VendorName, DriverFiles]:
        """What containers need of each driver besides the cards."""
        return {driver.vendor.name: driver.files for driver in self.drivers}

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One per card."""
        return tuple(verdict for driver in self.drivers for verdict in driver.tracker.verdicts())

    @property
    def unhealthy(self) -> frozenset[CardId]:
        """The cards that must not be given to containers."""
        return frozenset(card for driver in self.drivers for card in driver.tracker.unhealthy())

    @property
    def xids(self) -> dict[tuple[CardId | None, int], int]:
        """How often each Xid was seen, by card."""
        return {key: count for driver in self.drivers for key, count in driver.tracker.xids.items()}

    def _settle(self) -> None:
        """Report this change and those that follow closely together."""
        if self._settling is None:
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(self._health.settle_s, self._report)

    def _report(self) -> None:
        self._settling = None
        self.changed.set()


class DriverWatch:
    """One vendor's cards: keeps `cards`, `samples` and `tracker` current while `run` runs."""

    def __init__(
        self, vendor: GpuVendor, health: Health, report: Callable[[], None], settle: Callable[[], None]
    ) -> None:
        self.vendor = vendor
        self._health = health
        self._report = report
        self._settle = settle
        self._source: GpuSource | None = None
        self._asking = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{vendor.name}-gpu")
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
        self.description = f"no {vendor.title} driver yet"
        self.files = DriverFiles()
        self._probe_now = asyncio.Event()
        self._answered_s = 0.0
        """When a card of the open source last answered."""
        self._missing = False
        """Whether the driver does not list a card that it listed before."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def present(self) -> bool:
        """Whether the driver is open."""
        return self._source is not None

    async def start(self) -> None:
        """The first attempt to find the driver."""
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
                if self._stopping.is_set() or loop.time() - self._answered_s >= _SEARCH_EVERY_S:
                    await self._open_again()
                elif loop.time() - looked_s >= (_SEARCH_EVERY_S if self._missing else _INVENTORY_EVERY_S):
                    looked_s = loop.time()
                    await self._take_inventory()
        finally:
            await self.close()

    async def close(self) -> None:
        """Release the driver for good."""
        await self._close_source()
        self._asking.shutdown(wait=False)

    async def _open_again(self) -> None:
        """Once the listener has ended; the cards are probed until then, in case one answers again."""
        self._stopping.set()
        if self._listener is None or not self._listener.is_alive():
            await self._close_source()
            await self._open()

    async def _close_source(self) -> None:
        self._stopping.set()
        source, self._source = self._source, None
        if self._listener is not None:
            await asyncio.to_thread(self._listener.join, _EVENT_WAIT_S * 2)
            self._listener = None
        if source is not None:
            await self._ask(source.close)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._asking, question)

    async def _open(self) -> None:
        try:
            source = await self._ask(self.vendor.open)
            description = await self._ask(lambda: source.description)
            self.files = await self._ask(lambda: source.driver_files)
        except UnavailableError as error:
            if self.description != str(error):
                self.description = str(error)
                # Most nodes have cards of one vendor only.
                log = _log.info if isinstance(error, NoDriverError) else _log.warning
                log("no driver", vendor=self.vendor.name, reason=str(error), again_in_s=_SEARCH_EVERY_S)
            self.samples = ()
            if self._health.enabled and self.tracker.probes((), (), asyncio.get_running_loop().time()):
                self._settle()
            return
        loop = asyncio.get_running_loop()
        self._source = source
        self._answered_s = loop.time()
        await self._take_inventory()
        await self._probe(loop.time())
        if self.description != description:
            self.description = description
            _log.info("GPUs", driver=description, cards=[f"{card.index}: {card.model}" for card in self.cards])
        if self._health.enabled:
            self._stopping = threading.Event()
            arguments = (source, self._stopping)
            self._listener = threading.Thread(target=self._listen, args=arguments, name="gpu-events", daemon=True)
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
            self._report()

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
        if self.samples or any(state.healthy for state in states) or not self.cards:
            self._answered_s = now_s
        self._missing = not {state.card for state in states}.issuperset(card.id for card in self.cards)
        if self._health.enabled and self.tracker.probes(states, self.samples, now_s):
            self._settle()

    def _listen(self, source: GpuSource, stopping: threading.Event) -> None:
        assert self._loop is not None
        while not stopping.is_set():
            try:
                happened = source.events(_EVENT_WAIT_S)
            except BatonError as error:
                _log.warning("GPU events cannot be read", reason=str(error))
                stopping.wait(_SEARCH_EVERY_S)
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
