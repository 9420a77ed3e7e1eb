"""GPU time that clients receive from a running daemon, against the limits and weights they requested."""

import select
import time
from pathlib import Path

from baton.lock.wire import Kind
from bench._lock import ASK, GPU, RELEASE, Client, daemon

_FOR_S = 6.0
_CASES: list[tuple[str, list[dict[str, object]], list[float]]] = [
    ("limits 30:70", [{"cores": 30}, {"cores": 70}], [30, 70]),
    ("limits 10:90", [{"cores": 10}, {"cores": 90}], [10, 90]),
    ("limit 25 alone", [{"cores": 25}], [25]),
    ("limit 50 alone", [{"cores": 50}], [50]),
    ("limit 75 alone", [{"cores": 75}], [75]),
    ("weights 1:2:3", [{"weight": 1}, {"weight": 2}, {"weight": 3}], [100 / 6, 100 / 3, 50]),
]


def _shares(sockets: Path, gpu: bytes, requests: list[dict[str, object]]) -> list[float]:
    """Busy clients for a while; how long each one held the lock, with shared time counted in equal parts."""
    clients = [Client(sockets, gpu) for _ in requests]
    for client, request in zip(clients, requests, strict=True):
        client.identify(name="busy", **request)
    fds = {client.socket.fileno(): number for number, client in enumerate(clients)}
    ready = select.epoll()
    for fd in fds:
        ready.register(fd, select.EPOLLIN)
    held = [0.0] * len(clients)
    holding: set[int] = set()
    for client in clients:
        client.socket.sendall(ASK)
    now_s = start_s = time.monotonic()
    while now_s < start_s + _FOR_S:
        events = ready.poll(0.05)
        before_s, now_s = now_s, time.monotonic()
        for number in holding:
            held[number] += (now_s - before_s) / len(holding)
        for fd, _ in events:
            number = fds[fd]
            kind = clients[number].read()
            if kind == Kind.LOCK_OK:
                holding.add(number)
            elif kind == Kind.DROP_LOCK:
                holding.discard(number)
                clients[number].socket.sendall(RELEASE + ASK)
    for client in clients:
        client.socket.close()
    return [100 * part / (now_s - start_s) for part in held]


def run() -> None:
    """Measure and print."""
    for mode in ("serial", "concurrent"):
        with daemon("--mode", mode, "--quantum", "0.1") as (_, sockets):
            for number, (name, requests, asked) in enumerate(_CASES):
                got = _shares(sockets, bytes([number + 1]) + GPU[1:], requests)
                off = max(abs(a - b) for a, b in zip(got, asked, strict=True))
                shown = " / ".join(f"{share:.1f}" for share in got)
                wanted = " / ".join(f"{share:.1f}" for share in asked)
                ratio = " / ".join(f"{a / b:.3f}" for a, b in zip(got, asked, strict=True))
                print(
                    f"{mode:10} {name:15} requested {wanted:20} got {shown:20} ratio {ratio:22} off by {off:.1f} points"
                )
