"""Kernels that compute, launched in every form, with both default-stream flavours and ordered by events."""

import ctypes
import struct

from cuda.bindings import driver as cuda

from tests.hook.clients.calls import copy_out, function, ok, refused, start

COUNT = 256
device, stream = start()
add, saxpy = function("vector_add"), function("saxpy")
a, b, c = (ok(cuda.cuMemAlloc(COUNT * 4)) for _ in range(3))
ok(cuda.cuMemcpyHtoD(a, struct.pack(f"{COUNT}f", *range(COUNT)), COUNT * 4))
ok(cuda.cuMemcpyHtoD(b, struct.pack(f"{COUNT}f", *range(0, 2 * COUNT, 2)), COUNT * 4))
SUM = ((int(a), int(b), int(c), COUNT), (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int))
SCALED = ((COUNT, 2.0, int(a), int(c)), (ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p))


def show(label: str) -> None:
    print(label, sum(struct.unpack(f"{COUNT}f", copy_out(c, COUNT * 4))))


ok(cuda.cuLaunchKernel(add, 1, 1, 1, COUNT, 1, 1, 0, stream, SUM, 0))
ok(cuda.cuStreamSynchronize(stream))
show("plain")
ok(cuda.cuLaunchKernel(saxpy, 1, 1, 1, COUNT, 1, 1, 0, 0, SCALED, 0))
ok(cuda.cuCtxSynchronize())
show("default stream")
config = cuda.CUlaunchConfig()
config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
config.blockDimX, config.hStream = COUNT, stream
ok(cuda.cuLaunchKernelEx(config, saxpy, SCALED, 0))
ok(cuda.cuLaunchCooperativeKernel(saxpy, 1, 1, 1, COUNT, 1, 1, 0, stream, SCALED))
ok(cuda.cuStreamSynchronize(stream))
show("extended and cooperative")

event = ok(cuda.cuEventCreate(0))
for _ in range(300):
    ok(cuda.cuLaunchKernel(saxpy, 1, 1, 1, COUNT, 1, 1, 0, stream, SCALED, 0))
ok(cuda.cuEventRecord(event, stream))
ok(cuda.cuEventSynchronize(event))
show("many")
print("too large", refused(cuda.cuLaunchKernel(add, 1, 1, 1, 1 << 20, 1, 1, 0, stream, SUM, 0)))
