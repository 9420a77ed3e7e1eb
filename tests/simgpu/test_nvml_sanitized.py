"""The simulated NVML under the sanitizers: many threads, faults, and NVML being initialised and shut down."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu import machines

ROOT = Path(__file__).resolve().parents[2]
CLIENT = Path(__file__).with_name("nvml_client.c")
LIBRARY = "simgpu/libnvidia-ml.so.1"


def compile_client(target: Path, sanitize: str) -> None:
    subprocess.run(
        [
            os.environ.get("CC", "cc"),
            *("-std=gnu11", "-g1", "-O1", "-pthread", f"-fsanitize={sanitize}"),
            *("-I", str(ROOT / "native" / "simgpu"), "-o", str(target), str(CLIENT), "-ldl"),
        ],
        check=True,
    )


@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
def test_threads_faults_and_restarts_cause_no_reports(tmp_path: Path, sanitize: str) -> None:
    out = ROOT / "build" / f"native-{sanitize}"
    subprocess.run(
        [sys.executable, "native/build.py", "--out", str(out), "--sanitize", sanitize, "--only", LIBRARY],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    client = tmp_path / "client"
    compile_client(client, sanitize)
    machine = machines.make(tmp_path / "machine", "a100-80", "a100-80", changes="nvlink_groups: [[0, 1]]")
    done = subprocess.run(
        [str(client), str(out / LIBRARY)],
        env={
            **machine.environment,
            "ASAN_OPTIONS": "halt_on_error=1",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert done.stderr == ""
    assert machine.status().clients == []


def test_clients_killed_at_any_moment_leave_a_working_machine(tmp_path: Path) -> None:
    """The delay varies the moment of death: each client dies a little later in its life than the previous one."""
    client = tmp_path / "client"
    compile_client(client, "undefined")
    machine = machines.make(tmp_path / "machine", "a100-80", "a100-80")
    for number in range(40):
        with subprocess.Popen(
            [str(client)], env=machine.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as victim:
            time.sleep(0.001 * number)
            victim.kill()
    machine.inject("heal", 0)
    machine.inject("heal", 1)
    survivor = subprocess.run([str(client)], env=machine.environment, capture_output=True, text=True, timeout=120)
    assert (survivor.returncode, survivor.stdout) == (0, "done\n"), survivor.stderr
    assert machine.status().clients == []
