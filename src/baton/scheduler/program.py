"""The scheduler as a program: election, the configuration, the HTTP side, and one `Scheduler` per term."""

import os
import socket
import time
from typing import Any

import msgspec
from aiohttp import web

from baton.engine import records
from baton.engine.configuration import Configuration
from baton.engine.verdicts import UnknownWorkloadError
from baton.kube import garbage
from baton.kube.client import Client
from baton.model.ids import Key
from baton.model.meta import ObjectReference
from baton.observe.program import Leadership, Lease, Program, together
from baton.observe.serving import Address, Readiness, Server, health_routes
from baton.scheduler import gauges
from baton.scheduler.loop import Scheduler
from baton.scheduler.metrics import Metrics
from baton.scheduler.reload import ConfigMapName, LiveConfiguration
from baton.scheduler.settings import Settings
from baton.scheduler.why import explain


def new_identity() -> str:
    """The name of this replica among those that compete for the lease."""
    return f"{socket.gethostname()}_{os.getpid()}"


class SchedulerProgram:
    """One replica."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        configuration: LiveConfiguration,
        metrics: Metrics,
        *,
        listen: Address | None = None,
        config_map: ConfigMapName | None = None,
        lease: Lease | None = None,
        identity: str = "",
    ) -> None:
        settings.check()
        self._client = client
        self._settings = settings
        self._configuration = configuration
        self._config_map = config_map
        self._metrics = metrics
        self._leadership = Leadership(lease)
        self._identity = identity or new_identity()
        routes = [
            *health_routes(metrics.registry, self._readiness),
            web.get("/why/{namespace}/{name}", self._why),
            web.get("/state", self._state),
        ]
        self._program = Program(Server([listen], routes) if listen is not None else None)
        self.scheduler: Scheduler | None = None
        metrics.registry.read(gauges.FAMILIES, lambda: gauges.rows(self.scheduler))
        configuration.changed = self._reconfigure
        configuration.tell = self._tell

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        await self._program.run(self._work)

    async def _work(self) -> None:
        await together(self._leadership.run(self._term), self._configuration.follow(self._client, self._config_map))

    async def _term(self) -> None:
        """Learn everything from the API server: nothing from an earlier term counts."""
        scheduler = Scheduler(
            self._client, self._configuration.current, self._settings, self._metrics, identity=self._identity
        )
        self.scheduler = scheduler
        self._configuration.say_again()
        try:
            await scheduler.run()
        finally:
            self.scheduler = None
            self._metrics.end_term()
            garbage.thaw()

    def _reconfigure(self, configuration: Configuration) -> None:
        if self.scheduler is not None:
            self.scheduler.configure(configuration)

    def _tell(self, about: ObjectReference, reason: str, message: str, warning: bool) -> None:
        if self.scheduler is not None:
            self.scheduler.recorder.record(about, reason, message, warning=warning)

    def _readiness(self) -> Readiness:
        """A standby replica is ready: it can take over at any moment."""
        if self.scheduler is None:
            return Readiness(True, "standby")
        if not self.scheduler.synced.is_set():
            return Readiness(False, "not synced yet")
        return Readiness(True, "leading")

    async def _why(self, request: web.Request) -> web.Response:
        scheduler = self._leading()
        key = f"{request.match_info['namespace']}/{request.match_info['name']}"
        try:
            return _json(why(scheduler, key))
        except UnknownWorkloadError as error:
            return _json({"error": str(error)}, status=404)

    async def _state(self, _request: web.Request) -> web.Response:
        scheduler = self._leading()
        scheduler.engine.apply(scheduler.feed.take())
        about = records.Recorded(
            now_s=time.time(),
            configuration=self._configuration.text,
            memory_overcommit=self._settings.memory_overcommit,
            share_overcommit=self._settings.share_overcommit,
        )
        body = b"".join(records.lines(about, records.snapshot(scheduler.engine.state)))
        return web.Response(body=body, content_type="application/x-ndjson")

    def _leading(self) -> Scheduler:
        scheduler = self.scheduler
        if scheduler is None or not scheduler.synced.is_set():
            text = "this replica does not lead; ask the one that holds the lease"
            if scheduler is not None:
                text = "the scheduler has just started and does not know the cluster yet"
            body = msgspec.json.encode({"error": text})
            raise web.HTTPServiceUnavailable(body=body, content_type="application/json")
        return scheduler


def why(scheduler: Scheduler, key: str) -> dict[str, Any]:
    """The verdict on a pod or a PodGroup as JSON, with its paragraph."""
    engine, feed = scheduler.engine, scheduler.feed
    engine.apply(feed.take())
    verdict = explain(feed, engine, key, time.time())
    found: dict[str, Any] = msgspec.to_builtins(verdict)
    found["paragraph"] = verdict.paragraph()
    pod = feed.pods.get(Key(key))
    if pod is not None:
        found["node"] = pod.spec.node_name or None
    return found


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
