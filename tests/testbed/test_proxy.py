"""The proxy between a client and a server: it passes, delays, mutes, cuts and heals."""

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from testbed.faults import Proxy


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.request.sendall(data)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with Proxy(server.server_address) as made:  # type: ignore[arg-type]  # typeshed's address is wider than ours
        yield made
    server.shutdown()
    thread.join()
    server.server_close()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=120)


def echo(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    answer = b""
    while len(answer) < len(data):
        chunk = client.recv(65536)
        if not chunk:
            raise ConnectionResetError
        answer += chunk
    return answer


def test_bytes_pass_unchanged_and_in_order(proxy: Proxy) -> None:
    data = bytes(range(256)) * 4096
    with connect(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        answer = b""
        while len(answer) < len(data):
            answer += client.recv(65536)
        sender.join()
    assert answer == data


def test_a_half_close_is_forwarded(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert echo(client, b"last words") == b"last words"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_a_delay_holds_every_chunk_back_in_both_directions(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert echo(client, b"quick") == b"quick"
        proxy.delay(0.2)
        began = time.monotonic()
        assert echo(client, b"slow") == b"slow"
        assert time.monotonic() - began >= 0.4
        proxy.heal()
        assert echo(client, b"quick again") == b"quick again"


def test_a_muted_wire_keeps_the_connection_and_delivers_when_healed(proxy: Proxy) -> None:
    with connect(proxy) as client:
        echo(client, b"before")
        proxy.mute()
        client.sendall(b"held")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(120)
        proxy.heal()
        assert client.recv(4) == b"held"


def test_a_cut_resets_connections_and_refuses_new_ones_until_healed(proxy: Proxy) -> None:
    with connect(proxy) as client:
        echo(client, b"before")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            echo(client, b"after")
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
    proxy.heal()
    with connect(proxy) as client:
        assert echo(client, b"again") == b"again"


def test_a_cut_reaches_the_connection_that_was_accepted_just_before_it(proxy: Proxy) -> None:
    for _ in range(300):
        with connect(proxy) as client:
            proxy.cut()
            proxy.heal()
            with pytest.raises(OSError, match=r"reset|Broken pipe|^$"):
                echo(client, b"hello")
