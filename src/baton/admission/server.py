"""The admission program: a TLS listener for the API server, a plain one for probes and metrics, and their upkeep.

Any number of replicas run side by side; none leads. On SIGTERM a replica reports that it is not ready, continues to
answer until API servers send it no new requests, finishes its present ones, and ends.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog
from aiohttp import web

from baton.admission.certificates.keeper import Keeper
from baton.admission.cluster import Cluster
from baton.admission.endpoints import Endpoint, Policy, Webhooks
from baton.admission.reviews import answer, read
from baton.admission.rules.resource_groups import read_groups
from baton.admission.telemetry import Telemetry
from baton.errors import BatonError, UnavailableError
from baton.kube.client import Client
from baton.kube.informers import Informers
from baton.observe.metrics import Metrics
from baton.observe.program import Program, together
from baton.observe.serving import Address, Readiness, Server, health_routes

_LOG = structlog.get_logger("baton.admission")

_LARGEST_REVIEW = 16 * 1024 * 1024
"""An object may take 1.5 MiB in etcd. A review of an update contains two objects, and JSON is longer."""
_GROUPS_EVERY_S = 2.0
_CLEAN_UP_S = 10.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the program runs. The command line has an option for each."""

    listen: str = ":8443"
    """The address that API servers call."""
    observe: str = ":8082"
    """The address that serves /healthz, /readyz and /metrics."""
    drain_s: float = 5.0
    """How long it continues to answer after SIGTERM: until every node knows that this replica is leaving."""
    finish_s: float = 10.0
    """How long requests in progress may still take then: the time limit of the webhooks."""


class AdmissionProgram:
    """The program. `run()` ends on SIGTERM, SIGINT or `stopping`."""

    def __init__(self, client: Client, keeper: Keeper, settings: Settings, policy: Policy) -> None:
        self._settings = settings
        self._policy = policy
        self._keeper = keeper
        self._informers = Informers(client)
        self._cluster = Cluster(client, self._informers)
        self._webhooks = Webhooks(self._cluster, policy)
        metrics = Metrics()
        self._telemetry = Telemetry(metrics, lambda: keeper.keyring.expires.timestamp() if keeper.keyring else 0.0)
        self._server: Server | None = None
        self._synced = False
        self._groups_error = ""
        self._program = Program(
            Server(
                [Address(settings.observe, "--observe")],
                health_routes(metrics, lambda: Readiness.waiting_for(self.waiting_for())),
            ),
            drain=self._drain,
            stop_limit_s=settings.drain_s + settings.finish_s + _CLEAN_UP_S,
        )
        self.stopping = self._program.stopping

    async def run(self) -> None:
        """Serve until told to stop."""
        self._read_groups()
        if self._groups_error:
            raise UnavailableError(self._groups_error)
        await self._program.run(self._work)

    async def _work(self) -> None:
        """The upkeep must not fail: without its watches or its certificates the program would go on with what it knew,
        so it ends with the error and kubelet starts it again."""
        try:
            await together(self._informers.run(), self._watch_groups(), self._begin())
        finally:
            if self._server is not None:
                await self._server.stop()

    async def _begin(self) -> None:
        """Load the certificates and the first lists, wait for a cluster that does not answer yet, then listen."""
        while True:
            try:
                await self._keeper.look()
                break
            except BatonError as error:
                _LOG.warning("no certificate yet", error=str(error))
                await asyncio.sleep(1.0)
        await self._cluster.synced()
        self._synced = True
        endpoints = self._webhooks.endpoints()
        server = Server(
            [Address(self._settings.listen, "--listen")],
            [web.post(path, self._handler(path, endpoint)) for path, endpoint in endpoints.items()],
            tls=self._keeper.context,
            largest_body_bytes=_LARGEST_REVIEW,
            finish_s=self._settings.finish_s,
        )
        await server.start()
        self._server = server
        _LOG.info("answering", listen=self._settings.listen, webhooks=len(endpoints))
        await self._keeper.run()

    async def _drain(self) -> None:
        """Go on answering until every API server knows that this replica leaves; before it answers there is no need."""
        if self._server is not None:
            await asyncio.sleep(self._settings.drain_s)
            await self._server.stop()

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

    def waiting_for(self) -> str:
        """What keeps this replica from answering; empty when nothing does."""
        if self.stopping.is_set():
            return "stopping"
        if self._keeper.keyring is None:
            return "no certificate yet"
        if not self._synced:
            return f"waiting for {', '.join(self._informers.waiting())}"
        if self._server is None:
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
                _LOG.error("resource groups not read; the previous ones stay in effect", error=str(error))
            self._groups_error = str(error)

    async def _watch_groups(self) -> None:
        """Read the resource groups again when their file changes. In a ConfigMap it is a link that gets replaced."""
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
    """The content of a file; empty while it is being replaced, or is not readable."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
