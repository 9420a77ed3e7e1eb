"""Hand-over of the lock, from LOCK_RELEASED to the next LOCK_OK, against a bare unix-socket ping-pong."""

import os
import select
import socket
import statistics
import time
from pathlib import Path

from baton.lock import wire
from baton.lock.wire import Kind
from bench._lock import ASK, RELEASE, Client, daemon

_ROUNDS = 3000
_CROWD = 100


def _ping_pong() -> list[float]:
    """A frame to another process and back; both ends block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        ours.close()
        while frame := theirs.recv(wire.FRAME_BYTES, socket.MSG_WAITALL):
            theirs.sendall(frame)
        os._exit(0)
    theirs.close()
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        ours.sendall(RELEASE)
        ours.recv(wire.FRAME_BYTES, socket.MSG_WAITALL)
        times.append(time.perf_counter() - start)
    ours.close()
    os.waitpid(child, 0)
    return times


def _hand_over(sockets: Path, count: int) -> list[float]:
    """One of `count` clients holds the lock and the others wait; when it releases, the next grant is timed."""
    clients = [Client(sockets) for _ in range(count)]
    by_fd = {client.socket.fileno(): client for client in clients}
    waiting = select.epoll()
    for client in clients:
        waiting.register(client.socket.fileno(), select.EPOLLIN)
    for client in clients:
        client.socket.sendall(ASK)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) <= _ROUNDS:
        for fd, _ in waiting.poll():
            client = by_fd[fd]
            if client.read() == Kind.LOCK_OK:
                times.append(time.perf_counter() - start)
                # It requests the lock again only after the next client was served, so only the hand-over is timed.
                start = time.perf_counter()
                client.socket.sendall(RELEASE + ASK)
    for client in clients:
        client.socket.close()
    return times[1:]


def _row(name: str, times: list[float], baseline: list[float]) -> None:
    cuts, base = (statistics.quantiles(each, n=100) for each in (times, baseline))
    print(
        f"{name:28} p50 {cuts[49] * 1e6:7.0f} µs  {cuts[49] / base[49]:5.1f}x   "
        f"p99 {cuts[98] * 1e6:7.0f} µs  {cuts[98] / base[98]:5.1f}x"
    )


def run() -> None:
    """Measure and print."""
    baseline = _ping_pong()
    _row("bare ping-pong", baseline, baseline)
    with daemon("--mode", "serial", "--quantum", "3600") as (_, sockets):
        _row("2 clients", _hand_over(sockets, 2), baseline)
        _row(f"{_CROWD} clients", _hand_over(sockets, _CROWD), baseline)
