"""The agent as one process: cards on one side, kubelet on the other, and optional parts around them.

Order matters at the start. The agent first finds the cards, then serves and registers every resource. This needs no
network, no lock daemon and no API server, because a pod that kubelet admits while the resource is missing fails for
good. The rest (the lock daemon, the API server, metrics) runs in tasks that may fail and retry without any effect on
kubelet.

The agent reads its configuration again on SIGHUP and when the file changes. A resource whose slots change keeps its
registration and sends a new list; a new or removed resource starts or ends its endpoint; a file with mistakes is
reported, and the previous configuration stays in force.
"""

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from baton.agent import config as configuration
from baton.agent.cards.watch import GpuWatch
from baton.agent.config import AgentConfig
from baton.agent.kubelet.answers import HostFiles, answer
from baton.agent.kubelet.endpoint import PluginEndpoint, mark
from baton.agent.kubelet.plugin import Board, plugin_options
from baton.agent.kubelet.podresources import PodResources
from baton.agent.kubelet.records import Holding
from baton.agent.node import host_files
from baton.agent.node.lock_port import LockPort
from baton.agent.offers.offers import Offer, PlanError, Role, plan, unused_rules
from baton.agent.offers.slot_choice import CardLoad
from baton.agent.offers.vendor_devices import DeviceKind, load_kinds
from baton.errors import BatonError
from baton.gpu.containers import ContainerEdits
from baton.gpu.vendor import GpuVendor
from baton.model.ids import CardId
from baton.observe.program import Program

_log = structlog.get_logger("baton.agent")

_CONFIG_LOOK_EVERY_S = 2.0
_HOOK_AGAIN_S = 30.0
_STOP_LIMIT_S = 8.0
"""The agent's pod has a grace period of 10 seconds, so that its successor is there soon."""
_SETTLED_AT_START = ("kubelet", "serving", "health", "lock")
"""Sections that take effect as a whole at the next start: a container that mounts a directory in which no lock daemon
listens would run without turns and without limits."""


class Companion(ABC):
    """An optional part beside the core: the API server's side, metrics, supervision of lockd.

    `run` may fail; the agent restarts it after a pause, and nothing else is affected.
    """

    name = "companion"

    @abstractmethod
    async def run(self, agent: "Agent") -> None:
        """Run until cancelled."""

    async def chosen_cards(self, offer: Offer, size: int) -> Sequence[CardId]:  # noqa: ARG002  # for those who override it
        """The scheduler's choice for the container that kubelet is admitting, if this companion knows it."""
        return ()

    def allocated(self, offer: Offer, slots: Sequence[str]) -> None:  # noqa: B027  # most have nothing to do then
        """Called after every successful Allocate."""

    async def start_refusal(self, offer: Offer, slots: Sequence[str]) -> str:  # noqa: ARG002  # for those who override it
        """Why a container must not start; empty if it may."""
        return ""

    def container_name(self, container_id: str) -> str:  # noqa: ARG002  # for those who override it
        """The name of the container with this runtime id; empty if this companion does not know it."""
        return ""

    def ended_pods(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of the pods on this node that have ended, as far as this companion knows."""
        return frozenset()


class Agent:
    """The core. It also answers the plugins (`plugin.Advisors`)."""

    def __init__(
        self,
        config: AgentConfig,
        node: str,
        vendors: Sequence[GpuVendor],
        *,
        config_path: Path | None = None,
        lock: LockPort | None = None,
        companions: Sequence[Companion] = (),
        chance: random.Random | None = None,
    ) -> None:
        self.config = config.for_node(node)
        self.node = node
        self.lock = lock
        self.companions = tuple(companions)
        self.gpus = GpuWatch(vendors, self.config.health)
        self.kinds: tuple[DeviceKind, ...] = ()
        self.host_files = HostFiles()
        self.endpoints: dict[str, PluginEndpoint] = {}
        self.pod_resources = PodResources(Path(self.config.kubelet.directory))
        self.problem = ""
        """Why the configuration in force is not the one in the file; empty if it is."""
        self._reload_asked = asyncio.Event()
        self._program = Program(reload=self._reload_asked.set, stop_limit_s=_STOP_LIMIT_S)
        self.stopping = self._program.stopping
        self.moved = asyncio.Condition()
        """Notified after every change of offers or health."""
        self._config_path = config_path
        self._config_mark = mark(config_path) if config_path else None
        self._chance = chance or random.Random()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def ready(self) -> bool:
        """Whether kubelet uses every resource of this agent."""
        return bool(self.endpoints) and all(endpoint.life.registered for endpoint in self.endpoints.values())

    @property
    def giving(self) -> frozenset[str]:
        """The resources that give out cards. A share's units of memory and of cores have ids like slots of any card."""
        return frozenset(name for name, endpoint in self.endpoints.items() if endpoint.board.offer.role is Role.CARDS)

    @property
    def gpu_offers(self) -> tuple[Offer, ...]:
        """The offers of GPUs; labels and the lock daemon do not cover devices that a file describes."""
        return tuple(endpoint.board.offer for name, endpoint in self.endpoints.items() if self._kind(name) is None)

    async def run(self) -> None:
        """Run until SIGTERM, SIGINT or `stopping`. SIGHUP reloads the configuration."""
        await self._program.run(self._work)

    async def _work(self) -> None:
        await self.gpus.start()
        self.kinds = await _found_kinds(self.config)
        self.host_files = host_files.prepare(self.config, self.gpus.driver_files)
        self._offer()
        background = [
            asyncio.create_task(self.gpus.run(), name="gpus"),
            asyncio.create_task(self._follow_cards(), name="follow cards"),
            asyncio.create_task(self._follow_devices(), name="follow devices"),
            asyncio.create_task(self._follow_config(), name="follow configuration"),
            asyncio.create_task(self._keep("hook", self._follow_hook)),
            *(asyncio.create_task(self._keep(one.name, self._companion(one))) for one in self.companions),
        ]
        try:
            await asyncio.wait(background[:3], return_when=asyncio.FIRST_COMPLETED)
            for task in background[:3]:
                if task.done():
                    task.result()  # a defect there must end the agent, not leave it half alive
        finally:
            for endpoint in self.endpoints.values():
                endpoint.stop()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    async def reload(self) -> None:
        """Read the configuration file again; if it has mistakes, the present configuration stays in force."""
        if self._config_path is None:
            return
        self._config_mark = mark(self._config_path)
        try:
            fresh = configuration.load(self._config_path).for_node(self.node)
            kinds = await _found_kinds(fresh)
            plan(fresh, self.gpus.cards)
        except BatonError as error:
            self.problem = str(error)
            _log.error("the new configuration is not used", reason=self.problem)
            return
        settled = {name: getattr(self.config, name) for name in _SETTLED_AT_START}
        later = [name for name, section in settled.items() if getattr(fresh, name) != section]
        if later:
            _log.warning("these sections take effect at the next start of the agent", sections=later)
        fresh = msgspec.structs.replace(fresh, **settled)
        self.config, self.kinds, self.problem = fresh, kinds, ""
        self.host_files = host_files.prepare(fresh, self.gpus.driver_files)
        self._offer()
        _log.info("configuration read again")

    def _offer(self) -> None:
        """Bring the endpoints in line with configuration and cards."""
        try:
            offers = list(plan(self.config, self.gpus.cards))
        except PlanError as error:
            # New cards may not fit a configuration that was valid before; the present offers stay.
            self.problem = str(error)
            _log.error("the configuration does not fit the cards", reason=str(error))
            if self.endpoints:
                return
            raise
        for sentence in unused_rules(self.config, self.gpus.cards):
            _log.info(sentence)
        offers += [kind.offer() for kind in self.kinds]
        for offer in offers:
            unhealthy = self._unhealthy(offer.name)
            endpoint = self.endpoints.get(offer.name)
            if endpoint is None:
                self._start(offer, unhealthy)
                continue
            before = endpoint.board.offer
            if _differs(before, offer):
                endpoint.board.show(offer, unhealthy)
                if plugin_options(before) != plugin_options(offer):
                    endpoint.register_again()
        for name in self.endpoints.keys() - {offer.name for offer in offers}:
            self.endpoints.pop(name).stop()

    def _start(self, offer: Offer, unhealthy: frozenset[CardId]) -> None:
        board = Board(offer)
        board.show(unhealthy=unhealthy)
        endpoint = PluginEndpoint(board, self, self.config.kubelet, self._chance)
        self.endpoints[offer.name] = endpoint
        _log.info("offering", offer=offer.describe())
        task = asyncio.create_task(endpoint.run(), name=offer.name)
        self._tasks[offer.name] = task

    def _unhealthy(self, resource: str) -> frozenset[CardId]:
        """The unhealthy cards of one resource: two vendors may give their first devices the same name."""
        kind = self._kind(resource)
        return self.gpus.unhealthy if kind is None else kind.unhealthy

    def _kind(self, resource: str) -> DeviceKind | None:
        return next((kind for kind in self.kinds if kind.resource == resource), None)

    async def _show_health(self) -> None:
        for name, endpoint in self.endpoints.items():
            endpoint.board.show(unhealthy=self._unhealthy(name))
        async with self.moved:
            self.moved.notify_all()

    async def _follow_cards(self) -> None:
        while True:
            await self.gpus.changed.wait()
            self.gpus.changed.clear()
            self._offer()
            await self._show_health()

    async def _follow_devices(self) -> None:
        while True:
            await asyncio.sleep(min((kind.look_every_s for kind in self.kinds), default=_CONFIG_LOOK_EVERY_S))
            moved = [await asyncio.to_thread(kind.look) for kind in self.kinds]
            if any(moved):
                self._offer()
                await self._show_health()

    async def _follow_config(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CONFIG_LOOK_EVERY_S):
                    await self._reload_asked.wait()
            moved = self._config_path is not None and mark(self._config_path) != self._config_mark
            if self._reload_asked.is_set() or moved:
                self._reload_asked.clear()
                await self.reload()

    async def _follow_hook(self) -> None:
        """Retry: a disk that was full at the start may have room later, and workloads share badly without the hook."""
        while True:
            await asyncio.sleep(_HOOK_AGAIN_S)
            if self.config.hook.enabled and not self.host_files.hook_path:
                self.host_files = host_files.prepare(self.config, self.gpus.driver_files)
                if self.host_files.hook_path:
                    _log.info("the hook is installed now; workloads that start from now on take turns")

    def _companion(self, companion: Companion) -> Callable[[], Awaitable[None]]:
        return lambda: companion.run(self)

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        pause_s = 1.0
        while True:
            try:
                await run()
                return
            except (BatonError, OSError) as error:
                _log.warning("will be retried", part=name, reason=str(error), pause_s=pause_s)
            except Exception:
                _log.exception("a defect; will be retried", part=name, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 30.0)

    async def loads(self) -> Mapping[CardId, CardLoad] | None:
        return await self.lock.loads() if self.lock is not None else None

    async def chosen_cards(self, offer: Offer, size: int) -> Sequence[CardId]:
        for companion in self.companions:
            if chosen := await companion.chosen_cards(offer, size):
                return chosen
        return ()

    def answer(self, offer: Offer, slots: Sequence[str]) -> ContainerEdits:
        kind = self._kind(offer.name)
        return kind.answer(slots) if kind is not None else answer(self.config, self.host_files, offer, slots)

    def allocated(self, offer: Offer, slots: Sequence[str]) -> None:
        for companion in self.companions:
            companion.allocated(offer, slots)

    async def start_refusal(self, offer: Offer, slots: Sequence[str]) -> str:
        for companion in self.companions:
            if refusal := await companion.start_refusal(offer, slots):
                return refusal
        return ""

    async def holdings(self) -> list[Holding] | None:
        """Who has which slots; None if kubelet does not say. Before 1.34 kubelet also names pods that have ended."""
        told = await self.pod_resources.holdings()
        if told is None:
            return None
        ended = {pod for companion in self.companions for pod in companion.ended_pods()}
        return [holding for holding in told if (holding.namespace, holding.pod) not in ended]

    def container_name(self, container_id: str) -> str:
        """The name of the container with this runtime id; empty if no companion knows it."""
        return next((name for one in self.companions if (name := one.container_name(container_id))), "")


async def _found_kinds(config: AgentConfig) -> tuple[DeviceKind, ...]:
    """The device kinds of a configuration after their first look; a vendor's command may take seconds."""
    kinds = load_kinds(config.devices, config.resource_names())
    for kind in kinds:
        await asyncio.to_thread(kind.look)
    return kinds


def _differs(before: Offer, after: Offer) -> bool:
    """Two pools differ in their terms or in their number of slots."""
    return len(before.pool) != len(after.pool) or msgspec.structs.replace(before, pool=after.pool) != after
