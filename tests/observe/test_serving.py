"""The HTTP side: probes are answered while a page of metrics is read and written, and addresses are checked."""

import asyncio
import socket
import threading
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import Collector

from baton.errors import UnavailableError, UsageError
from baton.observe import metrics as metrics_module
from baton.observe.metrics import Family, Metrics, Row
from baton.observe.serving import Address, Readiness, Server, UnixSocket, health_routes

_BUSY = Family("gauge", "busy", "How busy it is.", ("who",))


def server_of(metrics: Metrics, *addresses: Address | UnixSocket, missing: str = "") -> Server:
    return Server(addresses or [Address("127.0.0.1:0")], health_routes(metrics, lambda: Readiness.waiting_for(missing)))


async def text_of(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as response:
        return response.status, await response.text()


def session_of(server: Server) -> aiohttp.ClientSession:
    host, port = server.addresses[0]
    return aiohttp.ClientSession(f"http://{host}:{port}")


async def test_a_page_that_takes_long_to_write_does_not_delay_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written on the event loop, it would wait here for the answer that it delays."""
    answered = threading.Event()

    def slow(collector: Collector) -> bytes:
        assert answered.wait(60)
        return generate_latest(collector)

    monkeypatch.setattr(metrics_module, "generate_latest", slow)
    server = server_of(Metrics())
    await server.start()
    async with asyncio.timeout(60), session_of(server) as session:
        page = asyncio.create_task(text_of(session, "/metrics"))
        await asyncio.sleep(0.05)
        assert await text_of(session, "/healthz") == (200, "ok\n")
        answered.set()
        assert (await page)[0] == 200
    await server.stop()


async def test_rows_that_take_long_to_read_do_not_delay_the_probes() -> None:
    metrics, answered = Metrics(), asyncio.Event()

    async def rows() -> list[Row]:
        await answered.wait()
        return [Row(_BUSY, ("ann",), 0.5)]

    metrics.read((_BUSY,), rows)
    server = server_of(metrics)
    await server.start()
    async with asyncio.timeout(60), session_of(server) as session:
        page = asyncio.create_task(text_of(session, "/metrics"))
        await asyncio.sleep(0.05)
        assert await text_of(session, "/healthz") == (200, "ok\n")
        answered.set()
        assert 'busy{who="ann"} 0.5' in (await page)[1]
    await server.stop()


async def test_a_program_that_waits_is_not_ready_and_names_the_reason() -> None:
    server = server_of(Metrics(), missing="the first list of pods is not in yet")
    await server.start()
    async with session_of(server) as session:
        assert await text_of(session, "/readyz") == (503, "the first list of pods is not in yet\n")
    await server.stop()


async def test_a_socket_that_an_earlier_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as earlier:
        earlier.bind(str(path))
    server = server_of(Metrics(), UnixSocket(path), Address("127.0.0.1:0"))
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
        assert await text_of(session, "http://program/readyz") == (200, "ok\n")
    async with session_of(server) as session:
        assert await text_of(session, "/readyz") == (200, "ok\n")
    await server.stop()


async def test_when_one_address_cannot_be_had_the_others_are_given_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        server = server_of(Metrics(), Address(f"127.0.0.1:{other}"), Address(f"127.0.0.1:{port}", "--listen"))
        with pytest.raises(
            UnavailableError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use; .* --listen$"
        ):
            await server.start()
        assert not server.listening
        socket.create_server(("127.0.0.1", other)).close()


async def test_a_path_that_is_too_long_for_a_socket_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 40)
    with pytest.raises(UnavailableError, match=r"long: .*; choose another path with serving\.status-socket"):
        await server_of(Metrics(), UnixSocket(path, "serving.status-socket")).start()


@pytest.mark.parametrize("text", ["", "x", "localhost", "localhost:", "localhost:http", ":65536", ":²"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--listen is .*, expected HOST:PORT or :PORT"):
        Address(text, "--listen")


@pytest.mark.parametrize(
    ("text", "host", "port"), [(":80", None, 80), ("[::1]:80", "::1", 80), ("127.0.0.1:0", "127.0.0.1", 0)]
)
def test_an_address_is_written_as_it_was_read(text: str, host: str | None, port: int) -> None:
    address = Address(text)
    assert (address.host, address.port, str(address)) == (host, port, text)
