"""The control protocol and its clients: JSON lines over a unix socket, for root, the daemon's user and one group.

A request is one line, an object with `op`; the answer is one line, `{"ok": true, "result": …}` or
`{"ok": false, "error": "one sentence"}`. `subscribe` is answered with one status line after another until the client
disconnects. `baton.lock.daemon.control_socket` is the daemon's side.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from baton.errors import BatonError, UnavailableError
from baton.lock.config import Rule
from baton.lock.status import Status

T = TypeVar("T")

MAX_LINE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 8 * 1024 * 1024
TIMEOUT_S = 5.0
_CHUNK_BYTES = 256 * 1024


class StatusRequest(msgspec.Struct, frozen=True, tag_field="op", tag="status", forbid_unknown_fields=True):
    """Send the status once."""


class Subscribe(msgspec.Struct, frozen=True, tag_field="op", tag="subscribe", forbid_unknown_fields=True):
    """Send the status repeatedly."""

    every_ms: int = 500


class SetCard(msgspec.Struct, frozen=True, tag_field="op", tag="set-gpu", forbid_unknown_fields=True):
    """Change a card; an empty `gpu` means all cards. Omitted fields stay as they are."""

    gpu: str = ""
    quantum: float | Literal["auto"] | None = None
    mode: Literal["auto", "serial", "concurrent"] | None = None
    on: bool | None = None


class SetClient(msgspec.Struct, frozen=True, tag_field="op", tag="set-client", forbid_unknown_fields=True):
    """Change the terms of clients. Omitted fields stay as they are."""

    client: str
    weight: float | None = None
    priority: Literal["low", "normal", "high"] | None = None
    cores_percent: float | None = None
    memory_bytes: int | None = None


class SetRule(msgspec.Struct, frozen=True, tag_field="op", tag="set-rule", forbid_unknown_fields=True):
    """Put a rule before the others, replacing one with the same selectors; it applies to current and future clients."""

    rule: Rule


class DropRule(msgspec.Struct, frozen=True, tag_field="op", tag="drop-rule", forbid_unknown_fields=True):
    """Remove the rule with these selectors."""

    rule: Rule


class Park(msgspec.Struct, frozen=True, tag_field="op", tag="park", forbid_unknown_fields=True):
    """Park or unpark clients."""

    client: str
    parked: bool = True


class Choose(msgspec.Struct, frozen=True, tag_field="op", tag="choose", forbid_unknown_fields=True):
    """Choose GPUs for a run that starts now; they count as used until it registers or this connection ends."""

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
    """One line from the daemon."""

    ok: bool
    result: Any = None
    error: str = ""


def _result(line: bytes, kind: type[T]) -> T:
    try:
        answer = msgspec.json.decode(line, type=Answer)
        if not answer.ok:
            raise BatonError(answer.error)
        return msgspec.convert(answer.result, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BatonError(
            f"the lock daemon and this command have different versions: {error}; restart the daemon"
        ) from None


class ControlClient:
    """A blocking client; every call opens a new connection."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def status(self) -> Status:
        """The current status."""
        return _result(self._ask(StatusRequest()), Status)

    def send(self, request: SetCard | SetClient | SetRule | DropRule | Park) -> Done:
        """Carry out one command."""
        return _result(self._ask(request), Done)

    @contextlib.contextmanager
    def choosing(self, run: str, gpus: int) -> Iterator[list[str]]:
        """The GPUs for a run that starts now; inside the context they count as used even before the run registers."""
        with self._connect() as connection:
            yield _result(self._ask_on(connection, Choose(run, gpus)), Chosen).gpus

    def follow(self, every_ms: int = 500) -> Generator[Status, None, None]:
        """The status repeatedly, until the caller closes the generator or the daemon stops."""
        with self._connect() as connection, connection.makefile("rb") as lines:
            connection.settimeout(self._timeout_s + every_ms / 1000)
            try:
                connection.sendall(msgspec.json.encode(Subscribe(every_ms)) + b"\n")
                # A daemon that is killed while it writes leaves an incomplete line.
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
    """The same client for an event loop."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    async def status(self) -> Status:
        """The current status."""
        return _result(await self._ask(StatusRequest()), Status)

    async def send(self, request: SetCard | SetClient | SetRule | DropRule | Park) -> Done:
        """Carry out one command."""
        return _result(await self._ask(request), Done)

    async def follow(self, every_ms: int = 500) -> AsyncGenerator[Status, None]:
        """The status repeatedly, until the caller closes the generator or the daemon stops."""
        reader, writer = await asyncio.open_unix_connection(str(self._path), limit=WRITE_BUFFER_BYTES)
        try:
            writer.write(msgspec.json.encode(Subscribe(every_ms)) + b"\n")
            while (line := await reader.readline()).endswith(b"\n"):
                yield _result(line, Status)
        finally:
            await _close(writer)

    async def _ask(self, request: Request) -> bytes:
        """Use a bare socket: the request is sent before the first wait, so the caller can work until the answer."""
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
        f"no lock daemon answers at {str(path)!r} ({reason}); "
        "start one with `baton lockd`, or name its directory with --socket-dir"
    )
