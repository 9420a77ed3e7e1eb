"""Accepting connections on a unix socket, also when file descriptors run out.

While there are no descriptors, accepting pauses and is retried; existing connections are not affected.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

log = structlog.get_logger("baton.lock")

_ACCEPTS_PER_TURN = 64
_BACKLOG = 4096
_ACCEPT_RETRY_S = 0.25
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Factory = Callable[[socket.socket], asyncio.Protocol]


class Listener:
    """A listening unix socket that survives a shortage of descriptors."""

    def __init__(self, path: Path, mode: int, factory: Factory, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._factory = factory
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._short = False
        # Bound under another name and renamed, so that there is always a socket at the path, and one that an earlier
        # daemon left behind needs no unlinking. Through a descriptor, because the path of a card may be too long.
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
                # On a full disk there is room for only one of them.
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
