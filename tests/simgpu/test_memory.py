"""Memory of every kind keeps its contents, and the card's accounting is exact."""

from collections.abc import Callable

from tests.gpu.machines import PATIENCE_S, Machine


def test_windows_and_pageable_memory_round_trip(machine: Machine) -> None:
    machine.run("""
        open_card()
        data = np.random.default_rng(1).integers(0, 256, 1 << 16, dtype=np.uint8)
        back = np.zeros_like(data)
        a, b = (check(cuda.cuMemAlloc(data.nbytes)) for _ in range(2))

        check(cuda.cuMemcpyHtoD(a, data.ctypes.data, data.nbytes))
        check(cuda.cuMemcpyDtoD(b, a, data.nbytes))
        check(cuda.cuMemcpyDtoH(back.ctypes.data, b, data.nbytes))
        assert (back == data).all()

        stream = check(cuda.cuStreamCreate(1))
        pinned = check(cuda.cuMemAllocHost(data.nbytes))
        view = np.ctypeslib.as_array((ctypes.c_uint8 * data.nbytes).from_address(pinned))
        view[:] = data[::-1]
        check(cuda.cuMemcpyHtoDAsync(a, pinned, data.nbytes, stream))
        check(cuda.cuMemcpyDtoDAsync(b, a, data.nbytes, stream))
        check(cuda.cuMemcpyAsync(a, b, data.nbytes, stream))
        check(cuda.cuMemcpyDtoHAsync(back.ctypes.data, a, data.nbytes, stream))
        check(cuda.cuStreamSynchronize(stream))
        assert (back == data[::-1]).all()

        # Pageable memory may be reused as soon as the call returns.
        source = data.copy()
        with held(stream):
            check(cuda.cuMemcpyHtoDAsync(a, source.ctypes.data, source.nbytes, stream))
            source[:] = 0
        check(cuda.cuStreamSynchronize(stream))
        check(cuda.cuMemcpyDtoH(back.ctypes.data, a, data.nbytes))
        assert (back == data).all()

        # A window of a pitched matrix, into a packed one and back through three dimensions.
        rows, width = 16, 100
        matrix, pitch = check(cuda.cuMemAllocPitch(width, rows, 4))
        assert pitch >= width and pitch % 4 == 0
        flat = cuda.CUDA_MEMCPY2D()
        flat.srcMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        flat.srcHost, flat.srcPitch = data.ctypes.data, width
        flat.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        flat.dstDevice, flat.dstPitch = matrix, pitch
        flat.WidthInBytes, flat.Height = width, rows
        check(cuda.cuMemcpy2D(flat))
        deep = cuda.CUDA_MEMCPY3D()
        deep.srcMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
        deep.srcDevice, deep.srcPitch, deep.srcHeight = matrix, pitch, rows // 2
        deep.srcXInBytes, deep.srcY, deep.srcZ = 10, 1, 1
        back[:] = 0
        deep.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
        deep.dstHost, deep.dstPitch, deep.dstHeight = back.ctypes.data, 50, 4
        deep.WidthInBytes, deep.Height, deep.Depth = 50, 4, 1
        check(cuda.cuMemcpy3D(deep))
        wanted = data[: rows * width].reshape(rows, width)[9:13, 10:60]
        assert (back[:200].reshape(4, 50) == wanted).all()
    """)


def test_clearing_a_large_range_needs_no_host_memory(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine(f"*.memory_bytes={80 << 30}", "*.time_scale=1000")
    machine.run("""
        import resource
        open_card()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        memory = check(cuda.cuMemAlloc(70 * GIB))
        check(cuda.cuMemsetD8(memory, 0, 70 * GIB))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
        assert result_of(cuda.cuMemAlloc(20 * GIB)) == "OUT_OF_MEMORY"
    """)


def test_plain_memory_is_refused_when_all_processes_together_would_exceed_the_card(machine: Machine) -> None:
    holder = machine.start("""
        open_card()
        check(cuda.cuMemAlloc(600 * MIB))
        say("holding")
        sys.stdin.read()
    """)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    machine.run("""
        open_card()
        assert check(cuda.cuMemGetInfo()) == (424 * MIB, GIB)
        assert result_of(cuda.cuMemAlloc(425 * MIB)) == "OUT_OF_MEMORY"
        kept = check(cuda.cuMemAlloc(424 * MIB))
        assert check(cuda.cuMemGetInfo())[0] == 0
        check(cuda.cuMemFree(kept))
        assert check(cuda.cuMemGetInfo())[0] == 424 * MIB
        check(cuda.cuCtxCreate(None, 0, 1))
        assert check(cuda.cuMemGetInfo())[0] == GIB
    """)
    holder.communicate("", timeout=PATIENCE_S)
    assert machine.card().free_bytes == 1 << 30


def test_pointer_attributes_describe_the_memory(machine: Machine) -> None:
    machine.run("""
        context = open_card()
        A = cuda.CUpointer_attribute
        device, managed = check(cuda.cuMemAlloc(1 * MIB)), check(cuda.cuMemAllocManaged(4 * MIB, 1))
        host = check(cuda.cuMemHostAlloc(4096, 0))
        assert check(cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device)) == 2
        assert check(cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host)) == 1
        assert check(cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_IS_MANAGED, managed))
        assert not check(cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_IS_MANAGED, device))
        base, size = check(cuda.cuMemGetAddressRange(int(managed) + 4096))
        assert (int(base), size) == (int(managed), 4 * MIB)
        assert result_of(cuda.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096)) == "INVALID_VALUE"
        # The host reads and writes managed memory in place.
        view = np.ctypeslib.as_array((ctypes.c_uint8 * 100).from_address(int(managed)))
        view[:] = 9
        out = np.zeros(100, np.uint8)
        check(cuda.cuMemcpyDtoH(out.ctypes.data, managed, 100))
        assert (out == 9).all()
        assert result_of(cuda.cuMemFree(int(device) + 512)) == "INVALID_VALUE"
        check(cuda.cuMemFree(device))
        assert result_of(cuda.cuMemFree(device)) == "INVALID_VALUE"
        assert result_of(cuda.cuMemcpyHtoD(device, out.ctypes.data, 100)) == "INVALID_VALUE"
        assert result_of(cuda.cuMemcpyHtoD(managed, out.ctypes.data, 5 * MIB)) == "INVALID_VALUE"
        buffer = np.zeros(8192, np.uint8)
        check(cuda.cuMemHostRegister(buffer.ctypes.data, buffer.nbytes, 0))
        assert result_of(cuda.cuMemHostRegister(buffer.ctypes.data, 10, 0)) == "HOST_MEMORY_ALREADY_REGISTERED"
        check(cuda.cuMemHostUnregister(buffer.ctypes.data))
    """)


def test_stream_ordered_memory_and_pools(machine: Machine) -> None:
    machine.run("""
        open_card()
        stream = check(cuda.cuStreamCreate(1))
        used = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        pool = check(cuda.cuDeviceGetDefaultMemPool(0))
        memory = check(cuda.cuMemAllocAsync(300 * MIB, stream))
        assert int(check(cuda.cuMemPoolGetAttribute(pool, used))) == 300 * MIB
        check(cuda.cuMemsetD8Async(memory, 5, 4096, stream))
        check(cuda.cuMemFreeAsync(memory, stream))
        assert result_of(cuda.cuMemFreeAsync(memory, stream)) == "INVALID_VALUE"
        check(cuda.cuStreamSynchronize(stream))
        assert int(check(cuda.cuMemPoolGetAttribute(pool, used))) == 0
        assert check(cuda.cuMemGetInfo())[0] == GIB

        # Memory freed in stream order is available to the next allocation even before the stream reaches the free.
        for _ in range(10):
            piece = check(cuda.cuMemAllocAsync(900 * MIB, stream))
            busy(1, stream)
            check(cuda.cuMemFreeAsync(piece, stream))

        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.maxSize = 100 * MIB
        own = check(cuda.cuMemPoolCreate(properties))
        assert result_of(cuda.cuMemAllocFromPoolAsync(101 * MIB, own, stream)) == "OUT_OF_MEMORY"
        check(cuda.cuMemAllocFromPoolAsync(100 * MIB, own, stream))
    """)


def test_virtual_memory_management(machine: Machine) -> None:
    machine.run("""
        open_card()
        properties = cuda.CUmemAllocationProp()
        properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = 0
        minimum = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        grain = check(cuda.cuMemGetAllocationGranularity(properties, minimum))
        space = check(cuda.cuMemAddressReserve(8 * grain, 0, 0, 0))
        pieces = [check(cuda.cuMemCreate(2 * grain, properties, 0)) for _ in range(2)]
        assert check(cuda.cuMemGetInfo())[0] == GIB - 4 * grain
        for index, piece in enumerate(pieces):
            check(cuda.cuMemMap(int(space) + index * 2 * grain, 2 * grain, 0, piece, 0))
        check(cuda.cuMemMap(int(space) + 4 * grain, 2 * grain, 0, pieces[0], 0))
        assert result_of(cuda.cuMemMap(space, grain, 0, pieces[0], 0)) == "ALREADY_MAPPED"
        access = cuda.CUmemAccessDesc()
        access.location = properties.location
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(cuda.cuMemSetAccess(space, 6 * grain, [access], 1))

        # One copy across the boundary of two mappings, visible again where the first piece is mapped a second time.
        data = np.arange(grain, dtype=np.uint8)
        check(cuda.cuMemcpyHtoD(int(space) + 2 * grain - grain // 2, data.ctypes.data, grain))
        back = np.zeros_like(data)
        check(cuda.cuMemcpyDtoH(back.ctypes.data, int(space) + 2 * grain - grain // 2, grain))
        assert (back == data).all()
        check(cuda.cuMemcpyDtoH(back.ctypes.data, int(space) + 6 * grain - grain // 2, grain // 2))
        assert (back[: grain // 2] == data[: grain // 2]).all()

        assert result_of(cuda.cuMemAddressFree(space, 8 * grain)) == "INVALID_VALUE"
        for piece in pieces:
            check(cuda.cuMemRelease(piece))
        assert check(cuda.cuMemGetInfo())[0] == GIB - 4 * grain, "mappings keep the memory"
        check(cuda.cuMemUnmap(space, 6 * grain))
        assert check(cuda.cuMemGetInfo())[0] == GIB
        check(cuda.cuMemAddressFree(space, 8 * grain))
        assert result_of(cuda.cuMemCreate(2 * GIB, properties, 0)) == "OUT_OF_MEMORY"
    """)


def test_copies_between_cards_and_through_arrays(machine: Machine) -> None:
    machine.run("""
        open_card()
        first = check(cuda.cuCtxGetCurrent())
        second = check(cuda.cuCtxCreate(None, 0, 1))
        b = check(cuda.cuMemAlloc(4096))
        check(cuda.cuCtxPopCurrent())
        a = check(cuda.cuMemAlloc(4096))
        check(cuda.cuMemsetD8(a, 3, 4096))
        check(cuda.cuMemcpyPeer(b, second, a, first, 4096))
        out = np.zeros(4096, np.uint8)
        check(cuda.cuMemcpyDtoH(out.ctypes.data, b, 4096))
        assert (out == 3).all()

        T = cuda.CUmemorytype
        shape = cuda.CUDA_ARRAY_DESCRIPTOR()
        shape.Width, shape.Height, shape.NumChannels = 64, 4, 1
        shape.Format = cuda.CUarray_format.CU_AD_FORMAT_FLOAT
        array = check(cuda.cuArrayCreate(shape))
        data, back = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
        there = cuda.CUDA_MEMCPY2D()
        there.srcMemoryType, there.srcHost, there.srcPitch = T.CU_MEMORYTYPE_HOST, data.ctypes.data, 256
        there.dstMemoryType, there.dstArray = T.CU_MEMORYTYPE_ARRAY, array
        there.WidthInBytes, there.Height = 256, 4
        check(cuda.cuMemcpy2D(there))
        again = cuda.CUDA_MEMCPY2D()
        again.srcMemoryType, again.srcArray = T.CU_MEMORYTYPE_ARRAY, array
        again.dstMemoryType, again.dstHost, again.dstPitch = T.CU_MEMORYTYPE_HOST, back.ctypes.data, 256
        again.WidthInBytes, again.Height = 256, 4
        check(cuda.cuMemcpy2D(again))
        assert (back == data).all()
        check(cuda.cuArrayDestroy(array))
    """)
