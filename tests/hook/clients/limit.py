"""Allocates up to 64 MiB on each path, then one more page; frees everything in between."""

from collections.abc import Callable
from typing import Any

import pynvml as nvml
from cuda.bindings import driver as cuda

from tests.hook.clients.calls import ok, refused, start

FULL, MORE = 64 << 20, 2 << 20
device, stream = start()

properties = cuda.CUmemAllocationProp()
properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
properties.location.id = int(device)

pool_properties = cuda.CUmemPoolProps()
pool_properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
pool_properties.location = properties.location
pool = ok(cuda.cuMemPoolCreate(pool_properties))


def flat(size: int) -> Any:
    shape = cuda.CUDA_ARRAY_DESCRIPTOR()
    shape.Width, shape.Height, shape.NumChannels = 1024, size // 4096, 1
    shape.Format = cuda.CUarray_format.CU_AD_FORMAT_FLOAT
    return cuda.cuArrayCreate(shape)


def solid(size: int) -> Any:
    shape = cuda.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width, shape.Height, shape.Depth, shape.NumChannels = 256, 16, size // 16384, 1
    shape.Format = cuda.CUarray_format.CU_AD_FORMAT_FLOAT
    return cuda.cuArray3DCreate(shape)


def unmap(address: Any) -> Any:
    return cuda.cuMemUnmap(address, FULL)


def mapped(size: int) -> Any:
    """A mapping whose handle is released at once; the mapping keeps the memory alive."""
    error, handle = cuda.cuMemCreate(size, properties, 0)
    if error != 0:
        return (error,)
    address = ok(cuda.cuMemAddressReserve(size, 0, 0, 0))
    ok(cuda.cuMemMap(address, size, 0, handle, 0))
    return (*cuda.cuMemRelease(handle), address)


def pitched(size: int) -> Any:
    answer = cuda.cuMemAllocPitch(1024, size // 1024, 4)
    return answer[:2] if answer[0] == 0 else answer


PATHS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "plain": (cuda.cuMemAlloc, cuda.cuMemFree),
    "pitched": (pitched, cuda.cuMemFree),
    "managed": (lambda size: cuda.cuMemAllocManaged(size, 1), cuda.cuMemFree),
    "ordered": (lambda size: cuda.cuMemAllocAsync(size, stream), lambda p: cuda.cuMemFreeAsync(p, stream)),
    "pooled": (lambda size: cuda.cuMemAllocFromPoolAsync(size, pool, stream), lambda p: cuda.cuMemFreeAsync(p, stream)),
    "created": (lambda size: cuda.cuMemCreate(size, properties, 0), cuda.cuMemRelease),
    "mapped": (mapped, unmap),
    "array": (flat, cuda.cuArrayDestroy),
    "array3d": (solid, cuda.cuArrayDestroy),
}

for name, (allocate, release) in PATHS.items():
    memory = ok(allocate(FULL))
    others = {refused(other(MORE)) for other, _ in PATHS.values()}
    print(f"beyond {name}: {' '.join(sorted(others))}")
    ok(release(memory))

left, total = ok(cuda.cuMemGetInfo())
print(f"left at the end: {left}")
print(f"total: {total}")
print(f"device: {ok(cuda.cuDeviceTotalMem(device))}")
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
print(f"nvml: {nvml.nvmlDeviceGetMemoryInfo(handle).total}")
print(f"nvml v2: {nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).total}")
