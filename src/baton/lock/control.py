"""The control socket: JSON lines, for root, the daemon's user and the configured group.

A request is one line, an object with `op`; the answer is one line, `{"ok": true, "result": …}` or
`{"ok": false, "error": "one sentence"}`. `subscribe` answers with one status line after the other until the peer
goes. A peer that may not control the daemon gets one sentence and is closed.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec
import structlog

from baton.errors import BatonError, UnavailableError
from baton.lock.config import Rule
from baton.lock.daemon.server import Listener
from baton.lock.peers import Peer, Rights, peer_of
from baton.lock.status import Status

log = structlog.get_logger()

T = TypeVar("T")

MAX_LINE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 8 * 1024 * 1024
TIMEOUT_S = 5.0
_CHUNK_BYTES = 256 * 1024
_LONGEST_MS = 86_400_000
"""Between two status lines."""


class StatusRequest(msgspec.Struct, frozen=True, tag_field="op", tag="status", forbid_unknown_fields=True):
    """Everything, once."""


class Subscribe(msgspec.Struct, frozen=True, tag_field="op", tag="subscribe", forbid_unknown_fields=True):
    """Everything, again and again."""

    every_ms: int = 500


class SetCard(msgspec.Struct, frozen=True, tag_field="op", tag="set-gpu", forbid_unknown_fields=True):
    """Change a card; `gpu` empty means all, a field left out stays."""

    gpu: str = ""
    quantum: float | Literal["auto"] | None = None
    mode: Literal["auto", "serial", "concurrent"] | None = None
    on: bool | None = None


class SetClient(msgspec.Struct, frozen=True, tag_field="op", tag="set-client", forbid_unknown_fields=True):
    """Change the terms of clients; a field left out stays."""

    client: str
    weight: float | None = None
    priority: Literal["low", "normal", "high"] | None = None
    cores_percent: float | None = None
    memory_bytes: int | None = None


class SetRule(msgspec.Struct, frozen=True, tag_field="op", tag="set-rule", forbid_unknown_fields=True):
    """Put a rule before the others, replacing one with the same selectors; it applies to clients here and to come."""

    rule: Rule


class DropRule(msgspec.Struct, frozen=True, tag_field="op", tag="drop-rule", forbid_unknown_fields=True):
    """Forget the rule with these selectors."""

    rule: Rule


class Park(msgspec.Struct, frozen=True, tag_field="op", tag="park", forbid_unknown_fields=True):
    """Park or unpark clients."""

    client: str
    parked: bool = True


class Choose(msgspec.Struct, frozen=True, tag_field="op", tag="choose", forbid_unknown_fields=True):
    """Choose GPUs for a run that starts now; it is counted there until it registers or this connection ends."""

    run: str
    gpus: int = 1


Request = StatusRequest | Subscribe | SetCard | SetClient | SetRule | DropRule | Park | Choose


class Done(msgspec.Struct, frozen=True):
    """What a command changed: the ids of the cards or clients."""

    changed: list[str]


class Chosen(msgspec.Struct, frozen=True):
    """The GPUs of a run, by UUID."""

    gpus: list[str]


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the daemon's."""

    ok: bool
    result: Any = None
    error: str = ""


class Controller(Protocol):
    """What the daemon offers to those who control it."""

    rights: Rights

    def status(self) -> Status:
        """Everything."""

    def control(self, request: SetCard | SetClient | SetRule | DropRule | Park) -> Done:
        """Carry out a command; an error is a BatonError."""

    def choose(self, request: Choose) -> Chosen:
        """GPUs for a run that starts now; more than there are is a BatonError."""

    def forget(self, run: str) -> None:
        """A run for which GPUs were chosen has ended."""


class ControlConnection(asyncio.Protocol):
    """One control client."""

    def __init__(self, controller: Controller, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        self._controller = controller
        self._peer = peer
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._stream: asyncio.TimerHandle | None = None
        self._runs: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        # Not when it connects: closed before its request was read, it would see the reset instead of the reason.
        if not self._controller.rights.may_control(self._peer):
            log.warning("control refused", pid=self._peer.pid, uid=self._peer.uid)
            self._refuse("only root, the daemon's own user and its control group may control the lock daemon")
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if line.strip() and self._transport is not None and not self._transport.is_closing():
                self._handle(line)
        if len(self._buffer) > MAX_LINE_BYTES:
            self._refuse(f"a request is longer than {MAX_LINE_BYTES} bytes")

    def _handle(self, line: bytes) -> None:
        try:
            request = msgspec.json.decode(line, type=Request)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._send(Answer(False, error=f"not a request: {error}"))
            return
        try:
            if isinstance(request, StatusRequest):
                self._send(Answer(True, self._controller.status()))
            elif isinstance(request, Subscribe):
                self._subscribe(min(max(request.every_ms, 20), _LONGEST_MS) / 1000)
            elif isinstance(request, Choose):
                self._send(Answer(True, self._controller.choose(request)))
                self._runs.add(request.run)
            else:
                self._send(Answer(True, self._controller.control(request)))
        except BatonError as error:
            self._send(Answer(False, error=str(error)))

    def _subscribe(self, every_s: float) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._send(Answer(True, self._controller.status()))
        self._stream = self._loop.call_later(every_s, self._subscribe, every_s)

    def _send(self, answer: Answer) -> None:
        if self._transport is not None:
            self._transport.write(msgspec.json.encode(answer) + b"\n")

    def _refuse(self, reason: str) -> None:
        self._send(Answer(False, error=reason))
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        if self._stream is not None:
            self._stream.cancel()
        for run in self._runs:
            self._controller.forget(run)
        self._transport = None


def control_listener(path: Path, controller: Controller, mode: int, loop: asyncio.AbstractEventLoop) -> Listener:
    """The control socket; who may use it is decided by credentials, the file mode only keeps others from trying."""
    return Listener(path, mode, lambda sock: ControlConnection(controller, peer_of(sock), loop), loop)


def _result(line: bytes, kind: type[T]) -> T:
    try:
        answer = msgspec.json.decode(line, type=Answer)
        if not answer.ok:
            raise BatonError(answer.error)
        return msgspec.convert(answer.result, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BatonError(f"the lock daemon is of another version than this command: {error}; restart it") from None


class ControlClient:
    """Talks to a daemon, one request per call; every call opens a connection of its own."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def status(self) -> Status:
        """Everything, as of now."""
        return _result(self._ask(StatusRequest()), Status)

    def send(self, request: SetCard | SetClient | SetRule | DropRule | Park) -> Done:
        """Carry out one command."""
        return _result(self._ask(request), Done)

    @contextlib.contextmanager
    def choosing(self, run: str, gpus: int) -> Iterator[list[str]]:
        """The GPUs for a run that starts now; inside, it is counted there even before it registers."""
        with self._connect() as connection:
            yield _result(self._ask_on(connection, Choose(run, gpus)), Chosen).gpus

    def follow(self, every_ms: int = 500) -> Generator[Status, None, None]:
        """Status again and again, until the caller closes it or the daemon goes."""
        with self._connect() as connection, connection.makefile("rb") as lines:
            connection.settimeout(self._timeout_s + every_ms / 1000)
            try:
                connection.sendall(msgspec.json.encode(Subscribe(every_ms)) + b"\n")
                # A daemon that is killed while it writes leaves the beginning of a line.
                while (line := lines.readline()).endswith(b"\n"):
                    yield _result(line, Status)
            except OSError as error:
                raise unreachable(self._path, error) from error

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout_s)
        try:
            connection.connect(str(self._path))
        except OSError as error:
            connection.close()
            raise unreachable(self._path, error) from error
        return connection

    def _ask(self, request: Request) -> bytes:
        with self._connect() as connection:
            return self._ask_on(connection, request)

    def _ask_on(self, connection: socket.socket, request: Request) -> bytes:
        try:
            with connection.makefile("rb") as lines:
                connection.sendall(msgspec.json.encode(request) + b"\n")
                line = lines.readline()
        except OSError as error:
            raise unreachable(self._path, error) from error
        if not line.endswith(b"\n"):
            raise unreachable(self._path, OSError("it closed the connection"))
        return line


class AsyncControlClient:
    """The same for an event loop."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    async def status(self) -> Status:
        """Everything, as of now."""
        return _result(await self._ask(StatusRequest()), Status)

    async def send(self, request: SetCard | SetClient | SetRule | DropRule | Park) -> Done:
        """Carry out one command."""
        return _result(await self._ask(request), Done)

    async def follow(self, every_ms: int = 500) -> AsyncGenerator[Status, None]:
        """Status again and again, until the caller closes it or the daemon goes."""
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=WRITE_BUFFER_BYTES)
        try:
            writer.write(msgspec.json.encode(Subscribe(every_ms)) + b"\n")
            while (line := await reader.readline()).endswith(b"\n"):
                yield _result(line, Status)
        finally:
            await _close(writer)

    async def _ask(self, request: Request) -> bytes:
        """By a bare socket: the question is out before the first wait, and the caller can work until the answer."""
        loop = asyncio.get_running_loop()
        line = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                with socket.socket(socket.AF_UNIX) as daemon:
                    daemon.setblocking(False)
                    await loop.sock_connect(daemon, str(self._path))
                    await loop.sock_sendall(daemon, msgspec.json.encode(request) + b"\n")
                    while not line.endswith(b"\n") and (chunk := await loop.sock_recv(daemon, _CHUNK_BYTES)):
                        line += chunk
        except (OSError, TimeoutError) as error:
            raise unreachable(self._path, error) from error
        if not line.endswith(b"\n"):
            raise unreachable(self._path, OSError("it closed the connection"))
        return bytes(line)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def unreachable(path: Path, error: Exception) -> UnavailableError:
    """One sentence for a daemon that does not answer."""
    reason = getattr(error, "strerror", None) or str(error) or "no answer in time"
    return UnavailableError(
        f"no lock daemon answers at {str(path)!r} ({reason}); start one with `baton lockd`, or give its --socket-dir"
    )
