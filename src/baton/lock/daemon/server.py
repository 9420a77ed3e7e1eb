"""Sockets for workloads: accepting, framing, and the bounds that keep one peer from disturbing the others.

Every connection is read a few frames at a time and then waits its turn, so a flood delays only its author. A peer
that does not read its answers is closed once a small buffer is full. When descriptors run out, accepting
pauses and is tried again; those who are connected notice nothing.
"""

import asyncio
import errno
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import structlog

from baton.lock import wire
from baton.lock.core.events import ClientId
from baton.lock.peers import Peer, peer_of
from baton.model.ids import CardId

log = structlog.get_logger()

FRAMES_PER_TURN = 16
FRAMES_PER_SECOND = 25_000
UNKNOWN_FRAMES = 64
WRITE_BUFFER_BYTES = 128 * wire.FRAME_BYTES
_ACCEPTS_PER_TURN = 64
_FLUSH_S = 1.0
_BACKLOG = 4096
_ACCEPT_RETRY_S = 0.25
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Session(Protocol):
    """What stands behind the connections."""

    def received(self, connection: "Connection", raw: bytes) -> None:
        """One whole frame arrived."""

    def lost(self, connection: "Connection") -> None:
        """The peer is gone, or was closed by us."""


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
        """Send one frame, or several that belong together; they always go out in one write."""
        if not self.closed and self._transport is not None:
            self._transport.write(frames)

    def send_with(self, frame: bytes, fd: int) -> bool:
        """Send one frame with a descriptor attached; False, and nothing sent, when that cannot be done at once.

        A transport knows nothing of descriptors, so this goes past it, and may only do so while it has nothing to send.
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
        self.close("does not read what it is sent")
        self.abort()

    def abort(self) -> None:
        """End the connection whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: str, level: str = "warning") -> None:
        """Close for a reason of ours; what was sent before is still delivered if the peer reads it soon."""
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


Factory = Callable[[socket.socket], asyncio.Protocol]


class Listener:
    """A listening unix socket that survives running out of descriptors."""

    def __init__(self, path: Path, mode: int, factory: Factory, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._factory = factory
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._short = False
        # Bound under another name and renamed: there is never a moment without a socket at the path, and a
        # leftover of an earlier daemon needs no unlinking. Through a descriptor, because a card's path may be too long.
        fresh = path.with_name(f".{path.name}.new")
        fresh.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                self._socket.bind(f"/proc/self/fd/{directory}/{fresh.name}")
            except OSError as error:
                if error.errno != errno.ENOSPC or not path.exists():
                    raise
                # A full disk has room for one of them only.
                path.unlink()
                self._socket.bind(f"/proc/self/fd/{directory}/{fresh.name}")
            fresh.chmod(mode)
            self._socket.listen(_BACKLOG)
            fresh.replace(path)
        except OSError:
            self._socket.close()
            raise
        finally:
            os.close(directory)
        loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SCARCE:
                    log.warning("accept failed", error=str(error), socket=str(self.path))
                self._pause(error)
                return
            self._short = False
            connection.setblocking(False)
            try:
                protocol = self._factory(connection)
            except OSError as error:
                log.warning("connection refused", error=str(error), socket=str(self.path))
                connection.close()
                continue
            task = self._loop.create_task(self._attach(protocol, connection))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    async def _attach(self, protocol: asyncio.Protocol, connection: socket.socket) -> None:
        await self._loop.connect_accepted_socket(lambda: protocol, connection)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("connection refused", error=str(error), socket=str(self.path))

    def _pause(self, error: OSError) -> None:
        if not self._short:
            self._short = True
            log.warning("accepting paused", error=str(error), retry_s=_ACCEPT_RETRY_S, socket=str(self.path))
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(_ACCEPT_RETRY_S, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self, *, unlink: bool) -> None:
        """Stop listening."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        if unlink:
            self.path.unlink(missing_ok=True)


def workload_listener(path: Path, session: Session, card: CardId | None, loop: asyncio.AbstractEventLoop) -> Listener:
    """A socket that every user may connect to (0722, as nvshare's), in a directory that nobody else may list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o711)
    return Listener(path, 0o722, lambda sock: Connection(session, peer_of(sock), card, loop), loop)
