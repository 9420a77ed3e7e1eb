"""A simulated machine for a test, and programs that run on it.

NVML and the dynamic linker are one per process, so whatever asks NVML runs in a process of its own: a script whose
last act is `answer(value)`. It sees NVIDIA's own bindings as `pynvml`, initialised.
"""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.gpu import profiles, simulated

_NVML_PRELUDE = """
import json, sys
import pynvml
def answer(value):
    print(json.dumps(value), flush=True)
pynvml.nvmlInit()
"""


@dataclass(frozen=True)
class Machine:
    """A machine in a directory; the test that made it removes it."""

    directory: Path
    library_folder: Path | None = None
    """Other builds of the libraries, such as sanitized ones."""

    @property
    def environment(self) -> dict[str, str]:
        variables = simulated.environment(self.directory)
        if self.library_folder is not None:
            variables["LD_LIBRARY_PATH"] = str(self.library_folder)
        return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}

    def start_program(self, script: str, **environment: str) -> "subprocess.Popen[str]":
        """A Python program with the machine in its environment; the caller talks to it through its pipes."""
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**self.environment, **environment},
        )

    def ask(self, script: str, **environment: str) -> Any:
        """What a program with NVML answers."""
        done = subprocess.run(
            [sys.executable, "-c", _NVML_PRELUDE + textwrap.dedent(script)],
            capture_output=True,
            text=True,
            env={**self.environment, **environment},
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start_asking(self, script: str) -> "subprocess.Popen[str]":
        """The same for a program that says several things, or waits for one."""
        return self.start_program(_NVML_PRELUDE + textwrap.dedent(script))

    def inject(self, fault: str, card: int = 0, **details: float) -> None:
        simulated.inject(self.directory, card, fault, **details)

    def status(self) -> simulated.MachineStatus:
        return simulated.status(self.directory)


def make(directory: Path, *names: str, changes: str = "", time_scale: float | None = None) -> Machine:
    """A machine with a card for each profile name; `changes` is YAML laid over each of them."""
    cards = [profiles.parse(f"extends: {name}\n{textwrap.dedent(changes)}", "test", name) for name in names]
    simulated.start(cards, directory, time_scale)
    return Machine(directory)


def line(program: "subprocess.Popen[str]") -> Any:
    """The next thing that a program answers."""
    assert program.stdout is not None
    text = program.stdout.readline()
    assert text, f"the program ended with {program.wait()}"
    return json.loads(text)


def tell(program: "subprocess.Popen[str]", word: str = "go") -> None:
    """Let a program that reads a line go on."""
    assert program.stdin is not None
    program.stdin.write(word + "\n")
    program.stdin.flush()
