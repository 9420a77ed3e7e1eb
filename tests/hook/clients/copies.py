"""Copies and memsets in all their forms; contents survive a round trip."""

import hashlib

from cuda.bindings import driver as cuda

from tests.hook.clients.calls import copy_out, ok, refused, start

SIZE = 4096


def show(label: str, data: bytes) -> None:
    print(label, hashlib.sha256(data).hexdigest()[:16])


device, stream = start()
first, second = ok(cuda.cuMemAlloc(SIZE)), ok(cuda.cuMemAlloc(SIZE))
pattern = bytes(range(256)) * (SIZE // 256)

ok(cuda.cuMemcpyHtoD(first, pattern, SIZE))
show("to device", copy_out(first, SIZE))
ok(cuda.cuMemcpyDtoD(second, first, SIZE // 2))
ok(cuda.cuMemcpy(int(second) + SIZE // 2, first, SIZE // 2))
show("within device", copy_out(second, SIZE))
ok(cuda.cuMemcpyHtoDAsync(second, pattern[::-1], SIZE, stream))
ok(cuda.cuMemcpyDtoDAsync(first, second, SIZE, stream))
back = bytearray(SIZE)
ok(cuda.cuMemcpyDtoHAsync(back, first, SIZE, stream))
ok(cuda.cuStreamSynchronize(stream))
show("asynchronous", bytes(back))

ok(cuda.cuMemsetD8(first, 1, SIZE))
ok(cuda.cuMemsetD16(first, 0x0203, 16))
ok(cuda.cuMemsetD32(int(first) + 64, 0x04050607, 16))
ok(cuda.cuMemsetD2D8(int(first) + 256, 64, 8, 10, 4))
ok(cuda.cuMemsetD2D32Async(int(first) + 1024, 128, 9, 10, 4, stream))
ok(cuda.cuStreamSynchronize(stream))
show("set", copy_out(first, SIZE))

shape = cuda.CUDA_MEMCPY2D()
shape.srcMemoryType = shape.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
shape.srcDevice, shape.dstDevice = first, second
shape.srcPitch = shape.dstPitch = 64
shape.WidthInBytes, shape.Height = 32, 8
ok(cuda.cuMemcpy2D(shape))
ok(cuda.cuMemcpy2DAsync(shape, stream))
ok(cuda.cuStreamSynchronize(stream))
show("rectangles", copy_out(second, SIZE))

print("outside", refused(cuda.cuMemcpyDtoH(bytearray(16), 16, 16)))
