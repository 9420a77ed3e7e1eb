"""The program gets the hook's functions no matter how it looks them up, and the library loads on old systems."""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from baton import native
from tests.hook.conftest import ROOT, Workloads, compile_c, finish
from tests.hook.daemon import Daemon

WAYS = [
    "linked",
    "dlsym",
    "dlsym_default",
    "dlsym_main",
    "dlsym_of_old_version",
    "dlsym_of_libc",
    "get_v1",
    "get_v2",
    "get_dlsym_v2",
    "get_by_get_v1",
    "get_by_get_v2",
    "per_thread",
]


@pytest.mark.parametrize("way", WAYS)
def test_a_launch_is_gated_however_it_was_found(
    way: str, workloads: Workloads, daemon: Daemon, program: Callable[[str], str]
) -> None:
    work = workloads.start(program("reach"), way)
    client = daemon.client()
    client.greet()
    client.grant()
    assert finish(work) == "0\n"
    assert workloads.record.devices[0].launches == 1
    assert workloads.record.per_thread == (1 if way == "per_thread" else 0)


def test_dlvsym_finds_the_wrappers_too(workloads: Workloads, daemon: Daemon) -> None:
    code = """
libc = ctypes.CDLL(None)
libc.dlvsym.restype = ctypes.c_void_p
found = libc.dlvsym(None, b'dlsym', b'GLIBC_2.34') or libc.dlvsym(None, b'dlsym', b'GLIBC_2.17')
lookup = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(found)
address = lookup(driver._handle, b'cuLaunchKernel')
say(address == ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value)
maps = [line.split() for line in open('/proc/self/maps')]
for line in maps:
    low, high = (int(part, 16) for part in line[0].split('-'))
    if low <= address < high:
        say(line[-1].rsplit('/')[-1])
"""
    assert workloads.run(code) == "True\nlibbaton.so\n"


def test_a_function_that_is_not_exported_is_gated_by_version(
    workloads: Workloads, daemon: Daemon, program: Callable[[str], str]
) -> None:
    work = workloads.start(program("reach"), "unexported")
    client = daemon.client()
    client.greet()
    client.grant()
    assert finish(work) == "0\n"
    assert workloads.record.devices[0].copies == 1


def test_an_abi_newer_than_the_hook_is_left_alone(workloads: Workloads, program: Callable[[str], str]) -> None:
    assert finish(workloads.start(program("reach"), "young")) == "untouched\n"


def test_rtld_next_means_after_the_caller(workloads: Workloads, tmp_path: Path) -> None:
    shared = ("-shared", "-fPIC")
    before = compile_c("next.c", tmp_path / "before.so", *shared, "-DANSWER=1")
    after = compile_c("next.c", tmp_path / "after.so", *shared, "-DANSWER=2")
    preload = f"{before}:{workloads.hook}:{after}"
    code = "import ctypes; print(ctypes.CDLL(None).answer())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=workloads.environment(LD_PRELOAD=preload), capture_output=True, text=True
    )
    assert done.stdout == "21\n", done.stderr


def test_the_hook_does_not_pretend_that_a_driver_exists(workloads: Workloads, tmp_path: Path) -> None:
    """The hook exports the driver's names; a program that looks for a driver must not find one through them."""
    code = """
import ctypes
try:
    ctypes.CDLL(None).cuInit
except AttributeError as missing:
    print('undefined symbol' in str(missing))
ctypes.CDLL(None).dlsym
"""
    environment = workloads.environment(LD_LIBRARY_PATH=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def needed_versions(library: Path, readelf: str) -> list[tuple[int, ...]]:
    shown = subprocess.run([readelf, "-V", "-W", str(library)], capture_output=True, text=True, check=True).stdout
    needs = shown[shown.index(".gnu.version_r") :]
    return [tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", needs)]


def test_the_object_loads_on_glibc_2_17() -> None:
    readelf = shutil.which("readelf")
    assert readelf, "readelf is required; it is part of binutils, which the compiler needs"
    library = native.library("libbaton.so")
    versions = needed_versions(library, readelf)
    assert versions
    assert max(versions) <= (2, 17)
    dynamic = subprocess.run([readelf, "-d", str(library)], capture_output=True, text=True, check=True).stdout
    # Before glibc 2.34 these held dlopen and pthread_create.
    assert "[libdl.so.2]" in dynamic
    assert "[libpthread.so.0]" in dynamic


def test_only_the_interface_is_exported() -> None:
    nm = shutil.which("nm")
    assert nm, "nm is required; it is part of binutils, which the compiler needs"
    library = native.library("libbaton.so")
    shown = subprocess.run(
        [nm, "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in shown.splitlines() if " A " not in line}
    assert {"dlsym", "dlvsym", "baton_hook_version", "cuLaunchKernel", "cuLaunchKernel_ptsz"} <= names
    strange = {name for name in names if not name.startswith(("cu", "nvmlDeviceGetMemoryInfo"))}
    assert strange == {"dlsym", "dlvsym", "baton_hook_version"}


def test_the_sources_compile_for_aarch64(tmp_path: Path) -> None:
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if not compiler:
        pytest.skip("no aarch64 cross compiler (Debian: gcc-aarch64-linux-gnu)")
    done = subprocess.run(
        [sys.executable, str(ROOT / "native" / "build.py"), "--out", str(tmp_path), "--only", "libbaton.so"],
        env={"PATH": "/usr/bin:/bin", "CC": compiler},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    readelf = shutil.which("aarch64-linux-gnu-readelf")
    assert readelf
    assert max(needed_versions(tmp_path / "libbaton.so", readelf)) <= (2, 17)


def parameters_declared_by_nvidia() -> dict[str, int]:
    """Parameter counts of the newest ABI of every driver function, from the bindings' declarations."""
    bindings = importlib.util.find_spec("cuda.bindings")
    assert bindings is not None
    assert bindings.origin is not None
    text = (Path(bindings.origin).parent / "cydriver.pxd").read_text()
    found = re.findall(r"cdef CUresult (cu\w+)\((.*?)\) except", text)
    return {name: len(parameters.split(",")) if parameters else 0 for name, parameters in found}


def parameters_of_wrappers() -> dict[str, int]:
    """The same for the newest ABI in the hook's table."""
    row = re.compile(
        r'(?:PTSZ|PTDS|PLAIN)\(X, \w+, "(\w+)", (\d+), \w+, .*?, \(((?:const|void|CU|unsigned|size_t|int|baton)[^)]*)\)'
    )
    newest: dict[str, tuple[int, int]] = {}
    for name, since, parameters in row.findall((ROOT / "native" / "hook" / "table.h").read_text()):
        count = 0 if parameters == "void" else len(parameters.split(","))
        newest[name] = max(newest.get(name, (0, 0)), (int(since), count))
    return {name: count for name, (_, count) in newest.items()}


def test_wrappers_take_the_parameters_that_nvidia_declares() -> None:
    ours, theirs = parameters_of_wrappers(), parameters_declared_by_nvidia()
    assert len(ours) > 80
    assert {name: ours[name] for name in ours} == {name: theirs[name] for name in ours}


def test_every_form_of_work_is_wrapped() -> None:
    work = re.compile(r"cu(Launch|Memcpy|Memset|GraphLaunch|GraphUpload|MemPrefetch)")
    forms = {name for name in parameters_declared_by_nvidia() if work.match(name)}
    assert forms - set(parameters_of_wrappers()) == {"cuLaunchHostFunc", "cuLaunchHostFunc_v2"}
