"""Every allocation path, including contents: how a program sees its memory."""

from cuda.bindings import driver as cuda

from tests.hook.clients.calls import copy_out, ok, refused, start

SIZE = 1 << 16

device, stream = start()
plain = ok(cuda.cuMemAlloc(SIZE))
pitched, pitch = ok(cuda.cuMemAllocPitch(1000, 16, 4))
managed = ok(cuda.cuMemAllocManaged(SIZE, 1))
ordered = ok(cuda.cuMemAllocAsync(SIZE, stream))
pool = ok(cuda.cuDeviceGetDefaultMemPool(device))
pooled = ok(cuda.cuMemAllocFromPoolAsync(SIZE, pool, stream))
print("pitch", pitch)
for number, pointer in enumerate([plain, pitched, managed, ordered, pooled], start=1):
    ok(cuda.cuMemsetD8Async(pointer, number, 1000, stream))
    ok(cuda.cuStreamSynchronize(stream))
    print(number, sum(copy_out(pointer, 1000)))

properties = cuda.CUmemAllocationProp()
properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
properties.location.id = int(device)
flag = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
granule = ok(cuda.cuMemGetAllocationGranularity(properties, flag))
address = ok(cuda.cuMemAddressReserve(granule * 2, 0, 0, 0))
handle = ok(cuda.cuMemCreate(granule, properties, 0))
ok(cuda.cuMemMap(address, granule, 0, handle, 0))
ok(cuda.cuMemRelease(handle))
access = cuda.CUmemAccessDesc()
access.location = properties.location
access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
ok(cuda.cuMemSetAccess(address, granule, [access], 1))
ok(cuda.cuMemsetD8(address, 9, granule))
print("mapped", sum(copy_out(address, granule)))
ok(cuda.cuMemUnmap(address, granule))
ok(cuda.cuMemAddressFree(address, granule * 2))

shape = cuda.CUDA_ARRAY_DESCRIPTOR()
shape.Width, shape.Height, shape.NumChannels = 64, 32, 1
shape.Format = cuda.CUarray_format.CU_AD_FORMAT_FLOAT
ok(cuda.cuArrayDestroy(ok(cuda.cuArrayCreate(shape))))

ok(cuda.cuMemFreeAsync(ordered, stream))
ok(cuda.cuMemFreeAsync(pooled, stream))
ok(cuda.cuStreamSynchronize(stream))
for pointer in (plain, pitched, managed):
    ok(cuda.cuMemFree(pointer))
print("freed twice", refused(cuda.cuMemFree(plain)))
print("nothing", refused(cuda.cuMemAlloc(0)))
