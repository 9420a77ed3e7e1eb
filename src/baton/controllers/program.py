"""All controllers as one program: shared watches, one lease, one listener.

A replica waits for the lease. While it leads it runs a *term*: watches, an event recorder, and a work queue with
workers for each controller. Losing the lease, or the signal to stop, cancels the whole term, and the next term starts
from the API server alone. So no controller acts on memories from a time when another replica led, and a takeover after
`kill -9` is the same path as an ordinary start.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import structlog

from baton.controllers.controller import Controller, MakeController, Surroundings
from baton.controllers.cron.controller import CronJobController
from baton.controllers.flow.controller import JobFlowController, JobTemplateController
from baton.controllers.job.controller import JobController
from baton.controllers.podgroup.controller import PodGroupController
from baton.controllers.queue.controller import QueueController
from baton.controllers.telemetry import FAMILIES, LEADING, QUEUED, Telemetry
from baton.controllers.ttl import TtlController
from baton.errors import UsageError
from baton.kube import garbage
from baton.kube.client import Client
from baton.kube.informers import Informers, Scope
from baton.kube.queue import WorkQueue
from baton.kube.recorder import Recorder
from baton.model.ids import Key
from baton.model.names import SCHEDULER_NAMES
from baton.observe.metrics import Metrics, Row
from baton.observe.program import Leadership, Lease, Program
from baton.observe.serving import Address, Readiness, Server, health_routes

_LOG = structlog.get_logger("baton.controllers")

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
"""Every controller by its name in `--controllers`."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the program runs. The command line has an option for each."""

    identity: str
    """The name of this replica in the lease, unique among replicas."""
    listen: str = ":8081"
    """The address that serves /healthz, /readyz and /metrics."""
    workers: int = 64
    """How many objects of one kind are synced at the same time. A sync mostly waits for the API server, so there are as
    many as a client has connections: fewer leave some idle in a stream of jobs, more would wait for one."""
    sync_limit_s: float = 120.0
    """A sync that takes longer is cancelled and tried again, so that no object holds a worker for good."""
    scheduler_names: tuple[str, ...] = SCHEDULER_NAMES


def choose(names: Sequence[str]) -> list[MakeController]:
    """The controllers with these names; all of them when no name is given."""
    unknown = [name for name in names if name not in CONTROLLERS]
    if unknown:
        raise UsageError(f"there is no controller {unknown[0]!r}; there are {', '.join(CONTROLLERS)}")
    return [make for name, make in CONTROLLERS.items() if not names or name in names]


class ControllerProgram:
    """The program. `run()` ends on SIGTERM or SIGINT."""

    def __init__(
        self, client: Client, settings: Settings, controllers: Sequence[MakeController], lease: Lease | None = None
    ) -> None:
        """Without a lease this replica leads at once and until it ends: for a program that has no second replica."""
        self.settings = settings
        self.metrics = Metrics()
        self._client = client
        self._controllers = controllers
        self._elects = lease is not None
        self._leadership = Leadership(lease)
        self._informers: Informers | None = None
        self._running: Sequence[_RunningController] = ()
        self._telemetry = Telemetry(self.metrics)
        self.metrics.read(FAMILIES, self._rows)
        routes = health_routes(self.metrics, lambda: Readiness.waiting_for(self.waiting_for()))
        self._program = Program(Server([Address(settings.listen, "--listen")], routes))

    def waiting_for(self) -> str:
        """What keeps this replica from doing its part. A replica that waits for the lease does its part."""
        if self._informers is not None and (kinds := self._informers.waiting()):
            return f"the first list of {', '.join(kinds)} is not in yet"
        if self._informers is None and not self._leadership.leader:
            return "the lease cannot be read yet" if self._elects else "not started yet"
        return ""

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        await self._program.run(lambda: self._leadership.run(self._term))

    async def _term(self) -> None:
        recorder = Recorder(self._client, COMPONENT, self.settings.identity)
        informers = Informers(self._client)
        metrics = Metrics()
        surroundings = Surroundings(
            client=self._client,
            recorder=recorder,
            metrics=metrics,
            scheduler_names=self.settings.scheduler_names,
        )
        running = [_RunningController(make(surroundings), informers.scope()) for make in self._controllers]
        self._informers, self._running = informers, running
        self.metrics.add(metrics)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(recorder.run(), name="events")
                group.create_task(informers.run(), name="watches")
                for each in running:
                    group.create_task(each.run(self.settings, self._telemetry), name=each.controller.name)
                group.create_task(_freeze_garbage(running), name="freeze garbage")
        finally:
            garbage.thaw()
            self.metrics.remove(metrics)
            self._informers, self._running = None, ()

    def _rows(self) -> Iterator[Row]:
        yield Row(LEADING, (), self._leadership.leading)
        for each in self._running:
            yield Row(QUEUED, (each.controller.name,), each.queued)


class _RunningController:
    """A controller with its queue and its workers."""

    def __init__(self, controller: Controller, scope: Scope) -> None:
        self.controller = controller
        self.scope = scope
        self._queue: WorkQueue[Key] = WorkQueue()
        controller.watch(scope, self._queue.add)

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def run(self, settings: Settings, telemetry: Telemetry) -> None:
        name = self.controller.name

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


async def _freeze_garbage(running: Sequence[_RunningController]) -> None:
    """The objects of the first lists stay for the whole term, so the garbage collector need not visit them again."""
    for each in running:
        await each.scope.synced()
    garbage.freeze()
