"""What the hook adds to a launch while the lock is held, against the bare simulated driver and against an empty one.

The same program launches an empty kernel with and without the hook, alternately; the lock daemon is the real one. On a
busy machine the difference is smaller than the noise of the simulated driver, so two more things are measured that do
not have this noise: the instructions that the hook executes per launch, counted by valgrind where it is installed, and
the time on a driver whose calls do nothing, which is the time of the hook alone. The budget applies to the last one.
"""

import ctypes
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from baton import native

_PROGRAMS = Path(__file__).parent / "programs"
_UUID = "GPU-00000000-0000-0000-0000-0000000000b1"
_ROUNDS = 7
_BATCHES = 300
_LAUNCHES = 256
_COUNTED_BATCHES = (50, 150)
_BUDGET_NS = 50


def _make_card(folder: Path) -> None:
    driver = ctypes.CDLL(str(native.library("simgpu/libcuda.so.1")))
    error = ctypes.create_string_buffer(400)
    settings = f"cards=1\n0.uuid={_UUID}\n*.time_scale=1000\n".encode()
    made = driver.simgpu_create(str(folder).encode(), settings, error, ctypes.c_size_t(len(error)))
    if made != 0:
        raise SystemExit(f"bench: cannot create the simulated GPU: {error.value.decode()}")


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


def _output(command: Sequence[str | Path], environment: dict[str, str]) -> tuple[str, str]:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(map(str, command))} failed: {done.stderr}")
    return done.stdout, done.stderr


def _least_ns(program: Path, environment: dict[str, str]) -> float:
    printed, _ = _output([program, str(_BATCHES), str(_LAUNCHES)], environment)
    return min(map(float, printed.split()))


def _instructions(program: Path, environment: dict[str, str], folder: Path) -> float:
    """Instructions per launch inside cuLaunchKernel, excluding the first calls.

    Entering and leaving a function of that name toggles collection. The hook's function calls the driver's, so with the
    hook, collection is off exactly while the driver's function runs: this counts the hook and its other calls to the
    driver.
    """
    counted = []
    for batches in _COUNTED_BATCHES:
        command: list[str | Path] = [
            "valgrind", "--tool=callgrind", "--toggle-collect=cuLaunchKernel",
            f"--callgrind-out-file={folder / 'callgrind'}", program, str(batches), str(_LAUNCHES),
        ]  # fmt: skip
        _, output = _output(command, environment)
        found = re.search(r"Collected : (\d+)", output)
        if found is None:
            raise SystemExit(f"bench: cannot find the count in valgrind's output: {output}")
        counted.append(int(found[1]))
    return (counted[1] - counted[0]) / ((_COUNTED_BATCHES[1] - _COUNTED_BATCHES[0]) * _LAUNCHES)


def _compare(title: str, program: Path, bare: dict[str, str], hooked: dict[str, str]) -> float:
    pairs = [(_least_ns(program, bare), _least_ns(program, hooked)) for _ in range(_ROUNDS)]
    without, with_hook = min(bare_ns for bare_ns, _ in pairs), min(hook_ns for _, hook_ns in pairs)
    paired = statistics.median(hook_ns - bare_ns for bare_ns, hook_ns in pairs)
    print(f"{title}: {without:.1f} ns per launch, with the hook {with_hook:.1f} ns  {with_hook / without:.2f}x")
    print(f"  added {with_hook - without:.1f} ns between the minimum times, {paired:.1f} ns median of {_ROUNDS} pairs")
    return max(with_hook - without, paired)


def run() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        driver = native.library("simgpu/libcuda.so.1")
        program, empty = folder / "launches", folder / "empty"
        empty.mkdir()
        subprocess.run(["cc", "-O2", "-o", program, _PROGRAMS / "launches.c", driver], check=True)
        flags = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["cc", *flags, "-o", empty / "libcuda.so.1", _PROGRAMS / "empty_driver.c"], check=True)
        _make_card(folder / "card")
        simulated = {"BATON_SIMGPU_DIR": str(folder / "card"), "LD_LIBRARY_PATH": str(driver.parent)}
        nothing = {"LD_LIBRARY_PATH": str(empty)}
        hook = {
            "LD_PRELOAD": str(native.library("libbaton.so")),
            "BATON_SOCKET_DIR": str(folder / "lock"),
            "BATON_ON_DAEMON_LOSS": "fail",
        }
        with _daemon(folder / "lock"):
            _compare("simulated driver", program, simulated, simulated | hook)
            if shutil.which("valgrind"):
                own, added = (_instructions(program, e, folder) for e in (simulated, simulated | hook))
                print(
                    f"  the driver executes {own:.0f} instructions per launch, the hook {added:.0f}  {added / own:.2f}x"
                )
            else:
                print("  instructions not counted: valgrind is not installed")
            worst_ns = _compare("empty driver", program, nothing, nothing | hook)
        verdict = "kept" if worst_ns <= _BUDGET_NS else "exceeded"
        print(f"budget {_BUDGET_NS} ns: {verdict} with {worst_ns:.1f} ns, the worse statistic on the empty driver")
