"""A TCP proxy that makes the connection between a client and a server slow, silent or broken.

Faults of processes (kill, stop, restart) are methods of `testbed.processes.Component`; this module covers the network
between them. The proxy runs in its own thread with its own event loop, so it works for any kind of test.
"""

import asyncio
import contextlib
import enum
import socket
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

_CHUNK_BYTES = 65536


class Wire(enum.Enum):
    """What the proxy does with data."""

    OPEN = "open"
    MUTE = "mute"
    CUT = "cut"


class Proxy:
    """Forwards connections to one server; a context manager.

    `delay_s` delays every chunk by that time, in both directions, without limiting throughput. `mute` keeps connections
    open but forwards nothing, like a lost network. `cut` resets connections and refuses new ones.
    """

    def __init__(self, target: tuple[str, int], *, listen_host: str = "127.0.0.1") -> None:
        self._target = target
        self._listen_host = listen_host
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.port = self._call(self._listen(0))

    @property
    def address(self) -> tuple[str, int]:
        """The address for clients to connect to."""
        return self._listen_host, self.port

    def delay(self, seconds: float) -> None:
        """Delay every chunk from now on."""
        self._delay_s = seconds

    def mute(self) -> None:
        """Forward nothing, but keep connections open."""
        self._call(self._set(Wire.MUTE))

    def cut(self) -> None:
        """Reset all connections and refuse new ones."""
        self._call(self._set(Wire.CUT))

    def heal(self) -> None:
        """Forward normally again, without delay."""
        self._delay_s = 0.0
        self._call(self._set(Wire.OPEN))

    def close(self) -> None:
        """Stop the proxy and close its connections."""
        if self._loop.is_closed():
            return
        self._call(self._set(Wire.CUT))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _listen(self, port: int) -> int:
        """Not `asyncio.start_server`: a connection accepted just before a cut would survive it untracked."""
        self._listening = socket.create_server((self._listen_host, port))
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept, self._listening)
        bound: int = self._listening.getsockname()[1]
        return bound

    async def _set(self, wire: Wire) -> None:
        if wire is Wire.MUTE:
            self._passing.clear()
        else:
            self._passing.set()
        if wire is Wire.CUT:
            if self._listening is not None:
                self._loop.remove_reader(self._listening)
                self._listening.close()
                self._listening = None
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
        elif self._listening is None:
            await self._listen(self.port)

    def _accept(self, listening: socket.socket) -> None:
        try:
            client, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        client.setblocking(False)
        task = self._loop.create_task(self._forward(client))
        self._connections.add(task)
        task.add_done_callback(lambda done: self._forget(done, client))

    def _forget(self, task: asyncio.Task[None], client: socket.socket) -> None:
        """A task that is cancelled before its first step does not close its client, so close it here."""
        client.close()
        self._connections.discard(task)

    async def _forward(self, client: socket.socket) -> None:
        ends: list[asyncio.StreamWriter] = []
        try:
            await self._passing.wait()
            reader, writer = await asyncio.open_connection(sock=client)
            ends.append(writer)
            back, there = await asyncio.open_connection(*self._target)
            ends.append(there)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, there))
                group.create_task(self._pump(back, writer))
        except (asyncio.CancelledError, OSError, ExceptionGroup):
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Keep reading while earlier chunks are delayed, so that a delay does not limit throughput."""
        held: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(maxsize=1024)

        async def read() -> None:
            chunk: bytes | None = None
            while chunk != b"":
                try:
                    chunk = await source.read(_CHUNK_BYTES)
                except OSError:
                    await held.put((0.0, None))
                    return
                await held.put((self._loop.time() + self._delay_s, chunk))

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            while True:
                due, chunk = await held.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._passing.wait()
                if chunk is None:
                    raise ConnectionResetError
                if not chunk:
                    with contextlib.suppress(OSError, NotImplementedError):
                        sink.write_eof()
                    return
                sink.write(chunk)
                await sink.drain()
