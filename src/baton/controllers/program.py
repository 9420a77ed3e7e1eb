"""All controllers as one program: shared watches, one lease, one listener.

A replica waits for the lease; while it leads it runs a *term*: watches, an event recorder, and for each controller a
work queue with its workers. Losing the lease, or the signal to stop, cancels the whole term; the next one starts from
the API server alone. So nothing that a controller remembers outlives its right to act on it, and a takeover after
`kill -9` is the same path as an ordinary start.
"""

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from baton.controllers.controller import SCHEDULER_NAMES, Controller, MakeController, Surroundings
from baton.controllers.cron.controller import CronJobController
from baton.controllers.flow.controller import JobFlowController, JobTemplateController
from baton.controllers.job.controller import JobController
from baton.controllers.podgroup.controller import PodGroupController
from baton.controllers.queue.controller import QueueController
from baton.controllers.telemetry import Telemetry
from baton.controllers.ttl import TtlController
from baton.errors import UsageError
from baton.kube import garbage
from baton.kube.client import Client
from baton.kube.election import Election
from baton.kube.informers import Informers, Scope
from baton.kube.queue import WorkQueue
from baton.kube.recorder import Recorder
from baton.kube.store import Key
from baton.observe.serving import Address, Serving

_LOG = structlog.get_logger("baton.jobs")

COMPONENT = "baton-controller"

CONTROLLERS: Mapping[str, MakeController] = {
    PodGroupController.name: PodGroupController,
    JobController.name: JobController,
    QueueController.name: QueueController,
    CronJobController.name: CronJobController,
    JobFlowController.name: JobFlowController,
    JobTemplateController.name: JobTemplateController,
    TtlController.name: TtlController,
}
"""Every controller by the name under which `--controllers` knows it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the program runs; the command line has an option for each."""

    identity: str
    """Who this replica is in the lease; unique among replicas."""
    listen: str = ":8081"
    """Where /healthz, /readyz and /metrics are served."""
    workers: int = 64
    """Objects of one kind that are worked on at the same time. Work is waiting for the API server, so there are as many
    as a client has connections: in a stream of jobs fewer leave some of them idle, more would wait for one."""
    elect: bool = True
    """False leads at once and for ever: for a single replica that is never rolled over."""
    lease_name: str = COMPONENT
    lease_namespace: str = "kube-system"
    lease_duration_s: float = 15.0
    """How long the others wait for a leader that fell silent. It renews every 2/15 of this and gives up at 2/3."""
    sync_limit_s: float = 120.0
    """After this a look at one object is given up and tried again: no object may hold a worker for ever."""
    scheduler_names: tuple[str, ...] = SCHEDULER_NAMES


def choose(names: Sequence[str]) -> list[MakeController]:
    """The controllers with these names, all when there are none."""
    unknown = [name for name in names if name not in CONTROLLERS]
    if unknown:
        raise UsageError(f"there is no controller {unknown[0]!r}; there are {', '.join(CONTROLLERS)}")
    return [make for name, make in CONTROLLERS.items() if not names or name in names]


class ControllerProgram:
    """The program; `run()` ends on SIGTERM, SIGINT or `stopping`."""

    def __init__(self, client: Client, settings: Settings, controllers: Sequence[MakeController]) -> None:
        self.settings = settings
        self.stopping = asyncio.Event()
        self._client = client
        self._controllers = controllers
        self._informers: Informers | None = None
        self._terms = CollectorRegistry()
        self._telemetry = Telemetry(self._terms)
        self._election = Election(
            client,
            settings.lease_name,
            settings.lease_namespace,
            settings.identity,
            duration_s=settings.lease_duration_s,
            renew_deadline_s=settings.lease_duration_s * 2 / 3,
            retry_s=settings.lease_duration_s * 2 / 15,
        )
        self.serving = Serving(Address(settings.listen), self._terms, self.waiting_for)

    def waiting_for(self) -> str:
        """What keeps this replica from doing its part; a replica that waits for the lease does it."""
        if self._informers is not None and (kinds := self._informers.waiting()):
            return f"the first list of {', '.join(kinds)} is not in yet"
        if self._informers is None and not (self.settings.elect and self._election.leader):
            return "the lease cannot be read yet" if self.settings.elect else "not started yet"
        return ""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        await self.serving.start()
        _LOG.info("listening", addresses=[f"{host}:{port}" for host, port in self.serving.addresses])
        work = asyncio.create_task(self._work(), name="work")
        stop = asyncio.create_task(self.stopping.wait(), name="stop")
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, stop):
                task.cancel()
            results = await asyncio.gather(work, stop, return_exceptions=True)
            await self.serving.stop()
            _LOG.info("stopped")
        if isinstance(results[0], Exception):
            raise results[0]

    async def _work(self) -> None:
        if not self.settings.elect:
            await self._lead()
        while True:
            await self._election.run(self._lead)

    async def _lead(self) -> None:
        """One term."""
        recorder = Recorder(self._client, COMPONENT, self.settings.identity)
        informers = Informers(self._client)
        registry = CollectorRegistry()
        surroundings = Surroundings(
            client=self._client,
            recorder=recorder,
            registry=registry,
            scheduler_names=self.settings.scheduler_names,
        )
        posts = [_Post(make(surroundings), informers.scope()) for make in self._controllers]
        self._informers = informers
        self._telemetry.leading.set(1)
        self._terms.register(registry)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(recorder.run(), name="events")
                group.create_task(informers.run(), name="watches")
                for post in posts:
                    group.create_task(post.run(self.settings, self._telemetry), name=post.controller.name)
                group.create_task(_settle(posts), name="settle")
        finally:
            garbage.thaw()
            self._terms.unregister(registry)
            self._telemetry.leading.set(0)
            self._informers = None


class _Post:
    """A controller at work: its queue and its workers."""

    def __init__(self, controller: Controller, scope: Scope) -> None:
        self.controller = controller
        self.scope = scope
        self._queue: WorkQueue[Key] = WorkQueue()
        controller.watch(scope, self._queue.add)

    async def run(self, settings: Settings, telemetry: Telemetry) -> None:
        name = self.controller.name
        telemetry.watch_queue(name, lambda: len(self._queue))

        async def work(key: Key) -> None:
            began = time.perf_counter()
            failed = True
            try:
                async with asyncio.timeout(settings.sync_limit_s):
                    again_s = await self.controller.sync(key)
                failed = False
            finally:
                telemetry.synced(name, time.perf_counter() - began, failed=failed)
            if again_s is not None:
                self._queue.add_after(key, again_s)

        await self.scope.synced()
        _LOG.info("controller works", controller=name, waiting=len(self._queue))
        try:
            await self._queue.run(work, workers=settings.workers)
        finally:
            self._queue.close()


async def _settle(posts: Sequence[_Post]) -> None:
    """What the first lists brought stays for the whole term: the collector need not look at it again and again."""
    for post in posts:
        await post.scope.synced()
    garbage.freeze()
