"""Graphs, captured in every mode and built explicitly, launched repeatedly."""

import ctypes
import struct

from cuda.bindings import driver as cuda

from tests.hook.clients.calls import copy_out, function, ok, refused, start

COUNT = 64
device, stream = start()
saxpy = function("saxpy")
x, y = ok(cuda.cuMemAlloc(COUNT * 4)), ok(cuda.cuMemAlloc(COUNT * 4))
ok(cuda.cuMemcpyHtoD(x, struct.pack(f"{COUNT}f", *[1.0] * COUNT), COUNT * 4))
SCALED = ((COUNT, 2.0, int(x), int(y)), (ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p))
Mode = cuda.CUstreamCaptureMode


def total() -> float:
    return float(sum(struct.unpack(f"{COUNT}f", copy_out(y, COUNT * 4))))


for mode in (
    Mode.CU_STREAM_CAPTURE_MODE_GLOBAL,
    Mode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    Mode.CU_STREAM_CAPTURE_MODE_RELAXED,
):
    ok(cuda.cuStreamBeginCapture(stream, mode))
    ok(cuda.cuMemsetD8Async(y, 0, COUNT * 4, stream))
    for _ in range(50):
        ok(cuda.cuLaunchKernel(saxpy, 1, 1, 1, COUNT, 1, 1, 0, stream, SCALED, 0))
    print(ok(cuda.cuStreamIsCapturing(stream)).name)
    graph = ok(cuda.cuStreamEndCapture(stream))
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    ok(cuda.cuGraphUpload(executable, stream))
    for _ in range(3):
        ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuStreamSynchronize(stream))
    print(mode.name, total())

ok(cuda.cuStreamBeginCapture(stream, Mode.CU_STREAM_CAPTURE_MODE_RELAXED))
print("synchronised", refused(cuda.cuStreamSynchronize(stream)))
print("over", refused(cuda.cuStreamEndCapture(stream)))
ok(cuda.cuLaunchKernel(saxpy, 1, 1, 1, COUNT, 1, 1, 0, stream, SCALED, 0))
ok(cuda.cuStreamSynchronize(stream))
print("and works again", total())
