"""Probes of flows against real sockets: every pod must answer, and silence counts as a failure after the limit."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from baton.controllers.flow.probes import holding
from baton.controllers.flow.rules import Check


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that is healthy on /up for requests with the right header, and broken on /down."""

    async def up(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers.get("X-Key") == "open" else 403)

    async def down(_request: web.Request) -> web.Response:
        return web.Response(status=500)

    application = web.Application()
    application.add_routes([web.get("/up", up), web.get("/down", down)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def test_a_check_succeeds_when_every_pod_answers(port: int) -> None:
    key = ("X-Key", "open")
    good = Check("job", "worker", port, "/up", key)
    tcp = Check("job", "worker", port)
    shut = Check("job", "worker", port, "/up")
    broken = Check("job", "worker", port, "/down", key)
    here = ["127.0.0.1"]
    assert await holding([(good, here), (tcp, here), (shut, here), (broken, here)]) == {good, tcp}


async def test_one_pod_that_does_not_answer_or_has_no_address_is_enough_to_wait(port: int) -> None:
    tcp = Check("job", "worker", port)
    # Nothing listens on 127.0.0.2: the server above uses 127.0.0.1 only.
    assert await holding([(tcp, ["127.0.0.1", "127.0.0.2"])]) == set()
    assert await holding([(tcp, ["127.0.0.1", ""])]) == set()
    assert await holding([(tcp, [])]) == set()


async def test_a_pod_that_accepts_and_stays_silent_does_not_block_the_controller() -> None:
    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    released = asyncio.Event()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await holding([(Check("job", "worker", port, "/"), ["127.0.0.1"])]) == set()
    released.set()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("number", [65_536, 2**40, -1])
async def test_an_impossible_port_counts_as_no_answer(number: int) -> None:
    """The schema of another installation may accept it, and the flow must not get stuck."""
    checks = [Check("job", "worker", number), Check("job", "worker", number, "/up")]
    assert await holding([(check, ["127.0.0.1"]) for check in checks]) == set()
