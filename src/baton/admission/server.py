"""The admission program: a TLS listener for the API server, a plain one for probes and metrics, and their upkeep.

Any number of replicas run side by side; none leads. On SIGTERM a replica says that it is not ready, goes on answering
until API servers have stopped sending it anything new, finishes what it has, and ends.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from baton.admission.certificates.keeper import Keeper
from baton.admission.cluster import Cluster
from baton.admission.endpoints import Endpoint, Policy, Webhooks
from baton.admission.reviews import answer, read
from baton.admission.rules.resource_groups import read_groups
from baton.admission.telemetry import Telemetry
from baton.errors import BatonError, UnavailableError
from baton.kube.client import Client
from baton.kube.informers import Informers
from baton.observe.serving import Address, Serving

_LOG = structlog.get_logger("baton.admission")

_LARGEST_REVIEW = 16 * 1024 * 1024
"""An object may have 1.5 MiB in etcd; a review of an update holds two of them, and JSON is longer."""
_GROUPS_EVERY_S = 2.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the program runs; the command line has an option for each."""

    listen: str = ":8443"
    """Where the API server calls."""
    observe: str = ":8082"
    """Where /healthz, /readyz and /metrics are served."""
    drain_s: float = 5.0
    """How long it goes on answering after SIGTERM: until every node has heard that this replica is leaving."""
    finish_s: float = 10.0
    """How long requests that are being answered may still take then; the webhooks' own limit."""


class AdmissionProgram:
    """The program; `run()` ends on SIGTERM, SIGINT or `stopping`."""

    def __init__(self, client: Client, keeper: Keeper, settings: Settings, policy: Policy) -> None:
        self.stopping = asyncio.Event()
        self._settings = settings
        self._policy = policy
        self._keeper = keeper
        self._informers = Informers(client)
        self._cluster = Cluster(client, self._informers)
        self._webhooks = Webhooks(self._cluster, policy)
        registry = CollectorRegistry()
        self._telemetry = Telemetry(registry, lambda: keeper.keyring.expires.timestamp() if keeper.keyring else 0.0)
        self._observe = Serving(Address(settings.observe), registry, self._unready)
        self._runner: web.AppRunner | None = None
        self._synced = False
        self._groups_error = ""

    async def run(self) -> None:
        """Serve until told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        self._read_groups()
        if self._groups_error:
            raise UnavailableError(self._groups_error)
        await self._observe.start()
        upkeep = [asyncio.create_task(self._informers.run()), asyncio.create_task(self._watch_groups())]
        beginning = asyncio.create_task(self._begin())
        try:
            await self._until_stopping({beginning, *upkeep}, beginning.done)
            if not self.stopping.is_set():
                upkeep.append(asyncio.create_task(self._keeper.run()))
                await self._until_stopping(set(upkeep))
                await asyncio.sleep(self._settings.drain_s)
        finally:
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)
            if self._runner is not None:
                await self._runner.cleanup()
            for task in upkeep:
                task.cancel()
            await asyncio.gather(*upkeep, return_exceptions=True)
            await self._observe.stop()
        _LOG.info("stopped")

    async def _begin(self) -> None:
        """Certificates, first lists, then the listener; a cluster that does not answer yet is waited for."""
        while True:
            try:
                await self._keeper.look()
                break
            except BatonError as error:
                _LOG.warning("no certificate yet", error=str(error))
                await asyncio.sleep(1.0)
        await self._cluster.synced()
        self._synced = True
        await self._listen()

    async def _until_stopping(
        self, tasks: set[asyncio.Task[None]], reached: Callable[[], bool] = lambda: False
    ) -> None:
        """Until told to stop, or until something is reached. No task may fail meanwhile: without its watches or its
        certificates the program would go on with what it knew, so it ends with the error and is started anew."""
        stop = asyncio.create_task(self.stopping.wait())
        waiting: set[asyncio.Task[Any]] = {stop, *tasks}
        try:
            while not (stop.done() or reached()):
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        finally:
            stop.cancel()

    async def _listen(self) -> None:
        application = web.Application(client_max_size=_LARGEST_REVIEW)
        for path, endpoint in self._webhooks.endpoints().items():
            application.router.add_post(path, self._handler(path, endpoint))
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=self._settings.finish_s)
        await self._runner.setup()
        address = Address(self._settings.listen)
        try:
            await web.TCPSite(self._runner, address.host, address.port, ssl_context=self._keeper.context).start()
        except OSError as error:
            raise UnavailableError(f"cannot listen on {self._settings.listen}: {error.strerror}") from None
        _LOG.info("answering", listen=self._settings.listen, webhooks=len(self._webhooks.endpoints()))

    def _handler(self, path: str, endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(http: web.Request) -> web.Response:
            began = time.perf_counter()
            try:
                request = read(await http.read())
            except ValueError as error:
                self._telemetry.answered(path, "unreadable", time.perf_counter() - began)
                return web.Response(status=400, text=f"not an AdmissionReview: {error}\n")
            try:
                verdict = await endpoint(request)
            except BatonError as error:
                _LOG.warning("not answered", path=path, name=request.subject, error=str(error))
                self._telemetry.answered(path, "error", time.perf_counter() - began)
                return web.Response(status=503, text=f"{error}\n")
            self._telemetry.answered(path, "allowed" if verdict.allowed else "refused", time.perf_counter() - began)
            for key in verdict.findings.keys:
                self._telemetry.refused(key)
            if not verdict.allowed:
                _LOG.info(
                    "refused",
                    path=path,
                    namespace=request.namespace,
                    name=request.subject,
                    reason=verdict.findings.message(),
                )
            return web.Response(body=answer(request, verdict), content_type="application/json")

        return handle

    def _unready(self) -> str:
        if self.stopping.is_set():
            return "stopping"
        if self._keeper.keyring is None:
            return "no certificate yet"
        if not self._synced:
            return f"waiting for {', '.join(self._informers.waiting())}"
        if self._runner is None or not self._runner.addresses:
            return "not listening yet"
        return ""

    def _read_groups(self) -> None:
        path = self._policy.resource_groups_file
        if path is None:
            return
        try:
            self._webhooks.resource_groups = read_groups(path)
            self._groups_error = ""
        except BatonError as error:
            if str(error) != self._groups_error:
                _LOG.error("resource groups not read, the old ones stay", error=str(error))
            self._groups_error = str(error)

    async def _watch_groups(self) -> None:
        """Read the resource groups again when their file changes. A ConfigMap's file is a link that is exchanged."""
        path = self._policy.resource_groups_file
        if path is None:
            return
        seen = b""
        while True:
            now = await asyncio.to_thread(_content, path)
            if now != seen:
                seen = now
                self._read_groups()
            await asyncio.sleep(_GROUPS_EVERY_S)


def _content(path: Path) -> bytes:
    """What a file holds; nothing while it is being exchanged, or is not ours to read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
