"""Every form of copy and memset that NVIDIA's bindings know, on both kinds of default stream."""

import pytest

from tests.gpu.machines import Machine

SETUP = """
    import re
    class Recording:
        used = set()
        def __getattr__(self, name):
            self.used.add(name)
            return getattr(cuda, name)
    form = Recording()
    first = open_card()
    stream, chance = check(cuda.cuStreamCreate(1)), np.random.default_rng(7)
    def known(prefix):
        return {name for name in dir(cuda) if re.match(prefix, name)}
"""

COPIES = """
    N, T, order = 4096, cuda.CUmemorytype, cuda.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    a, b, middle = (check(cuda.cuMemAlloc(N)) for _ in range(3))
    check(cuda.cuCtxCreate(None, 0, 1))
    second, far = check(cuda.cuCtxGetCurrent()), check(cuda.cuMemAlloc(N))
    check(cuda.cuCtxPopCurrent())
    host, pinned = np.zeros(N, np.uint8), check(cuda.cuMemAllocHost(N))
    row = cuda.CUDA_ARRAY_DESCRIPTOR()
    row.Width, row.NumChannels, row.Format = N // 4, 1, cuda.CUarray_format.CU_AD_FORMAT_FLOAT
    this, that = (check(cuda.cuArrayCreate(row)) for _ in range(2))
    row.Width, row.Height = 64, 16
    square = check(cuda.cuArrayCreate(row))

    def shape(kind, source=a, target=b):
        made = kind()
        made.srcMemoryType = made.dstMemoryType = T.CU_MEMORYTYPE_DEVICE
        made.srcDevice, made.dstDevice = source, target
        made.srcPitch = made.dstPitch = made.WidthInBytes = 64
        if kind is not cuda.CUDA_MEMCPY2D:
            made.srcHeight = made.dstHeight = made.Depth = 8
            made.Height = N // 64 // 8
        else:
            made.Height = N // 64
        return made

    def across(call, *more):
        there, back = shape(cuda.CUDA_MEMCPY3D_PEER, a, far), shape(cuda.CUDA_MEMCPY3D_PEER, far, b)
        there.srcContext, there.dstContext, back.srcContext, back.dstContext = first, second, second, first
        check(call(there, *more))
        check(call(back, *more))

    def batch():
        attributes = cuda.CUmemcpyAttributes()
        attributes.srcAccessOrder = order
        sizes, targets = [1000, 96, N - 1096], [0, 1000, 1096]
        check(form.cuMemcpyBatchAsync([cuda.CUdeviceptr(int(b) + at) for at in targets],
                                      [cuda.CUdeviceptr(int(a) + at) for at in targets],
                                      sizes, 3, [attributes], [0], 1, stream))

        wrong = cuda.CUmemcpyAttributes()
        refused = cuda.cuMemcpyBatchAsync([b, b], [a, a], [1, 1], 2, [attributes, wrong], [0, 1], 2, stream)
        assert result_of(refused) == "INVALID_VALUE", "the second one has an invalid order"
        refused = cuda.cuMemcpyBatchAsync([b], [a], [1], 1, [attributes], [0], 1, cuda.CUstream(1))
        assert result_of(refused) == "INVALID_VALUE", "the legacy stream"

    def in_memory(pointer):
        made = cuda.CUmemcpy3DOperand()
        made.type = cuda.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER
        made.op.ptr.ptr, made.op.ptr.rowLength = pointer, 64
        return made

    def in_array(x):
        made = cuda.CUmemcpy3DOperand()
        made.type = cuda.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_ARRAY
        made.op.array.array, made.op.array.offset.x = square, x
        return made

    # Rows of 64 floats; the left and the right half of each go through the array and back separately.
    def solid_batch():
        ends = [(in_memory(int(a)), in_array(0)), (in_memory(int(a) + 128), in_array(32)),
                (in_array(32), in_memory(int(b) + 128)), (in_array(0), in_memory(int(b)))]
        ops = [cuda.CUDA_MEMCPY3D_BATCH_OP() for _ in ends]
        for op, (source, target) in zip(ops, ends, strict=True):
            op.src, op.dst, op.srcAccessOrder = source, target, order
            op.extent.width, op.extent.height, op.extent.depth = 32, 16, 1
        check(form.cuMemcpy3DBatchAsync(len(ops), ops, 0, stream))

    def chain(*calls):
        for call in calls:
            check(call)

    # Each one copies the contents of a to b in a different way.
    ways = [
        lambda: check(form.cuMemcpy(b, a, N)),
        lambda: check(form.cuMemcpyAsync(b, a, N, stream)),
        lambda: check(form.cuMemcpyDtoD(b, a, N)),
        lambda: check(form.cuMemcpyDtoDAsync(b, a, N, stream)),
        lambda: chain(form.cuMemcpyDtoH(host.ctypes.data, a, N), form.cuMemcpyHtoD(b, host.ctypes.data, N)),
        lambda: chain(form.cuMemcpyDtoHAsync(pinned, a, N, stream), form.cuMemcpyHtoDAsync(b, pinned, N, stream)),
        lambda: chain(form.cuMemcpyPeer(far, second, a, first, N), form.cuMemcpyPeer(b, first, far, second, N)),
        lambda: chain(form.cuMemcpyPeerAsync(far, second, a, first, N, stream),
                      form.cuMemcpyPeerAsync(b, first, far, second, N, stream)),
        lambda: check(form.cuMemcpy2D(shape(cuda.CUDA_MEMCPY2D))),
        lambda: check(form.cuMemcpy2DUnaligned(shape(cuda.CUDA_MEMCPY2D))),
        lambda: check(form.cuMemcpy2DAsync(shape(cuda.CUDA_MEMCPY2D), stream)),
        lambda: check(form.cuMemcpy3D(shape(cuda.CUDA_MEMCPY3D))),
        lambda: check(form.cuMemcpy3DAsync(shape(cuda.CUDA_MEMCPY3D), stream)),
        lambda: across(form.cuMemcpy3DPeer),
        lambda: across(form.cuMemcpy3DPeerAsync, stream),
        lambda: chain(form.cuMemcpyDtoA(this, 0, a, N), form.cuMemcpyAtoD(b, this, 0, N)),
        lambda: chain(form.cuMemcpyDtoA(this, 0, a, N), form.cuMemcpyAtoA(that, 96, this, 0, N - 96),
                      form.cuMemcpyAtoA(that, 0, this, N - 96, 96), form.cuMemcpyAtoD(b, that, 96, N - 96),
                      form.cuMemcpyAtoD(int(b) + N - 96, that, 0, 96)),
        lambda: chain(form.cuMemcpyDtoH(host.ctypes.data, a, N), form.cuMemcpyHtoA(this, 0, host.ctypes.data, N),
                      form.cuMemcpyAtoH(pinned, this, 0, N), form.cuMemcpyHtoD(b, pinned, N)),
        lambda: chain(form.cuMemcpyDtoH(pinned, a, N), form.cuMemcpyHtoAAsync(this, 0, pinned, N, stream),
                      form.cuMemcpyAtoHAsync(host.ctypes.data, this, 0, N, stream), cuda.cuStreamSynchronize(stream),
                      form.cuMemcpyHtoD(b, host.ctypes.data, N)),
        batch,
        solid_batch,
    ]
    for number, way in enumerate(ways):
        data, back = chance.integers(0, 256, N, dtype=np.uint8), np.zeros(N, np.uint8)
        for memory in (b, far):
            check(cuda.cuMemsetD8(memory, 0, N))
        check(cuda.cuMemcpyHtoD(a, data.ctypes.data, N))
        way()
        check(cuda.cuStreamSynchronize(stream))
        check(cuda.cuMemcpyDtoH(back.ctypes.data, b, N))
        assert (back == data).all(), f"way {number}"

    assert known("cuMemcpy") - form.used == {"cuMemcpyWithAttributesAsync", "cuMemcpy3DWithAttributesAsync"}, (
        "these two are newer than the driver")
    assert result_of(cuda.cuMemcpyHtoA(this, 8, host.ctypes.data, N)) == "INVALID_VALUE", "beyond the row"
    assert result_of(cuda.cuMemcpyAtoH(host.ctypes.data, square, 0, 64)) == "INVALID_VALUE", "more than one row"
"""

MEMSETS = """
    rows, pitch = 8, 256
    memory, out = check(cuda.cuMemAlloc(rows * pitch)), np.zeros((rows, pitch), np.uint8)
    for bits, kind in ((8, np.uint8), (16, np.uint16), (32, np.uint32)):
        size = bits // 8
        for later in ("", "Async"):
            more = (stream,) if later else ()
            for flat in (True, False):
                value, width = int(chance.integers(1, 1 << bits)), 24
                check(cuda.cuMemsetD8(memory, 0, rows * pitch))
                if flat:
                    check(getattr(form, f"cuMemsetD{bits}{later}")(memory, value, width, *more))
                else:
                    check(getattr(form, f"cuMemsetD2D{bits}{later}")(memory, pitch, value, width, rows - 1, *more))
                check(cuda.cuStreamSynchronize(stream))
                check(cuda.cuMemcpyDtoH(out.ctypes.data, memory, rows * pitch))
                set_rows = 1 if flat else rows - 1
                assert (out[:set_rows, : width * size].copy().view(kind) == value).all()
                assert not out[:set_rows, width * size :].any() and not out[set_rows:].any()
    assert known("cuMemset") == form.used
"""


@pytest.mark.parametrize("default_stream", ["0", "1"], ids=["legacy", "per thread"])
@pytest.mark.parametrize("forms", [COPIES, MEMSETS], ids=["copies", "memsets"])
def test_every_form_has_its_effect(machine: Machine, forms: str, default_stream: str) -> None:
    machine.run(SETUP + forms, CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM=default_stream)
    assert machine.status().unsupported == {}
