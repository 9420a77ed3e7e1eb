"""The scheduler as a program: election, the configuration, the HTTP side, and one `Scheduler` per time of leading."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from typing import Any

import msgspec
import structlog
from aiohttp import web
from prometheus_client import generate_latest

from baton.engine import records
from baton.engine.configuration import Configuration
from baton.engine.verdicts import Cause, Verdict
from baton.errors import BatonError, UnavailableError
from baton.kube import garbage
from baton.kube.client import Client
from baton.kube.election import Election
from baton.kube.store import Key
from baton.mapping.pods import group_of
from baton.model.ids import PodKey
from baton.model.meta import ObjectReference
from baton.scheduler.gauges import ClusterGauges
from baton.scheduler.loop import Scheduler
from baton.scheduler.metrics import Metrics
from baton.scheduler.reload import ConfigMapName, LiveConfiguration
from baton.scheduler.settings import Settings

_LOG = structlog.get_logger("baton.scheduler")


class ElectionTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Where and for how long one replica leads."""

    lease: str = "baton-scheduler"
    namespace: str = "kube-system"
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


class Program:
    """One replica."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        configuration: LiveConfiguration,
        metrics: Metrics,
        *,
        config_map: ConfigMapName | None = None,
        election: ElectionTerms | None = None,
        identity: str = "",
    ) -> None:
        settings.check()
        self._client = client
        self._settings = settings
        self._configuration = configuration
        self._config_map = config_map
        self._metrics = metrics
        self._terms = election
        self._identity = identity or f"{socket.gethostname()}_{os.getpid()}"
        self._leader = ""
        self.scheduler: Scheduler | None = None
        metrics.registry.register(ClusterGauges(lambda: self.scheduler))
        configuration.changed = self._reconfigure
        configuration.tell = self._tell

    async def run(self, address: tuple[str, int] | None) -> None:
        """Until SIGTERM or SIGINT."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        runner = await self._listen(*address) if address is not None else None
        work = asyncio.create_task(self._lead_for_ever())
        follow = asyncio.create_task(self._configuration.follow(self._client, self._config_map))
        ended = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, follow, ended):
                task.cancel()
            results = await asyncio.gather(work, follow, ended, return_exceptions=True)
            if runner is not None:
                await runner.cleanup()
            await self._client.close()
        for result in results[:2]:
            if isinstance(result, Exception):
                raise result

    async def _lead_for_ever(self) -> None:
        if self._terms is None:
            self._leader = self._identity
            await self._lead()
            return
        terms = self._terms
        while True:
            election = Election(
                self._client,
                terms.lease,
                terms.namespace,
                self._identity,
                duration_s=terms.duration_s,
                renew_deadline_s=terms.renew_deadline_s,
                retry_s=terms.retry_s,
            )
            await election.run(self._lead)
            await asyncio.sleep(terms.retry_s)

    async def _lead(self) -> None:
        """Everything from the API server, nothing from an earlier time of leading."""
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

    async def _listen(self, host: str, port: int) -> web.AppRunner:
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
                web.get("/why/{namespace}/{name}", self._why),
                web.get("/state", self._state),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise UnavailableError(f"--listen {host}:{port} cannot be used: {error.strerror or error}") from None
        return runner

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, _request: web.Request) -> web.Response:
        """A standby replica is ready: it can take over at any moment."""
        scheduler = self.scheduler
        if scheduler is None:
            return web.Response(text="standby")
        if not scheduler.synced.is_set():
            return web.Response(status=503, text="not synced yet")
        return web.Response(text="leading")

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), content_type="text/plain", charset="utf-8")

    async def _why(self, request: web.Request) -> web.Response:
        scheduler = self._leading()
        key = f"{request.match_info['namespace']}/{request.match_info['name']}"
        try:
            return _json(why(scheduler, key))
        except BatonError as error:
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
    """The verdict on a pod or a group as JSON, with its paragraph."""
    engine, feed = scheduler.engine, scheduler.feed
    engine.apply(feed.take())
    pod = feed.pods.get(Key(key))
    verdict: Verdict
    if pod is not None and not pod.spec.node_name and (missing := feed.waits_for_group(pod)):
        named = group_of(pod)
        verdict = Verdict(
            group=named if named is not None else _group_key(key),
            cause=Cause.NOT_VALID,
            pod=PodKey(key),
            detail=missing,
            would_help=("create the PodGroup, or let the controller make it",),
        )
    else:
        verdict = engine.explain(PodKey(key), time.time())
    found: dict[str, Any] = msgspec.to_builtins(verdict)
    found["paragraph"] = verdict.paragraph()
    if pod is not None:
        found["node"] = pod.spec.node_name or None
    return found


def _group_key(key: str) -> Any:
    return f"pod:{key}"


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def install_fast_loop() -> None:
    """uvloop where it is installed: requests cost about half."""
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
