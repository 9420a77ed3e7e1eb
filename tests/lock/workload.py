"""A workload as a separate process: it asks, runs during its turn, releases, asks again, and outlives any daemon.

While it believes that it owns the card it holds an exclusive `flock` on a witness file, which a second owner could not
get. It writes a line to stdout for every turn, so a test waits for progress by reading. It ends when its stdin does,
with `done TURNS` and exit code 0; two owners at the same time end it with code 7.
"""

import fcntl
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from baton.lock import wire
from baton.lock.wire import Frame, Kind


class LostError(Exception):
    """The connection to the daemon is lost."""


class Workload:
    """One client with the state that survives a reconnect."""

    def __init__(self, sockets: Path, witness: Path, gpu: bytes) -> None:
        self.sockets = sockets
        self.gpu = gpu
        self.witness = os.open(witness, os.O_RDWR | os.O_CREAT, 0o600)
        self.socket: socket.socket | None = None
        self.rest = b""
        self.id = b"0"
        self.epoch = ""
        self.holding = False
        self.since_s = 0.0
        self.turns = 0

    def run(self) -> None:
        while True:
            try:
                self.connect()
                while True:
                    self.serve()
            except (LostError, OSError):
                if self.socket is not None:
                    self.socket.close()
                    self.socket = None
                self.rest = b""

    def wait(self, for_s: float | None) -> bool:
        """Wait for the daemon; returns whether it sent something. The end of stdin ends the workload."""
        files: list[Any] = [sys.stdin] + ([self.socket] if self.socket is not None else [])
        ready, _, _ = select.select(files, [], [], for_s)
        if sys.stdin in ready:
            fcntl.flock(self.witness, fcntl.LOCK_UN)
            print(f"done {self.turns}", flush=True)
            sys.exit(0)
        return self.socket in ready

    def connect(self) -> None:
        pause_s = 0.001
        while True:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self.socket.connect(str(self.sockets / "scheduler.sock"))
                break
            except OSError:
                self.socket.close()
                self.socket = None
                self.wait(pause_s)
                pause_s = min(2 * pause_s, 0.25)
        again = self.epoch
        self.socket.sendall(wire.registration(self.gpu))
        lost_id, self.id = self.id, self.read().data.rstrip(b"\0")
        hello = wire.fields(self.read())
        self.epoch = hello["epoch"]
        self.tell(Kind.IDENTITY, {"pid": os.getpid(), "name": "workload"})
        if again:
            held_us = int((time.monotonic() - self.since_s) * 1e6)
            state = {"holding": int(self.holding), "waiting": int(not self.holding), "held_us": held_us}
            self.tell(Kind.RESUME, {"epoch": again, "id": lost_id.decode(), **state})
        else:
            self.ask()

    def tell(self, kind: Kind, values: dict[str, object]) -> None:
        assert self.socket is not None
        self.socket.sendall(wire.extension(kind, values))

    def ask(self) -> None:
        assert self.socket is not None
        self.socket.sendall(Frame(Kind.REQ_LOCK).pack())

    def read(self) -> Frame:
        assert self.socket is not None
        while len(self.rest) < wire.FRAME_BYTES:
            while not self.wait(None):
                pass
            got = self.socket.recv(65536)
            if not got:
                raise LostError
            self.rest += got
        raw, self.rest = self.rest[: wire.FRAME_BYTES], self.rest[wire.FRAME_BYTES :]
        return wire.unpack(raw)

    def serve(self) -> None:
        kind = self.read().kind
        if kind == Kind.LOCK_OK and not self.holding:
            try:
                fcntl.flock(self.witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("two owners", flush=True)
                sys.exit(7)
            self.holding = True
            self.since_s = time.monotonic()
            self.turns += 1
            print("turn", flush=True)
        elif kind == Kind.DROP_LOCK and self.holding:
            self.holding = False
            fcntl.flock(self.witness, fcntl.LOCK_UN)
            assert self.socket is not None
            self.socket.sendall(Frame(Kind.LOCK_RELEASED).pack())
            self.ask()


if __name__ == "__main__":
    Workload(Path(sys.argv[1]), Path(sys.argv[2]), bytes.fromhex(sys.argv[3])).run()
