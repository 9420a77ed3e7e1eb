"""Shorthands for the bindings, whose calls return the error first."""

from typing import Any

from cuda.bindings import driver as cuda


def ok(answer: tuple[Any, ...]) -> Any:
    """The results of a call that must succeed."""
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


def refused(answer: tuple[Any, ...]) -> str:
    """The error of a call that must fail."""
    assert answer[0] != 0
    return str(answer[0].name)


def start(ordinal: int = 0) -> tuple[Any, Any]:
    """A device whose primary context is current, and a stream on it."""
    ok(cuda.cuInit(0))
    device = ok(cuda.cuDeviceGet(ordinal))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(device))))
    return device, ok(cuda.cuStreamCreate(1))


def copy_out(pointer: Any, size: int) -> bytes:
    buffer = bytearray(size)
    ok(cuda.cuMemcpyDtoH(buffer, pointer, size))
    return bytes(buffer)


def function(name: str) -> Any:
    module = ok(cuda.cuModuleLoadData(b"any image\0"))
    return ok(cuda.cuModuleGetFunction(module, name.encode()))
