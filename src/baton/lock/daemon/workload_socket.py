"""The socket for workloads: framing, and the limits that keep one peer from disturbing the others.

A connection reads a few frames and then yields to the other connections, so a flood delays only its sender. A peer that
does not read its answers is disconnected when a small buffer is full.
"""

import asyncio
import itertools
import os
import socket
from collections import deque
from pathlib import Path
from typing import Protocol, cast

import structlog

from baton.lock import wire
from baton.lock.core.events import ClientId
from baton.lock.daemon.listener import Listener
from baton.lock.peers import Peer, peer_of
from baton.model.ids import CardId

log = structlog.get_logger("baton.lock")

FRAMES_PER_TURN = 16
FRAMES_PER_SECOND = 25_000
UNKNOWN_FRAMES = 64
WRITE_BUFFER_BYTES = 128 * wire.FRAME_BYTES
_FLUSH_S = 1.0


class Session(Protocol):
    """What connections need from the sessions."""

    def received(self, connection: "Connection", raw: bytes) -> None:
        """One whole frame arrived."""

    def lost(self, connection: "Connection") -> None:
        """The peer disconnected, or the daemon closed the connection."""


class Connection(asyncio.Protocol):
    """One workload's connection. `card` is set on a socket that belongs to one card."""

    __slots__ = (
        "_backlog",
        "_loop",
        "_second",
        "_seen",
        "_session",
        "_splitter",
        "_transport",
        "card",
        "client",
        "closed",
        "extended",
        "peer",
        "strange",
    )

    def __init__(self, session: Session, peer: Peer, card: CardId | None, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = peer
        self.card = card
        self.client: ClientId | None = None
        self.extended = False
        self.strange = 0
        self.closed = False
        self._session = session
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._splitter = wire.Splitter()
        self._backlog: deque[bytes] | None = None
        self._second = 0
        self._seen = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=0)

    def data_received(self, data: bytes) -> None:
        frames = self._splitter.feed(data)
        for raw in itertools.islice(frames, FRAMES_PER_TURN):
            if self.closed:
                return
            self._count()
            self._session.received(self, raw)
        rest = deque(frames)
        if rest and not self.closed and self._transport is not None:
            self._backlog = rest
            self._transport.pause_reading()
            self._loop.call_soon(self._continue)
        else:
            self._throttle()

    def _continue(self) -> None:
        backlog = self._backlog
        for _ in range(FRAMES_PER_TURN):
            if self.closed or not backlog:
                break
            self._count()
            self._session.received(self, backlog.popleft())
        if self.closed or self._transport is None:
            return
        if backlog:
            self._loop.call_soon(self._continue)
            return
        self._backlog = None
        if not self._throttle():
            self._transport.resume_reading()

    def _count(self) -> None:
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._seen = second, 0
        self._seen += 1

    def _throttle(self) -> bool:
        if self._seen <= FRAMES_PER_SECOND or self.closed or self._transport is None:
            return False
        log.warning("flood", pid=self.peer.pid, client=self.client, frames=self._seen)
        self._seen = 0
        self._transport.pause_reading()
        self._loop.call_at(self._second + 1, self._relent)
        return True

    def _relent(self) -> None:
        if not self.closed and self._transport is not None:
            self._transport.resume_reading()

    def send(self, frames: bytes) -> None:
        """Send one frame, or several that belong together, in one write."""
        if not self.closed and self._transport is not None:
            self._transport.write(frames)

    def send_with(self, frame: bytes, fd: int) -> bool:
        """Send one frame with a descriptor attached; False, with nothing sent, if that is not possible at once.

        A transport cannot send descriptors, so this bypasses it, which is safe only while it has nothing to send.
        """
        if self.closed or self._transport is None or self._transport.get_write_buffer_size():
            return False
        try:
            with socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno())) as direct:
                sent = socket.send_fds(direct, [frame], [fd], socket.MSG_NOSIGNAL)
        except OSError:
            return False
        if sent < len(frame):
            self.pause_writing()
        return sent == len(frame)

    def pause_writing(self) -> None:
        self.close("the peer does not read its messages")
        self.abort()

    def abort(self) -> None:
        """End the connection and discard what has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: str, level: str = "warning") -> None:
        """Close the connection; what was sent before is still delivered if the peer reads it soon."""
        if self.closed:
            return
        self.closed = True
        getattr(log, level)("connection closed", reason=reason, pid=self.peer.pid, client=self.client)
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(_FLUSH_S, self._transport.abort)
        self._session.lost(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        if not self.closed:
            self.closed = True
            self._session.lost(self)
        self._transport = None


def workload_listener(path: Path, session: Session, card: CardId | None, loop: asyncio.AbstractEventLoop) -> Listener:
    """A socket to which every user may connect (0722, as nvshare's), in a directory that other users cannot list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o711)
    return Listener(path, 0o722, lambda sock: Connection(session, peer_of(sock), card, loop), loop)
