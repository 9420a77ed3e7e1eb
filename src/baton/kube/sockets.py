"""The sockets of a client session, so that none outlives it.

A connection over TLS is closed with a farewell of both sides, and waits half a minute for the other's. aiohttp closes
so whatever it does not keep, a stream that ended or a request that was given up, and forgets it: closing the session
does not end it, and nobody else can.
"""

import asyncio
import contextlib
import socket
import weakref

import aiohttp

_TURNS = 100
"""Turns of the loop in which connections that were shut come to their end: four, and more if much is left to read."""


class Sockets:
    """Makes a session's sockets (`socket_factory` of a connector) and ends those that are left of it."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    async def end(self) -> None:
        """To be called when the session is closed."""
        left = [one for one in self._made if one.fileno() != -1]
        for one in left:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(_TURNS):
            if all(one.fileno() == -1 for one in left):
                return
            await asyncio.sleep(0)
