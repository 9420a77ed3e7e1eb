"""Shared by the hook's tests: the compiled libraries and programs, workloads under the hook, a scripted daemon."""

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton import native
from tests.hook import daemon as scripted
from tests.waiting import until

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]


class ProbeDevice(ctypes.Structure):
    """The record of one device in the probe driver."""

    _fields_ = [(name, ctypes.c_int64) for name in ("launches", "copies", "inside", "busy_until_us")]


class ProbeRecord(ctypes.Structure):
    """The probe driver's counters, readable while the workload runs."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "syncs",
            "broken_captures",
            "managed",
            "plain",
            "freed_async",
            "per_thread",
            "v1_lookups",
            "v2_lookups",
            "events",
        )
    ] + [("devices", ProbeDevice * 4)]


class Workloads:
    """Starts programs under the hook, with the probe driver as their libcuda.so.1."""

    def __init__(self, folder: Path, driver_folder: Path) -> None:
        self.folder = folder
        self.sockets = folder / "lock"
        self.sockets.mkdir()
        self.driver_folder = driver_folder
        self.hook = native.library("libbaton.so")
        record_file = folder / "record"
        record_file.write_bytes(bytes(mmap.PAGESIZE))
        with record_file.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), 0)
        self.record = ProbeRecord.from_buffer(self._mapped)
        self.record_file = record_file
        self._started: list[subprocess.Popen[str]] = []

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": str(self.hook),
            "LD_LIBRARY_PATH": str(self.driver_folder),
            "BATON_SOCKET_DIR": str(self.sockets),
            "PROBE_FILE": str(self.record_file),
            "PYTHONPATH": str(ROOT),
        } | more

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            command,
            env=self.environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(started)
        return started

    def python(self, code: str, **environment: str) -> subprocess.Popen[str]:
        """A Python workload with `cuda`, a thin wrapper around libcuda.so.1, in scope."""
        return self.start(sys.executable, "-c", f"from tests.hook.workload import *\n{code}", **environment)

    def run(self, code: str, **environment: str) -> str:
        return finish(self.python(code, **environment))

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def finish(process: subprocess.Popen[str], timeout_s: float = scripted.PATIENCE_S) -> str:
    """Wait for a workload to exit successfully and return its output; a failure message includes its stderr."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}"
    return out


def wait_for_launches(workloads: Workloads, work: subprocess.Popen[str], count: int) -> None:
    """Wait until more than `count` launches reached the first device."""

    def launches() -> int:
        done = int(workloads.record.devices[0].launches)
        assert work.poll() is None or done > count, f"ended after {done} launches:\n{finish(work)}"
        return done

    until(launches, lambda done: done > count)


def compile_c(source: str, target: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "no C compiler; install one (Debian: apt-get install gcc libc6-dev)"
    command = [compiler, "-std=gnu11", "-O1", "-g", "-pthread", "-o", str(target), str(PROGRAMS / source), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe-driver")
    flags = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1")
    library = compile_c("probe_driver.c", folder / "libcuda.so.1", *flags)
    (folder / "libcuda.so").symlink_to(library)
    return folder


@pytest.fixture(scope="session")
def program(driver_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Compiles a C program from `programs/` against the driver, once."""
    folder = tmp_path_factory.mktemp("programs")
    built: dict[str, Path] = {}

    def build(name: str) -> str:
        if name not in built:
            built[name] = compile_c(f"{name}.c", folder / name, f"-L{driver_folder}", "-lcuda", "-ldl")
        return str(built[name])

    return build


@pytest.fixture
def workloads(tmp_path: Path, driver_folder: Path) -> Iterator[Workloads]:
    made = Workloads(tmp_path, driver_folder)
    yield made
    made.stop()


@pytest.fixture
def daemon(workloads: Workloads) -> Iterator[scripted.Daemon]:
    with scripted.running(workloads.sockets) as running:
        yield running
