"""What the hook adds to a launch while the lock is held, against the bare simulated driver.

The same program launches an empty kernel on the same simulated card, with and without the hook, in turns; the lock
daemon is the real one. Two statistics are printed, because they disagree on a noisy machine: the difference of the
least times, and the median of the differences of pairs. Only where both are below the budget is it kept.
"""

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton import native

_PROGRAM = Path(__file__).parent / "programs" / "launches.c"
_UUID = "GPU-00000000-0000-0000-0000-0000000000b1"
_ROUNDS = 7
_BATCHES = 300
_LAUNCHES = 256
_BUDGET_NS = 50


def _make_card(folder: Path) -> None:
    driver = ctypes.CDLL(str(native.library("simgpu/libcuda.so.1")))
    error = ctypes.create_string_buffer(400)
    settings = f"cards=1\n0.uuid={_UUID}\n*.time_scale=1000\n".encode()
    made = driver.simgpu_create(str(folder).encode(), settings, error, ctypes.c_size_t(len(error)))
    if made != 0:
        raise SystemExit(f"bench: the simulated GPU cannot be made: {error.value.decode()}")


@contextmanager
def _daemon(sockets: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "baton.cli.main", "lockd", "--socket-dir", str(sockets), "--gpu", f"{_UUID}=16Gi"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while not (sockets / "scheduler.sock").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("bench: `baton lockd` does not start")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(20)


def _least_ns(program: Path, **environment: str) -> float:
    done = subprocess.run(
        [program, str(_BATCHES), str(_LAUNCHES)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"bench: the launching program failed: {done.stderr}")
    return min(map(float, done.stdout.split()))


def run() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = native.library("simgpu/libcuda.so.1")
        program = folder / "launches"
        subprocess.run(["cc", "-O2", "-o", program, _PROGRAM, driver], check=True)
        _make_card(folder / "card")
        bare = {"BATON_SIMGPU_DIR": str(folder / "card"), "LD_LIBRARY_PATH": str(driver.parent)}
        hooked = bare | {
            "LD_PRELOAD": str(native.library("libbaton.so")),
            "BATON_SOCKET_DIR": str(folder / "lock"),
            "BATON_ON_DAEMON_LOSS": "fail",
        }
        with _daemon(folder / "lock"):
            pairs = [(_least_ns(program, **bare), _least_ns(program, **hooked)) for _ in range(_ROUNDS)]
        without = min(pair[0] for pair in pairs)
        added = min(pair[1] for pair in pairs) - without
        print(f"bare driver   {without:7.1f} ns per launch")
        print(f"with the hook {without + added:7.1f} ns per launch  {(without + added) / without:.2f}x")
        paired = statistics.median(with_hook - bare_ns for bare_ns, with_hook in pairs)
        print(f"added         {added:7.1f} ns between the least times  (budget {_BUDGET_NS} ns)")
        print(f"added         {paired:7.1f} ns, median of {_ROUNDS} paired differences")
