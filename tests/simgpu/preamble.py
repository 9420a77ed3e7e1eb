"""Names available to every program on the simulated driver: NVIDIA's own bindings, unmodified, and a few shorthands."""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda

MIB = 1 << 20
GIB = 1 << 30
U64 = ctypes.c_uint64

__all__ = ["GIB", "MIB", "U64", "Any", "blocks_for", "busy", "check", "ctypes", "cuda", "elapsed_ms", "function"]
__all__ += ["held", "np", "open_card", "os", "result_of", "say", "sys", "threading", "touch"]


def check(answer: tuple[Any, ...]) -> Any:
    """The value of a call that must succeed."""
    result, *values = answer
    if result != cuda.CUresult.CUDA_SUCCESS:
        raise RuntimeError(result.name)
    return values[0] if len(values) == 1 else tuple(values)


def result_of(answer: tuple[Any, ...]) -> str:
    """The name of a call's result, without CUDA_ERROR_."""
    return str(answer[0].name).replace("CUDA_ERROR_", "").replace("CUDA_", "")


def open_card(device: int = 0) -> Any:
    check(cuda.cuInit(0))
    return check(cuda.cuCtxCreate(None, 0, device))


def function(name: str) -> Any:
    module = check(cuda.cuModuleLoadData(b"any image"))
    return check(cuda.cuModuleGetFunction(module, name.encode()))


def blocks_for(demand: float) -> int:
    """The number of blocks of 1024 threads that keep this fraction of the card's SMs busy."""
    count: int = check(cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
    return round(demand * count * 2)


def busy(milliseconds: float, stream: Any = 0, demand: float = 1.0) -> None:
    """Launch a kernel that keeps the card busy for a modelled time."""
    values = ((int(milliseconds * 1e6),), (U64,))
    check(cuda.cuLaunchKernel(function("baton_busy"), blocks_for(demand), 1, 1, 1024, 1, 1, 0, stream, values, 0))


def touch(memory: Any, size: int, milliseconds: float = 1, stream: Any = 0) -> None:
    """Launch a kernel that touches a range of memory."""
    values = ((int(memory), size, int(milliseconds * 1e6)), (U64, U64, U64))
    check(cuda.cuLaunchKernel(function("baton_touch"), blocks_for(1), 1, 1, 1024, 1, 1, 0, stream, values, 0))


@contextmanager
def held(stream: Any = 0) -> Iterator[None]:
    """Hold back a stream's work until the block ends: up to 32 pieces then begin at the same moment.

    However slowly a busy machine launches them, their duration is computed from that moment on.
    """
    let_go = threading.Event()
    wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: let_go.wait() and None)
    _held.append(wait)  # keep it alive: the stream may call it after the block
    check(cuda.cuLaunchHostFunc(stream, cuda.CUhostFn(ctypes.cast(wait, ctypes.c_void_p).value), 0))
    try:
        yield
    finally:
        let_go.set()


_held: list[Any] = []


def elapsed_ms(start: Any, end: Any) -> float:
    return float(check(cuda.cuEventElapsedTime(start, end)))


def say(*words: object) -> None:
    """Send a line to the test and continue."""
    print(*words, flush=True)
