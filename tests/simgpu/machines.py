"""Simulated machines for tests, and programs that run on them.

The driver is loaded only by the programs, never by the test process: a library that was loaded once cannot be
loaded again for another machine. Administration goes through `libnvidia-ml.so.1`, which carries the same functions.
"""

import ctypes
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.native import library

_PREAMBLE = Path(__file__).parent / "preamble.py"


def _administration() -> ctypes.CDLL:
    functions = ctypes.CDLL(str(library("simgpu/libnvidia-ml.so.1")))
    functions.simgpu_status.restype = ctypes.c_long
    return functions


@dataclass(frozen=True)
class Machine:
    """A machine in a directory of its own."""

    directory: Path
    libraries: Path

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            **os.environ,
            "BATON_SIMGPU_DIR": str(self.directory),
            "LD_LIBRARY_PATH": str(self.libraries),
            "PYTHONPATH": str(_PREAMBLE.parent),
            **(extra or {}),
        }

    def start(self, program: str, *arguments: str, under: Sequence[str] = (), **extra: str) -> subprocess.Popen[str]:
        """Start a Python program that has `preamble` imported; it shares the test's standard error."""
        source = "from preamble import *\n" + textwrap.dedent(program)
        return subprocess.Popen(
            [*under, sys.executable, "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(extra),
        )

    def run(self, program: str, *arguments: str, **extra: str) -> str:
        """Run a program to its end; it must succeed. Returns what it printed."""
        process = self.start(program, *arguments, **extra)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output

    def status(self) -> dict[str, Any]:
        buffer, error = ctypes.create_string_buffer(1 << 20), ctypes.create_string_buffer(512)
        length = _administration().simgpu_status(str(self.directory).encode(), buffer, len(buffer), error, len(error))
        assert length >= 0, error.value.decode()
        status: dict[str, Any] = json.loads(buffer.value)
        return status

    def card(self, index: int = 0) -> dict[str, Any]:
        card: dict[str, Any] = self.status()["cards"][index]
        return card

    def inject(self, words: str) -> None:
        error = ctypes.create_string_buffer(512)
        answer = _administration().simgpu_inject(str(self.directory).encode(), words.encode(), error, len(error))
        assert answer == 0, error.value.decode()

    def stop(self) -> None:
        error = ctypes.create_string_buffer(512)
        assert _administration().simgpu_destroy(str(self.directory).encode(), error, len(error)) == 0, error.value


def create(directory: Path, *settings: str, libraries: Path | None = None) -> Machine:
    """Make a machine from settings such as `cards=2` and `*.time_scale=100`."""
    error = ctypes.create_string_buffer(512)
    text = "\n".join(settings).encode()
    answer = _administration().simgpu_create(str(directory).encode(), text, error, len(error))
    if answer != 0:
        raise ValueError(error.value.decode())
    return Machine(directory, libraries or library("simgpu/libcuda.so.1").parent)
