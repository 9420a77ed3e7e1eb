"""The driver under the address, undefined-behaviour and thread sanitizers, with a busy multi-threaded program."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.machines import Machine

_ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("sanitizer", ["address", "undefined", "thread"])
def test_a_busy_program_is_clean(sanitizer: str, tmp_path: Path, make_machine: Callable[..., Machine]) -> None:
    build = [sys.executable, str(_ROOT / "native/build.py"), "--sanitize", sanitizer, "--out", str(tmp_path)]
    build += ["--only", "simgpu/libcuda.so.1"]
    subprocess.run(build, check=True, capture_output=True)
    libraries = tmp_path / "simgpu"
    program = tmp_path / "client"
    source = Path(__file__).parent / "client.c"
    command = ["gcc", f"-fsanitize={sanitizer}", "-g", "-pthread", "-o", program, source, libraries / "libcuda.so.1"]
    subprocess.run([str(word) for word in command], check=True)
    machine = make_machine(f"*.memory_bytes={1 << 30}", libraries=libraries)
    options = "halt_on_error=1:exitcode=66:second_deadlock_stack=1"
    done = subprocess.run(
        [program],
        capture_output=True,
        text=True,
        timeout=200,
        env={
            **machine.environment,
            "ASAN_OPTIONS": options,
            "TSAN_OPTIONS": options,
            "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
        },
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "done\n")
    assert machine.card().processes == []
