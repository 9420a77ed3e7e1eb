"""Connections that a closed session has forgotten end, even if the other side is silent."""

import asyncio
import socket
import ssl
from pathlib import Path

import aiohttp
from aiohttp import web

from baton.kube.sockets import Sockets
from testbed.certificates import Authority
from testbed.faults import Proxy


async def stream(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"first")
    await asyncio.Event().wait()
    return answer


async def test_a_stream_that_was_closed_on_a_dead_wire_is_ended(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(*authority.issue("server", "server", hosts=["127.0.0.1"]))
    app = web.Application()
    app.router.add_get("/", stream)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=theirs).start()

    sockets, made = Sockets(), list[socket.socket]()

    def make(address: aiohttp.AddrInfoType) -> socket.socket:
        made.append(sockets.make(address))
        return made[-1]

    ours = ssl.create_default_context(cafile=authority.certificate)
    with Proxy(runner.addresses[0][:2]) as proxy:
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ours, socket_factory=make))
        answer = await session.get("https://{}:{}/".format(*proxy.address))
        assert await answer.content.readany() == b"first"
        await asyncio.to_thread(proxy.mute)
        answer.close()
        await session.close()
        assert [one.fileno() != -1 for one in made] == [True], "the session ends it by itself: nothing is left to test"
        await sockets.end()
        assert [one.fileno() for one in made] == [-1]
    await runner.cleanup()


async def test_nothing_is_left_to_do_for_a_session_without_connections() -> None:
    await Sockets().end()
