"""Names available to the tests' Python workloads: the driver through ctypes, as a program without headers uses it."""

import ctypes
import os
import sys
import threading
import time

driver = ctypes.CDLL("libcuda.so.1")
KERNEL = 0xF0


def call(name: str, *arguments: object) -> int:
    return int(getattr(driver, name)(*arguments))


def check(name: str, *arguments: object) -> None:
    result = call(name, *arguments)
    assert result == 0, f"{name}: {result}"


def use(device: int = 0) -> ctypes.c_void_p:
    """Make the device's primary context current in this thread."""
    context = ctypes.c_void_p()
    check("cuInit", 0)
    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    check("cuCtxSetCurrent", context)
    return context


def launch(stream: object = None, kernel: int = KERNEL) -> int:
    pointers = (ctypes.c_void_p(kernel), *[ctypes.c_uint(1)] * 6, ctypes.c_uint(0), stream, None, None)
    return call("cuLaunchKernel", *pointers)


def allocate(size: int, name: str = "cuMemAlloc_v2", *more: object) -> tuple[int, int]:
    pointer = ctypes.c_ulonglong()
    return call(name, ctypes.byref(pointer), ctypes.c_size_t(size), *more), pointer.value


def free(pointer: int) -> int:
    return call("cuMemFree_v2", ctypes.c_ulonglong(pointer))


def new_stream() -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    check("cuStreamCreate", ctypes.byref(stream), 0)
    return stream


def memory() -> tuple[int, int]:
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    check("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
    return left.value, total.value


def say(*words: object) -> None:
    print(*words, flush=True)


def next_line() -> str:
    """Wait for a line from the test."""
    return sys.stdin.readline().strip()


__all__ = [
    "allocate",
    "call",
    "check",
    "ctypes",
    "driver",
    "free",
    "launch",
    "memory",
    "new_stream",
    "next_line",
    "os",
    "say",
    "sys",
    "threading",
    "time",
    "use",
]
