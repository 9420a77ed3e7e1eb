"""The HTTP server of a program, with `/healthz`, `/readyz` and `/metrics` for all of them.

Alive means that the event loop answers. Ready means that the program waits for nothing: what it waits for is the body
of the answer otherwise.
"""

import contextlib
import os
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from baton.errors import UnavailableError, UsageError
from baton.observe.metrics import Metrics

_FINISH_S = 5.0


class Address:
    """Where to listen: `HOST:PORT`, `:PORT` for all addresses, port 0 for any free one."""

    def __init__(self, text: str, option: str = "") -> None:
        host, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise UsageError(f"{option or 'the address to listen on'} is {text!r}, expected HOST:PORT or :PORT")
        self.host = host.strip("[]") or None
        self.port = int(port)
        self._option = option

    def __str__(self) -> str:
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host
        return f"{host or ''}:{self.port}"

    def site(self, runner: web.AppRunner, tls: ssl.SSLContext | None) -> web.BaseSite:
        return web.TCPSite(runner, self.host, self.port, ssl_context=tls)

    @property
    def remedy(self) -> str:
        """What to do when it cannot be had."""
        return f"choose another address with {self._option}" if self._option else "choose another address"


class UnixSocket(NamedTuple):
    """A path to listen on; a socket that an earlier process left there is replaced."""

    path: Path
    option: str = ""

    def __str__(self) -> str:
        return str(self.path)

    def site(self, runner: web.AppRunner, tls: ssl.SSLContext | None) -> web.BaseSite:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        return web.UnixSite(runner, str(self.path), ssl_context=tls)

    @property
    def remedy(self) -> str:
        return f"choose another path with {self.option}" if self.option else "choose another path"


class Readiness(NamedTuple):
    """Whether a program does its part, and the sentence that `/readyz` answers."""

    ready: bool
    sentence: str

    @classmethod
    def waiting_for(cls, what: str) -> "Readiness":
        """Ready when there is nothing to wait for."""
        return cls(not what, what or "ok")


def health_routes(metrics: Metrics, readiness: Callable[[], Readiness]) -> list[web.RouteDef]:
    """The routes that every program serves."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        ready, sentence = readiness()
        return web.Response(status=200 if ready else 503, text=f"{sentence}\n")

    async def page(_request: web.Request) -> web.Response:
        return web.Response(body=await metrics.page(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", page)]


class Server:
    """The same routes on one address or several."""

    def __init__(
        self,
        addresses: Sequence[Address | UnixSocket],
        routes: Iterable[web.RouteDef],
        *,
        tls: ssl.SSLContext | None = None,
        largest_body_bytes: int = 1 << 20,
        finish_s: float = _FINISH_S,
    ) -> None:
        """`finish_s` is how long requests may still take when the server stops."""
        self._wanted = addresses
        self._routes = list(routes)
        self._tls = tls
        self._largest_body_bytes = largest_body_bytes
        self._finish_s = finish_s
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen, or raise an error that names the address that cannot be used."""
        application = web.Application(client_max_size=self._largest_body_bytes)
        application.add_routes(self._routes)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=self._finish_s)
        await runner.setup()
        for address in self._wanted:
            try:
                await address.site(runner, self._tls).start()
            except OSError as error:
                await runner.cleanup()
                raise UnavailableError(f"cannot listen on {address}: {_reason(error)}; {address.remedy}") from None
        self._runner = runner

    async def stop(self) -> None:
        """Stop listening, and let requests that are being answered finish."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @property
    def listening(self) -> bool:
        return self._runner is not None

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """The hosts and ports that it listens on now."""
        if self._runner is None:
            return []
        return [tuple(address[:2]) for address in self._runner.addresses if not isinstance(address, str)]


def _reason(error: OSError) -> str:
    """In the system's words, as asyncio repeats the address. A host that is not found has an error number below 0."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)
