"""The simulated P100 against the nvshare thesis: serial, unscheduled, and with a time-quantum lock at TQ 5 to 1000.

Two identical jobs share one card. A job trains on the GPU and then on the CPU; its name gives the size of its working
set and the fraction of its time that is GPU time. The GPU part is a sequence of training steps, each a kernel that
touches the whole working set. The lock works as in the thesis: first come first served, held for a quantum while there
is GPU work, released after a synchronisation, and released early after five idle seconds.

The four jobs run concurrently on four cards of one machine, in scaled time.
"""

import contextlib
import ctypes
import multiprocessing
import os
import select
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path

_LIBRARY = Path(__file__).parent.parent / "src/baton/_native/simgpu/libcuda.so.1"
_SCALE = float(os.environ.get("BATON_BENCH_SCALE", "500"))

STEP_S = 0.31
"""One training step at full speed. Fitted to the unscheduled runs, where every step pays a full exchange."""
DEMAND = 0.85
"""Fraction of the card that a step keeps busy. From small_*, where two jobs that fit slow each other down 1.7 times."""
PAGING_BYTES_PER_S = 12e9
"""Migration over PCIe 3 x16. From big_* with the lock: an exchange of two 15.3 GB sets takes about 2.5 s."""
AHEAD = 6
"""Steps that a job keeps in flight, so that a late wake-up on a busy machine does not leave the card idle."""
IDLE_S = 5.0
"""The thesis's early release: a client without GPU work for this long releases the lock."""
QUANTA_S = (1000, 100, 60, 30, 20, 10, 5)


@dataclass(frozen=True)
class Job:
    """One of the thesis's jobs: time alone and the published times of two copies, in seconds."""

    name: str
    working_set_bytes: int
    solo_s: float
    gpu_part: float
    unscheduled_s: float
    locked_s: tuple[float, ...]

    @property
    def steps(self) -> int:
        return round(self.solo_s * self.gpu_part / STEP_S)

    @property
    def cpu_s(self) -> float:
        return self.solo_s * (1 - self.gpu_part)


JOBS = (
    Job("small_50", 7_200_000_000, 1318, 0.5, 1772, (2053, 2010, 2020, 2017, 2007, 2009, 1982)),
    Job("small_90", 7_200_000_000, 692, 0.9, 1128, (1361, 1351, 1348, 1366, 1360, 1360, 1334)),
    Job("big_50", 15_300_000_000, 1383, 0.5, 11757, (2043, 2100, 2122, 2170, 2204, 2465, 3496)),
    Job("big_90", 15_300_000_000, 719, 0.9, 11434, (1380, 1435, 1468, 1521, 1583, 1821, 2788)),
)


class LockServer(threading.Thread):
    """Grants one card's lock in the order of requests. Ends when all its clients have left."""

    def __init__(self, clients: int) -> None:
        super().__init__(daemon=True)
        pairs = [socket.socketpair() for _ in range(clients)]
        self._ours = [ours for ours, _ in pairs]
        self.theirs = [theirs for _, theirs in pairs]

    def run(self) -> None:
        waiting: list[socket.socket] = []
        held = False
        clients = list(self._ours)
        while clients:
            for client in select.select(clients, [], [])[0]:
                data = client.recv(64)
                if not data:
                    clients.remove(client)
                for word in data:
                    if word == ord("r"):
                        waiting.append(client)
                    else:
                        held = False
            if waiting and not held:
                held = True
                waiting.pop(0).send(b"g")


class Lock:
    """A job's side of the lock, which it holds for a quantum, or until it has been idle for a while."""

    def __init__(self, server: socket.socket, quantum_s: float) -> None:
        self._server = server
        self._quantum_s = quantum_s / _SCALE
        self._until = 0.0
        self.held = False

    def take(self) -> None:
        if not self.held:
            self._server.send(b"r")
            self._server.recv(1)
            self.held = True
            self._until = time.monotonic() + self._quantum_s

    def give(self) -> None:
        if self.held:
            self.held = False
            self._server.send(b"d")

    def expired(self) -> bool:
        """Whether the quantum will be over when the steps in flight are done."""
        return time.monotonic() + AHEAD * STEP_S / _SCALE >= self._until

    def idle(self, seconds: float) -> None:
        """Spend time without GPU work: the lock is released when the quantum or the patience ends."""
        end = time.monotonic() + seconds
        if self.held:
            time.sleep(max(0.0, min(seconds, IDLE_S / _SCALE, self._until - time.monotonic())))
            self.give()
        time.sleep(max(0.0, end - time.monotonic()))


class Span:
    """The time from the first start to the last end among several processes."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._begin: Synchronized[float] = context.Value("d", float("inf"))
        self._end: Synchronized[float] = context.Value("d", 0.0)

    def begin(self) -> None:
        with self._begin.get_lock():
            self._begin.value = min(self._begin.value, time.monotonic())

    def end(self) -> None:
        with self._end.get_lock():
            self._end.value = max(self._end.value, time.monotonic())

    @property
    def modelled_s(self) -> float:
        return (self._end.value - self._begin.value) * _SCALE


class Driver:
    """The driver API through ctypes; a job needs only ten calls."""

    def __init__(self, device: int, working_set_bytes: int) -> None:
        self._cuda = ctypes.CDLL(str(_LIBRARY))
        context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._memory = ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        self._call("cuMemAllocManaged", ctypes.byref(self._memory), ctypes.c_size_t(working_set_bytes), 1)
        self._call("cuModuleLoadData", ctypes.byref(module), b"any")
        self._call("cuModuleGetFunction", ctypes.byref(function), module, b"baton_touch")
        self._function = function
        values = (self._memory, ctypes.c_uint64(working_set_bytes), ctypes.c_uint64(int(STEP_S * 1e9)))
        self._values = values
        self._arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        self._blocks = int(DEMAND * 56 * 2048 / 1024)
        self._events = [ctypes.c_void_p() for _ in range(AHEAD)]
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), 2)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} returned {result}")

    def step(self, number: int) -> None:
        """Launch one step, once few enough are in flight."""
        event = self._events[number % AHEAD]
        self._call("cuEventSynchronize", event)
        self._call("cuLaunchKernel", self._function, self._blocks, 1, 1, 1024, 1, 1, 0, None, self._arguments, None)
        self._call("cuEventRecord", event, None)

    def synchronise(self) -> None:
        self._call("cuCtxSynchronize")


def _work(job: Job, device: int, lock: Lock | None, start: Barrier, span: "Span") -> None:
    driver = Driver(device, job.working_set_bytes)
    start.wait()
    span.begin()
    for number in range(job.steps):
        if lock is not None:
            lock.take()
        driver.step(number)
        if lock is not None and lock.expired():
            driver.synchronise()
            lock.give()
    driver.synchronise()
    if lock is None:
        time.sleep(job.cpu_s / _SCALE)
    else:
        lock.idle(job.cpu_s / _SCALE)
    span.end()


def _together(copies: int, quantum_s: float | None) -> dict[str, float]:
    """Modelled seconds until `copies` of each job are done, with all jobs at once, each on its own card."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(copies * len(JOBS) + 1)
    spans = {job.name: Span() for job in JOBS}
    workers, servers = [], []
    for device, job in enumerate(JOBS):
        server = LockServer(copies)
        servers.append(server)
        for copy in range(copies):
            lock = Lock(server.theirs[copy], quantum_s) if quantum_s is not None else None
            worker = context.Process(target=_work, args=(job, device, lock, start, spans[job.name]))
            worker.start()
            workers.append(worker)
    for server in servers:
        for theirs in server.theirs:
            theirs.close()
        server.start()
    start.wait()
    for worker in workers:
        worker.join()
        if worker.exitcode != 0:
            raise SystemExit("a calibration job failed")
    return {name: span.modelled_s for name, span in spans.items()}


@contextlib.contextmanager
def _machine() -> Iterator[None]:
    """A machine with four P100 cards, used only for the calibration."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["BATON_SIMGPU_DIR"] = directory
        library = ctypes.CDLL(str(_LIBRARY))
        error = ctypes.create_string_buffer(512)
        settings = f"cards={len(JOBS)}\n*.time_scale={_SCALE}\n*.paging_bytes_per_s={PAGING_BYTES_PER_S}\n"
        if library.simgpu_create(directory.encode(), settings.encode(), error, len(error)) != 0:
            raise SystemExit(error.value.decode())
        try:
            yield
        finally:
            library.simgpu_destroy(directory.encode(), error, len(error))


def rows() -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """The rows of the table: the case, the modelled seconds, the published seconds."""
    with _machine():
        solo = _together(1, None)
        yield "serial", {n: 2 * s for n, s in solo.items()}, {job.name: 2 * job.solo_s for job in JOBS}
        yield "unscheduled", _together(2, None), {job.name: job.unscheduled_s for job in JOBS}
        for index, quantum_s in enumerate(QUANTA_S):
            published = {job.name: job.locked_s[index] for job in JOBS}
            yield f"lock, TQ {quantum_s}", _together(2, quantum_s), published


def run() -> None:
    began = time.monotonic()
    worst = 0.0
    print("| two copies | " + " | ".join(job.name for job in JOBS) + " |")
    print("|---" * (len(JOBS) + 1) + "|")
    for name, modelled, published in rows():
        cells = []
        for job in JOBS:
            ratio = modelled[job.name] / published[job.name]
            worst = max(worst, abs(ratio - 1))
            cells.append(f"{modelled[job.name]:.0f} / {published[job.name]:.0f} ({ratio - 1:+.1%})")
        print(f"| {name} | " + " | ".join(cells) + " |")
        sys.stdout.flush()
    print(f"\nworst deviation {worst:.1%} (target: 15 %), time scale {_SCALE:g}, took {time.monotonic() - began:.0f} s")
