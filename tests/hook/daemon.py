"""A scripted lock daemon: it records what clients send, and the test decides every answer."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from baton.lock import wire
from baton.lock.wire import Kind

PATIENCE_S = 120.0
"""Only turns a hang into a failure; not a measurement of anything."""


@dataclass
class Client:
    """One connection, from the daemon's side."""

    connection: socket.socket
    frames: "queue.Queue[wire.Frame]" = field(default_factory=queue.Queue)
    gone: threading.Event = field(default_factory=threading.Event)
    registration: wire.Frame = wire.Frame(0)  # noqa: RUF009  # immutable

    @property
    def gpu(self) -> bytes:
        return self.registration.data[:16]

    def expect(self, kind: Kind, timeout_s: float = PATIENCE_S) -> wire.Frame:
        """The next frame other than REPORT, which must be of kind `kind`."""
        frame = self.next(timeout_s)
        assert frame.kind == kind, f"expected {kind.name}, got {Kind(frame.kind).name} {wire.fields(frame)}"
        return frame

    def next(self, timeout_s: float = PATIENCE_S) -> wire.Frame:
        while True:
            frame = self.frames.get(timeout=timeout_s)
            if frame.kind == Kind.REGISTER:
                self.registration = frame
            if frame.kind != Kind.REPORT:
                return frame

    def silent(self, for_s: float = 0.1) -> bool:
        """Whether only reports arrive during `for_s` seconds."""
        try:
            self.next(for_s)
        except queue.Empty:
            return True
        return False

    def send(self, frame: bytes) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(frame)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def greet(
        self, *, epoch: str = "e1", idle_ms: int = 60_000, report_ms: int = 0, on: bool = True, **limits: int
    ) -> dict[str, str]:
        """The complete greeting of a Baton daemon; returns the fields of IDENTITY."""
        self.expect(Kind.REGISTER)
        hello = {"version": 1, "epoch": epoch, "gpu": "", "idle_ms": idle_ms, "report_ms": report_ms}
        self.send(wire.welcome(0xABC, on=on) + wire.extension(Kind.HELLO, hello))
        identity = wire.fields(self.expect(Kind.IDENTITY))
        self.send(wire.extension(Kind.LIMITS, {"memory": 0, "cores": 0, "oversubscribe": 1} | limits))
        return identity

    def grant(self) -> None:
        self.expect(Kind.REQ_LOCK)
        self.send(wire.LOCK_OK)

    def drop(self) -> None:
        self.send(wire.DROP_LOCK)
        self.expect(Kind.LOCK_RELEASED)


class Daemon:
    """Listens where hooks connect; each accepted connection becomes a Client that the test gets from `client()`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients: queue.Queue[Client | None] = queue.Queue()
        self._all: list[Client] = []
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> "Daemon":
        path = self.folder / "scheduler.sock"
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._accepting.start()
        return self

    def stop(self) -> None:
        """Ends as after kill -9: every connection is gone, the socket file is still there."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            assert self._accepting is not None
            self._accepting.join(PATIENCE_S)  # a client accepted during the stop is closed with the others
            self._listener.close()
            self._listener = None
        for client in self._all:
            client.close()
        self._all.clear()
        for _ in self._threads:
            self.clients.put(None)  # wakes a thread that waits for a client
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._threads.clear()
        while not self.clients.empty():
            self.clients.get()

    def client(self, timeout_s: float = PATIENCE_S) -> Client:
        client = self.clients.get(timeout=timeout_s)
        if client is None:
            raise queue.Empty
        return client

    def serve(self, work: Callable[[Client], object]) -> threading.Thread:
        """Serve the next client, if one connects, in the background."""

        def body() -> None:
            with contextlib.suppress(queue.Empty):
                work(self.client())

        return self._run(body)

    def _run(self, body: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=body, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            client = Client(connection)
            self._all.append(client)
            self.clients.put(client)
            self._run(self._read, client)

    def _read(self, client: Client) -> None:
        splitter = wire.Splitter()
        with contextlib.suppress(OSError):
            while data := client.connection.recv(1 << 16):
                for raw in splitter.feed(data):
                    client.frames.put(wire.unpack(raw))
        client.gone.set()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Daemon]:
    daemon = Daemon(folder).start()
    try:
        yield daemon
    finally:
        daemon.stop()
