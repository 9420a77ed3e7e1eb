"""The control socket: requests in, answers and status out, for peers that may control the daemon.

`baton.lock.control` describes the protocol. A peer that may not control the daemon gets one sentence, and its
connection is closed.
"""

import asyncio
from pathlib import Path
from typing import Protocol, cast

import msgspec
import structlog

from baton.errors import BatonError
from baton.lock.control import (
    MAX_LINE_BYTES,
    WRITE_BUFFER_BYTES,
    Answer,
    Choose,
    Chosen,
    Done,
    DropRule,
    Park,
    Request,
    SetCard,
    SetClient,
    SetRule,
    StatusRequest,
    Subscribe,
)
from baton.lock.daemon.listener import Listener
from baton.lock.peers import Peer, Rights, peer_of
from baton.lock.status import Status

log = structlog.get_logger("baton.lock")

_LONGEST_INTERVAL_MS = 86_400_000
"""Between two status lines."""


class Controller(Protocol):
    """What the control socket needs from the daemon."""

    rights: Rights

    def status(self) -> Status:
        """The complete status."""

    def control(self, request: SetCard | SetClient | SetRule | DropRule | Park) -> Done:
        """Carry out a command; an error is a BatonError."""

    def choose(self, request: Choose) -> Chosen:
        """GPUs for a run that starts now; a BatonError if there are not enough."""

    def forget(self, run: str) -> None:
        """A run for which GPUs were chosen has ended."""


class ControlConnection(asyncio.Protocol):
    """The connection of one control client."""

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
        # Not when the peer connects: if its request were still unread, it would see a reset instead of the reason.
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
                self._subscribe(min(max(request.every_ms, 20), _LONGEST_INTERVAL_MS) / 1000)
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
    """The control socket. Credentials decide who may use it; the file mode only stops other users from connecting."""
    return Listener(path, mode, lambda sock: ControlConnection(controller, peer_of(sock), loop), loop)
