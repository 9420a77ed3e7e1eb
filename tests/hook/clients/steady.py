"""Works until its standard input ends, then reports whether every launch had its effect."""

import ctypes
import struct
import sys
import threading

from cuda.bindings import driver as cuda

from tests.hook.clients.calls import copy_out, function, ok, start

COUNT = 16
device, stream = start()
saxpy = function("saxpy")
x, y = ok(cuda.cuMemAlloc(COUNT * 4)), ok(cuda.cuMemAlloc(COUNT * 4))
ok(cuda.cuMemcpyHtoD(x, struct.pack(f"{COUNT}f", *[1.0] * COUNT), COUNT * 4))
ok(cuda.cuMemcpyHtoD(y, bytes(COUNT * 4), COUNT * 4))
ADD_ONE = ((COUNT, 1.0, int(x), int(y)), (ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p))
ended = threading.Event()


def wait_for_the_end() -> None:
    sys.stdin.read()
    ended.set()


threading.Thread(target=wait_for_the_end, daemon=True).start()
print("working", flush=True)
launches = 0
while not ended.is_set() or launches <= 100:
    ok(cuda.cuLaunchKernel(saxpy, 1, 1, 1, COUNT, 1, 1, 0, stream, ADD_ONE, 0))
    launches += 1
    if launches % 100 == 0:
        ok(cuda.cuStreamSynchronize(stream))
ok(cuda.cuStreamSynchronize(stream))
sums = set(struct.unpack(f"{COUNT}f", copy_out(y, COUNT * 4)))
print("right" if sums == {float(launches)} else f"{launches} launches left {sums}")
