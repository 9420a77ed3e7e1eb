"""A machine of simulated GPUs and a directory for a lock daemon, separate for each test."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from baton.errors import UnavailableError
from baton.gpu import profiles, simulated
from baton.lock.control import ControlClient
from baton.lock.paths import Paths

TIME_SCALE = 60.0
PATIENCE_S = 120.0
"""Not a limit on the product: it only turns a hang into a failure."""


@dataclass(frozen=True)
class Machine:
    """Two simulated GPUs; `baton` runs a command on them."""

    folder: Path
    started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    @property
    def control(self) -> ControlClient:
        return ControlClient(Paths(self.folder / "run" / "lock").control, PATIENCE_S)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "BATON_SIMGPU_DIR": str(self.folder / "machine"),
            "BATON_SOCKET_DIR": str(self.folder / "run" / "lock"),
            "CUDA_VISIBLE_DEVICES": "0,1",
        }

    def start(self, *words: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "baton.cli.main", *words],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def end_all(self) -> None:
        """End the processes that a failed test has left behind, so that they do not disturb other tests."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=PATIENCE_S)

    def baton(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        output, errors = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def trainer(self, *words: str, gib: int = 11, steps: int = 3) -> list[str]:
        """The command line of a small training job."""
        return [
            sys.executable, "-m", "baton.local.trainer", "--working-set", str(gib << 30), "--steps", str(steps),
            "--time-scale", str(TIME_SCALE), *words,
        ]  # fmt: skip


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Not pytest's folder: a unix socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        folder = Path(name)
        simulated.start([profiles.find("p100-16")] * 2, folder / "machine", TIME_SCALE)
        made = Machine(folder)
        yield made
        made.end_all()
        with contextlib.suppress(UnavailableError):  # none was started, or the test has ended it
            daemon = os.pidfd_open(made.control.status().pid)
            signal.pidfd_send_signal(daemon, signal.SIGTERM)
            select.select([daemon], [], [], 60)
            os.close(daemon)
        simulated.stop(folder / "machine", force=True)
