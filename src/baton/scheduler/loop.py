"""One term of a leader: from an empty engine to bound pods.

The scheduler rebuilds everything from the API server at the start of each term and keeps nothing between terms. Events
start a cycle, after a short window in which more may arrive. After a long cycle, as with thousands of waiting jobs, the
next one starts no sooner than after the same time again. A cycle that takes too long ends between two jobs, and the
next one continues from there.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from baton.engine.configuration import Configuration
from baton.engine.engine import Engine
from baton.engine.plan import Plan
from baton.errors import BatonError
from baton.kube import garbage
from baton.kube.client import Client
from baton.kube.errors import ConflictError, NotFoundError
from baton.kube.rate import RateLimit
from baton.kube.recorder import Recorder
from baton.model import core, volcano
from baton.model.ids import Key
from baton.model.names import BUILT_IN_QUEUES, ROOT_QUEUE
from baton.scheduler.binder import Binder
from baton.scheduler.evictor import Evictor
from baton.scheduler.feed.feed import Feed
from baton.scheduler.metrics import Metrics
from baton.scheduler.nodelock import NodeLocks
from baton.scheduler.settings import Settings
from baton.scheduler.status.hypernodes import HyperNodeStatuses
from baton.scheduler.status.queues import QueueStatuses
from baton.scheduler.status.statuses import Statuses

_LOG = structlog.get_logger("baton.scheduler")

_EVENTS_WAITING = 50_000
_NEWS_LOOKS = 5
_NEWS_PAUSE_S = 0.1
_EXPLAIN_LEAST_S = 0.1
_QUEUES_PAUSE_S = 5.0


class Scheduler:
    """Informers, engine, binder, evictor and writers, while `run()` runs."""

    def __init__(
        self,
        client: Client,
        configuration: Configuration,
        settings: Settings,
        metrics: Metrics,
        *,
        identity: str = "baton-scheduler",
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._settings = settings
        self._metrics = metrics
        self._now_s = now_s
        self._woken = asyncio.Event()
        self.engine = Engine(
            configuration,
            memory_overcommit=settings.memory_overcommit,
            share_overcommit=settings.share_overcommit,
        )
        self.feed = Feed(client, settings.scheduler_names, settings.slot_resources, self._woken.set)
        self.feed.pod_seen = self._pod_seen
        self.feed.pod_gone = metrics.gone
        self._event_rate = RateLimit(settings.event_qps, max(1, int(settings.event_qps)))
        self.recorder = Recorder(client, "baton-scheduler", turn=self._event_rate.wait)
        """For events on which a user may have to act."""
        self.good_news = Recorder(client, "baton-scheduler", waiting=_EVENTS_WAITING, turn=self._quiet_moment)
        """For events about success, which can wait."""
        self._locks = NodeLocks(client, self.feed.nodes, self.feed.pods, identity, now_s)
        self.binder = Binder(client, self.feed, self.recorder, self.good_news, settings, metrics, self._locks)
        self.evictor = Evictor(client, self.feed, self.recorder, settings, metrics, now_s)
        self.statuses = Statuses(client, self.feed, self.engine, self.recorder, settings, metrics)
        self.statuses.in_burst = self.binder.in_burst
        self._queue_statuses = QueueStatuses(client, self.feed, self.engine, settings, now_s)
        self._hyper_nodes = HyperNodeStatuses(client, self.feed, self.engine, self.recorder, settings)
        self.synced = asyncio.Event()
        """Set once everything is listed and the first cycle may run."""
        self._explained = True
        """Whether the last cycle also explained why jobs wait; if not, the next one will."""
        self._explained_at = float("-inf")
        self._explaining_took_s = 0.0
        self._suit()

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as group:
            await self._sync(group)
            self.synced.set()
            _LOG.info("synced", nodes=len(self.feed.nodes), pods=len(self.feed.pods), groups=len(self.feed.groups))
            writers = (
                self.statuses.run,
                self._queue_statuses.run,
                self._hyper_nodes.run,
                self.recorder.run,
                self.good_news.run,
                self._keep_queues,
            )
            for work in (self.binder.run, self.evictor.run, *writers):
                group.create_task(work())
            await self._cycles()

    async def _sync(self, group: asyncio.TaskGroup) -> None:
        """The first lists."""
        with garbage.filling():
            for reflector in self.feed.reflectors:
                group.create_task(reflector.run())
            await self.feed.synced()
            self.engine.apply(self.feed.take())

    def configure(self, configuration: Configuration) -> None:
        """Use another configuration from the next cycle on."""
        self.engine.configure(configuration)
        self._suit()
        self._woken.set()

    def _suit(self) -> None:
        """Adapt the loop to what the plugins need from it."""
        plugins = self.engine.tiers.plugins
        self._locks.enabled = any(plugin.locks_nodes for plugin in plugins)
        with_load = any(plugin.needs_load for plugin in plugins)
        if with_load != self.feed.with_load:
            self.feed.with_load = with_load
            self.feed.retranslate_nodes()

    async def _cycles(self) -> None:
        state = self.engine.state
        while True:
            try:
                async with asyncio.timeout(self._settings.period_s if self._explained else self._explain_pause_s()):
                    await self._woken.wait()
            except TimeoutError:
                if not state.active:
                    continue
            await asyncio.sleep(self._settings.window_s)
            self._woken.clear()
            took_s = self._cycle()
            if took_s > self._settings.window_s:
                await asyncio.sleep(took_s)

    def _cycle(self) -> float:
        """Take in events, decide, and hand out the plan; return the seconds it took."""
        began = time.monotonic()
        self.engine.apply(self.feed.take())
        known = self.feed.groups_version
        if not self.engine.has_work():
            self._explained = True
            self._queue_statuses.looked(known, refused=False)
            return time.monotonic() - began
        explain = began - self._explained_at >= self._explain_pause_s()
        ends_at = began + self._settings.cycle_limit_s
        plan = self.engine.schedule(self._now_s(), explain=explain, out_of_time=lambda: time.monotonic() >= ends_at)
        if plan.cut:
            # The reasons are complete only after every job had its turn.
            explain = False
            self._woken.set()
        self._carry_out(plan, explained=explain)
        self._queue_statuses.looked(known, refused=plan.refused)
        took_s = time.monotonic() - began
        self._explained = explain
        if explain:
            self._explained_at, self._explaining_took_s = began, took_s
        slow = took_s > self._settings.cycle_warning_s
        self._metrics.cycle(took_s, slow=slow, cut=plan.cut)
        if slow:
            _LOG.warning("slow cycle", took_s=round(took_s, 2), bindings=len(plan.bindings))
        return took_s

    def _explain_pause_s(self) -> float:
        """The cheaper explaining is, the more often it runs; it never takes more than a tenth of the time."""
        return min(self._settings.explain_s, max(_EXPLAIN_LEAST_S, 10 * self._explaining_took_s))

    def _carry_out(self, plan: Plan, *, explained: bool) -> None:
        self.binder.submit(plan.bindings)
        self.evictor.submit(plan.evictions)
        self.statuses.take(plan, explained=explained)

    async def _quiet_moment(self) -> None:
        """Delay events about bound pods until a burst of bindings is over: in a burst, each event would cost as much as
        a bind. Because a burst may last for hours, one event passes now and then."""
        for _ in range(_NEWS_LOOKS):
            if not self.binder.in_burst():
                break
            await asyncio.sleep(_NEWS_PAUSE_S)
        await self._event_rate.wait()

    def _pod_seen(self, pod: core.Pod) -> None:
        self._metrics.watched(pod.key)

    async def _keep_queues(self) -> None:
        """Create the built-in queues if they are missing; without Volcano's CRDs the engine's own two serve."""
        while True:
            for name in BUILT_IN_QUEUES:
                if self.feed.queues.get(Key(name)) is None:
                    await self._make_queue(name)
            await asyncio.sleep(_QUEUES_PAUSE_S)

    async def _make_queue(self, name: str) -> None:
        parent = {} if name == ROOT_QUEUE else {"parent": ROOT_QUEUE}
        body = {
            "apiVersion": volcano.SCHEDULING,
            "kind": volcano.QUEUE_KIND,
            "metadata": {"name": name},
            "spec": {"weight": 1, "reclaimable": name != ROOT_QUEUE, **parent},
        }
        try:
            await self._client.create(volcano.QUEUES, body)
        except (ConflictError, NotFoundError):
            return
        except BatonError as error:
            _LOG.warning("queue not made", queue=name, reason=str(error))
