"""A simulated machine for a test, and programs that run on it.

NVML, the driver and the dynamic linker are one per process, so code that uses a card runs in its own process. A program
that uses NVML ends with `answer(value)` and gets NVIDIA's own bindings as `pynvml`, initialised; a program that uses
the driver gets the names of `tests/simgpu/preamble.py`, or a context and `launch` if it only has to create load.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from baton import native
from baton.gpu import profiles, simulated

T = TypeVar("T")

PATIENCE_S = 120.0
"""Only turns a hang into a failure; not a measurement of anything."""

_PREAMBLE_FOLDER = Path(__file__).parents[1] / "simgpu"

_NVML_PRELUDE = """
import json, sys
import pynvml
def answer(value):
    print(json.dumps(value), flush=True)
pynvml.nvmlInit()
"""

_CUDA_PRELUDE = """
import ctypes, json, sys
from cuda.bindings import driver as cuda
def answer(value):
    print(json.dumps(value), flush=True)
def ok(result):
    code, *values = result
    if int(code) != 0:
        raise SystemExit(f"CUDA error {int(code)}")
    return values[0] if len(values) == 1 else values
def code_of(result):
    return int(result[0])
ok(cuda.cuInit(0))
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(0))))))
_module = ok(cuda.cuModuleLoadData(b"any image"))
_busy = ok(cuda.cuModuleGetFunction(_module, b"baton_busy"))
def launch(seconds, blocks=1 << 20):
    arguments = ((int(seconds * 1e9),), (ctypes.c_uint64,))
    return cuda.cuLaunchKernel(_busy, blocks, 1, 1, 256, 1, 1, 0, 0, arguments, 0)
"""


@dataclass(frozen=True)
class Machine:
    """A machine in a directory; the test that created it removes it."""

    directory: Path
    library_folder: Path | None = None
    """Other builds of the libraries, such as those with sanitizers."""

    @property
    def environment(self) -> dict[str, str]:
        variables = simulated.environment(self.directory)
        if self.library_folder is not None:
            variables["LD_LIBRARY_PATH"] = str(self.library_folder)
        return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}

    def start(self, program: str, *arguments: str, under: Sequence[str] = (), **extra: str) -> "subprocess.Popen[str]":
        """A Python program with the preamble in scope; it shares the test's standard error."""
        source = "from preamble import *\n" + textwrap.dedent(program)
        return subprocess.Popen(
            [*under, sys.executable, "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**self.environment, "PYTHONPATH": str(_PREAMBLE_FOLDER), **extra},
        )

    def run(self, program: str, *arguments: str, **extra: str) -> str:
        """Like `start`, but waits for the program, which must succeed, and returns its output."""
        with running(self.start(program, *arguments, **extra)) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, output
        return output

    def start_program(self, script: str, launcher: Sequence[str] = ()) -> "subprocess.Popen[str]":
        """A Python program with the machine in its environment; the caller uses its pipes."""
        return subprocess.Popen(
            [*launcher, sys.executable, "-c", textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def ask(self, script: str, **environment: str) -> Any:
        """The answer of a program that uses NVML."""
        done = subprocess.run(
            [sys.executable, "-c", _NVML_PRELUDE + textwrap.dedent(script)],
            capture_output=True,
            text=True,
            env={**self.environment, **environment},
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start_asking(self, script: str) -> "subprocess.Popen[str]":
        """Like `ask`, for a program that answers several times, or waits for input."""
        return self.start_program(_NVML_PRELUDE + textwrap.dedent(script))

    def start_workload(self, script: str, launcher: Sequence[str] = ()) -> "subprocess.Popen[str]":
        """A CUDA program with a context on card 0, `launch(seconds)` to run a kernel, `answer` and `ok`."""
        return self.start_program(_CUDA_PRELUDE + textwrap.dedent(script), launcher)

    def inject(self, fault: str, card: int = 0, **details: float) -> None:
        simulated.inject(self.directory, card, fault, **details)

    def status(self) -> simulated.MachineStatus:
        return simulated.status(self.directory)

    def card(self, index: int = 0) -> simulated.CardStatus:
        return self.status().cards[index]

    def stop(self) -> None:
        simulated.stop(self.directory, force=True)


def make(directory: Path, *names: str, changes: str = "", time_scale: float | None = None) -> Machine:
    """A machine with one card per profile name; `changes` is YAML merged over each profile."""
    cards = [profiles.parse(f"extends: {name}\n{textwrap.dedent(changes)}", "test", name) for name in names]
    simulated.start(cards, directory, time_scale)
    return Machine(directory)


def create(directory: Path, *settings: str, libraries: Path | None = None) -> Machine:
    """A machine from raw settings such as `cards=2` and `*.time_scale=100`, which profiles cannot express."""
    error = ctypes.create_string_buffer(512)
    # Not the driver: once loaded, it could not be loaded again for another machine.
    administration = ctypes.CDLL(str(native.library("simgpu/libsimgpu.so")))
    text = "\n".join(settings).encode()
    if administration.simgpu_create(str(directory).encode(), text, error, len(error)) != 0:
        raise ValueError(error.value.decode())
    return Machine(directory, libraries)


@contextlib.contextmanager
def running(program: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    """Keeps the program for the duration of a block and always ends it afterwards."""
    with program:
        try:
            yield program
        finally:
            program.kill()


def line(program: "subprocess.Popen[str]") -> Any:
    """A program's next answer."""
    assert program.stdout is not None
    text = program.stdout.readline()
    assert text, f"the program ended with {program.wait()}"
    return json.loads(text)


def tell(program: "subprocess.Popen[str]", word: str = "go") -> None:
    """Send a line to a program that waits for one."""
    assert program.stdin is not None
    program.stdin.write(word + "\n")
    program.stdin.flush()
