"""An API server in bad weather: a proxy that refuses, throttles and loses answers to bind requests.

A refusal may come before the request was carried out or after: the client cannot tell, and must find out. In good
weather it can hold the binds up after so many, which makes the middle of a gang last.
"""

import asyncio
import contextlib
import json
import random
import threading
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from baton.kube import kubeconfig
from baton.kube.sockets import Sockets

_DROPPED = frozenset({"host", "content-length", "transfer-encoding", "connection"})


class Storm:
    """Runs in a thread of its own; a context manager. `kubeconfig` leads through it."""

    def __init__(self, target: Path, directory: Path, *, raging: bool = True, seed: int = 7) -> None:
        self._access = kubeconfig.load([target])
        self._chance = random.Random(seed)
        self._raging = raging
        self.count: dict[str, int] = {}
        self.holds = False
        """Whether a bind waits for `let_go`."""
        self._binds_left: int | None = None
        self._let_go = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="storm", daemon=True)
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(120)
        self.kubeconfig = directory / "storm.kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "storm",
                    "clusters": [{"name": "storm", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                    "users": [{"name": "storm", "user": {}}],
                    "contexts": [{"name": "storm", "context": {"cluster": "storm", "user": "storm"}}],
                }
            )
        )

    def __enter__(self) -> "Storm":
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> int:
        context = self._access.ssl_context()
        self._sockets = Sockets()
        connector = aiohttp.TCPConnector(
            limit=0, ssl=context if context is not None else True, socket_factory=self._sockets.make
        )
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def _close(self) -> None:
        await self._runner.cleanup()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:  # those whose client was gone before: the runner has forgotten them
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._session.close()
        await self._sockets.end()

    def hold_after(self, binds: int) -> None:
        """Let so many binds through and keep the next one waiting."""
        self._let_go.clear()
        self._binds_left = binds

    def let_go(self) -> None:
        """Let all binds through from now on; one that was held is never answered."""
        self._binds_left, self.holds = None, False
        self._loop.call_soon_threadsafe(self._let_go.set)

    async def _may_pass(self) -> bool:
        if self._binds_left is None:
            return True
        if self._binds_left > 0:
            self._binds_left -= 1
            return True
        self.holds = True
        await self._let_go.wait()
        return False

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        binds = request.method == "POST" and request.path.endswith("/binding")
        if binds and not await self._may_pass():
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        weather = self._weather() if binds else "calm"
        self.count[weather] = self.count.get(weather, 0) + 1
        if weather == "conflict":
            return _refusal(409, "Conflict")
        if weather == "throttle":
            return _refusal(429, "TooManyRequests", {"Retry-After": "1"})
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _DROPPED}
        url = f"{self._access.server}{request.rel_url}"
        body = await request.read()
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, headers=headers, data=body or None, timeout=timeout
        ) as answer:
            if weather == "lost":
                await answer.read()
                assert request.transport is not None
                request.transport.abort()
                return web.Response(status=500)
            if weather == "late-conflict":
                await answer.read()
                return _refusal(409, "Conflict")
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in _DROPPED}
            response = web.StreamResponse(status=answer.status, headers=kept)
            with contextlib.suppress(ConnectionError):  # who asked may be dead
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response

    def _weather(self) -> str:
        if not self._raging:
            return "calm"
        words = ("conflict", "throttle", "lost", "late-conflict", "calm")
        return self._chance.choices(words, (2, 2, 2, 2, 3))[0]


def _refusal(code: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return web.json_response({**status, "reason": reason, "message": "bad weather"}, status=code, headers=headers)
