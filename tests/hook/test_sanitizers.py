"""The hook under load, built with each sanitizer: no sanitizer report, no failed call."""

import functools
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baton.lock import wire
from baton.lock.wire import Kind
from tests.hook.conftest import ROOT, Workloads, compile_c, finish, wait_for_launches
from tests.hook.daemon import Client, Daemon

RUNTIME = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}


@functools.cache
def runtime(sanitizer: str) -> str | None:
    """The sanitizer's runtime library, which must be loaded before the hook."""
    compiler = shutil.which("cc") or "gcc"
    asked = subprocess.run([compiler, f"-print-file-name={RUNTIME[sanitizer]}"], capture_output=True, text=True)
    path = asked.stdout.strip()
    return path if path.startswith("/") else None


def alternate(client: Client, for_s: float) -> None:
    client.greet(report_ms=10)
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        if client.next().kind == Kind.REQ_LOCK:
            client.send(wire.LOCK_OK)
            time.sleep(0.003)
            client.send(wire.DROP_LOCK)
    client.send(wire.SCHED_OFF)


@pytest.mark.parametrize("sanitizer", RUNTIME)
def test_a_stressed_client_is_clean(
    workloads: Workloads, daemon: Daemon, driver_folder: Path, tmp_path: Path, sanitizer: str
) -> None:
    library = runtime(sanitizer)
    if library is None:
        pytest.skip(f"this compiler has no {RUNTIME[sanitizer]}")
    build = [sys.executable, str(ROOT / "native" / "build.py"), "--out", str(tmp_path), "--sanitize", sanitizer]
    subprocess.run([*build, "--only", "libbaton.so"], check=True, capture_output=True)
    flag = f"-fsanitize={sanitizer}"
    hammer = compile_c("hammer.c", tmp_path / "hammer", flag, f"-L{driver_folder}", "-lcuda", "-ldl")
    options = "exitcode=66:halt_on_error=1:print_stacktrace=1"
    work = workloads.start(
        str(hammer),
        "6",
        "2",
        "captures",
        LD_PRELOAD=f"{library}:{tmp_path / 'libbaton.so'}",
        PROBE_DEVICES="2",
        PROBE_KERNEL_US="20",
        ASAN_OPTIONS=options,
        UBSAN_OPTIONS=options,
        TSAN_OPTIONS=options,
    )
    served = [daemon.serve(lambda client: alternate(client, 2.0)) for _ in range(2)]
    for thread in served:
        thread.join()
    wait_for_launches(workloads, work, 100)  # a sanitizer report ends the program with status 66
    finish(work)
    assert workloads.record.broken_captures == 0
