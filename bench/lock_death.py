"""From `kill -9` of a holder to the next LOCK_OK, against an ordinary hand-over in the same run."""

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from baton.lock.wire import Kind
from bench._lock import ASK, RELEASE, Client, daemon

_ROUNDS = 40
_AIM_MS = 100.0

_HOLDER = """
import sys, time
from pathlib import Path
from bench._lock import ASK, Client
client = Client(Path(sys.argv[1]))
client.socket.sendall(ASK)
client.read()
print("holding", flush=True)
time.sleep(600)
"""


def _after_death(sockets: Path) -> float:
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(sockets)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    waiter = Client(sockets)
    waiter.socket.sendall(ASK)
    start = time.perf_counter()
    os.kill(holder.pid, signal.SIGKILL)
    assert waiter.read() == Kind.LOCK_OK
    took = time.perf_counter() - start
    waiter.socket.close()
    holder.communicate()
    return took


def _after_release(sockets: Path) -> float:
    holder, waiter = Client(sockets), Client(sockets)
    holder.socket.sendall(ASK)
    holder.read()
    waiter.socket.sendall(ASK)
    start = time.perf_counter()
    holder.socket.sendall(RELEASE)
    assert waiter.read() == Kind.LOCK_OK
    took = time.perf_counter() - start
    for client in (holder, waiter):
        client.socket.close()
    return took


def run() -> None:
    with daemon("--mode", "serial", "--quantum", "3600") as (_, sockets):
        released = [_after_release(sockets) * 1000 for _ in range(_ROUNDS)]
        died = [_after_death(sockets) * 1000 for _ in range(_ROUNDS)]
    base = statistics.median(released)
    print(f"release to grant     median {base:7.2f} ms   worst {max(released):7.2f} ms")
    median = statistics.median(died)
    print(f"kill -9 to grant     median {median:7.2f} ms   worst {max(died):7.2f} ms   {median / base:.1f}x")
    print(f"target: at most {_AIM_MS:.0f} ms from the kill to the grant")
