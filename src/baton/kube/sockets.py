"""The sockets of a client session, so that none outlives the session.

Closing a TLS connection waits up to half a minute for the other side to close too. aiohttp closes connections in this
way when it does not reuse them, such as after an ended stream or a cancelled request, and then forgets them: closing
the session does not end them.
"""

import asyncio
import contextlib
import socket
import weakref

import aiohttp

_TURNS = 100
"""Loop iterations in which closed connections finish: four, or more if much is left to read."""


class Sockets:
    """Creates a session's sockets (`socket_factory` of a connector) and ends the remaining ones."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    async def end(self) -> None:
        """End all remaining sockets; call it after closing the session."""
        left = [one for one in self._made if one.fileno() != -1]
        for one in left:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(_TURNS):
            if all(one.fileno() == -1 for one in left):
                return
            await asyncio.sleep(0)
