"""A client of the lock daemon for tests: blocking, one frame at a time, in nvshare's dialect or in Baton's."""

import socket
from pathlib import Path
from typing import Self

from baton.lock import wire
from baton.lock.wire import Frame, Kind

GPU = bytes(range(16))
GPU_TEXT = wire.uuid_text(GPU)
PATIENCE_S = 120.0
"""Not a limit on the daemon: it only turns a hang into a failure."""


class Peer:
    """One connection. `gpu` None speaks nvshare's dialect."""

    def __init__(self, sockets: Path, gpu: bytes | None = GPU, *, name: str = "test", register: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(sockets / "scheduler.sock"))
        self.rest = b""
        self.id = 0
        self.hello: dict[str, str] = {}
        self.gpu = gpu
        if register:
            self.send(wire.registration(gpu))
            kind, frame = self.read()
            assert kind in (Kind.SCHED_ON, Kind.SCHED_OFF)
            self.id = int(frame.data.rstrip(b"\0"), 16)
            if gpu is not None:
                self.hello = wire.fields(self.expect(Kind.HELLO))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def tell(self, kind: Kind, **values: object) -> None:
        self.send(wire.extension(kind, values))

    def introduce(self, **values: object) -> dict[str, str]:
        """Send IDENTITY; returns the limits in the answer."""
        self.tell(Kind.IDENTITY, **values)
        return wire.fields(self.expect(Kind.LIMITS))

    def ask(self) -> None:
        self.send(Frame(Kind.REQ_LOCK, id=self.id).pack())

    def release(self) -> None:
        self.send(Frame(Kind.LOCK_RELEASED, id=self.id).pack())

    def read(self) -> tuple[Kind, Frame]:
        while len(self.rest) < wire.FRAME_BYTES:
            got = self.socket.recv(65536)
            if not got:
                raise EOFError
            self.rest += got
        raw, self.rest = self.rest[: wire.FRAME_BYTES], self.rest[wire.FRAME_BYTES :]
        frame = wire.unpack(raw)
        return Kind(frame.kind), frame

    def next_is(self, wanted: Kind) -> bool:
        """Whether the next frame that is not a hint has arrived and is of this kind."""
        while True:
            kind, _ = self.read()
            if kind is wanted:
                return True
            assert kind in (Kind.HELLO, Kind.ALLOWANCE), kind.name
            if not self.rest:
                return False

    def expect(self, wanted: Kind) -> Frame:
        """The next frame, which must be of this kind; idle-time hints and a shared page may come before it."""
        while True:
            kind, frame = self.read()
            if kind in (Kind.HELLO, Kind.ALLOWANCE) and kind is not wanted:
                continue
            assert kind is wanted, f"got {kind.name}, expected {wanted.name}"
            return frame

    def closed(self) -> bool:
        """Wait for the daemon to close the connection."""
        try:
            while True:
                self.read()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return True
