"""The HTTP side of a daemon: `/healthz`, `/readyz`, `/metrics`.

Alive means that the event loop answers. Ready is a sentence that the program gives, empty when there is nothing to wait
for. Metrics are rendered in a thread, because a page of thousands of series would hold the loop up.
"""

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from baton.errors import UnavailableError, UsageError


class Address:
    """Where to listen: `HOST:PORT`, `:PORT` for all addresses, port 0 for any free one."""

    def __init__(self, text: str) -> None:
        host, _, port = text.rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            raise UsageError(f"the address to listen on is {text!r}, expected HOST:PORT or :PORT")
        self.host = host.strip("[]") or None
        self.port = int(port)


class Serving:
    """One listener; `ready` returns what is still waited for, or nothing."""

    def __init__(self, address: Address, registry: CollectorRegistry, ready: Callable[[], str]) -> None:
        self._address = address
        self._registry = registry
        self._ready = ready
        self._runner: web.AppRunner | None = None
        self.routes: list[web.RouteDef] = [
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
        ]
        """Add to it before `start`."""

    async def start(self) -> None:
        """Listen; a port that is taken is an error that says so."""
        application = web.Application()
        application.add_routes(self.routes)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        except OSError as error:
            await self.stop()
            where = f"{self._address.host or ''}:{self._address.port}"
            raise UnavailableError(f"cannot listen on {where}: {error.strerror}") from None

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Where it listens now."""
        return [tuple(address[:2]) for address in self._runner.addresses] if self._runner is not None else []

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        waiting = self._ready()
        return web.Response(status=503 if waiting else 200, text=f"{waiting or 'ok'}\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
