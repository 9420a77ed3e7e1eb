"""Kernels compute and take their modelled time, in stream order, asynchronously."""

from collections.abc import Callable

from tests.gpu.machines import Machine


def test_known_kernels_compute(machine: Machine) -> None:
    machine.run("""
        open_card()
        n = 10_000
        a, b = np.arange(n, dtype=np.float32), np.full(n, 3, np.float32)
        out = np.zeros_like(a)
        x, y, z = (check(cuda.cuMemAlloc(a.nbytes)) for _ in range(3))
        check(cuda.cuMemcpyHtoD(x, a.ctypes.data, a.nbytes))
        check(cuda.cuMemcpyHtoD(y, b.ctypes.data, a.nbytes))
        kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        values = ((int(x), int(y), int(z), n), kinds)
        check(cuda.cuLaunchKernel(function("vector_add"), 40, 1, 1, 256, 1, 1, 0, 0, values, 0))
        check(cuda.cuMemcpyDtoH(out.ctypes.data, z, a.nbytes))
        assert (out == a + b).all()

        values = ((n, 2.0, int(x), int(z)), (ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p))
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = 40, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 256, 1, 1
        check(cuda.cuLaunchKernelEx(config, function("saxpy"), values, 0))
        check(cuda.cuMemcpyDtoH(out.ctypes.data, z, a.nbytes))
        assert (out == 2 * a + a + b).all()

        saxpy = function("saxpy")
        check(cuda.cuLaunchCooperativeKernel(saxpy, 40, 1, 1, 256, 1, 1, 0, 0, values))
        too_large = cuda.cuLaunchCooperativeKernel(saxpy, 100_000, 1, 1, 256, 1, 1, 0, 0, values)
        assert result_of(too_large) == "COOPERATIVE_LAUNCH_TOO_LARGE"
        assert result_of(cuda.cuLaunchKernel(saxpy, 1, 1, 1, 1025, 1, 1, 0, 0, values, 0)) == "INVALID_VALUE"
        check(cuda.cuLaunchKernel(function("_Z7unknownPfi"), 40, 1, 1, 256, 1, 1, 0, 0, 0, 0))
        check(cuda.cuCtxSynchronize())

        library = check(cuda.cuLibraryLoadData(b"image", [], [], 0, [], [], 0))
        kernel = check(cuda.cuLibraryGetKernel(library, b"saxpy"))
        check(cuda.cuLaunchKernel(check(cuda.cuKernelGetFunction(kernel)), 40, 1, 1, 256, 1, 1, 0, 0, values, 0))
        check(cuda.cuCtxSynchronize())
    """)


def test_an_unknown_kernel_takes_time_by_its_grid(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine("*.kernel_overhead_ns=5e6", "*.wave_ns=2e6")
    machine.run("""
        open_card()
        kernel, marks = function("unknown"), [check(cuda.cuEventCreate(0)) for _ in range(4)]
        with held():
            for mark, full_loads in zip(marks, (0.1, 1, 10), strict=False):
                check(cuda.cuEventRecord(mark, 0))
                check(cuda.cuLaunchKernel(kernel, blocks_for(full_loads), 1, 1, 1024, 1, 1, 0, 0, 0, 0))
            check(cuda.cuEventRecord(marks[3], 0))
        check(cuda.cuCtxSynchronize())
        times = [round(elapsed_ms(left, right), 3) for left, right in zip(marks, marks[1:], strict=False)]
        assert times == [7, 7, 25], times
    """)


def test_a_kernel_that_exceeds_its_memory_kills_the_context(machine: Machine) -> None:
    machine.run("""
        open_card()
        x = check(cuda.cuMemAlloc(4096))
        values = ((int(x), int(x), int(x), 2000), (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int))
        launch = cuda.cuLaunchKernel(function("vector_add"), 8, 1, 1, 256, 1, 1, 0, 0, values, 0)
        assert result_of(launch) == "ILLEGAL_ADDRESS"
        assert result_of(cuda.cuMemAlloc(4096)) == "ILLEGAL_ADDRESS", "for good"
        check(cuda.cuCtxCreate(None, 0, 0))
        check(cuda.cuMemAlloc(4096))
    """)
    assert [entry.xid for entry in machine.card().xids] == [31]


def test_events_measure_modelled_time(machine: Machine) -> None:
    machine.run("""
        open_card()
        stream = check(cuda.cuStreamCreate(1))
        start, middle, end = (check(cuda.cuEventCreate(0)) for _ in range(3))
        with held(stream):
            check(cuda.cuEventRecord(start, stream))
            busy(200, stream)
            check(cuda.cuEventRecord(middle, stream))
            for _ in range(25):
                busy(4, stream)
            check(cuda.cuEventRecord(end, stream))
            assert result_of(cuda.cuEventQuery(end)) == "NOT_READY"
            assert result_of(cuda.cuEventElapsedTime(start, end)) == "NOT_READY"
        check(cuda.cuEventSynchronize(end))
        assert abs(elapsed_ms(start, middle) - 200) < 0.01, elapsed_ms(start, middle)
        assert abs(elapsed_ms(middle, end) - 100) < 0.01, elapsed_ms(middle, end)
        quiet = check(cuda.cuEventCreate(2))
        check(cuda.cuEventRecord(quiet, stream))
        check(cuda.cuEventSynchronize(quiet))
        assert result_of(cuda.cuEventElapsedTime(start, quiet)) == "INVALID_HANDLE"
    """)


def test_streams_run_concurrently_and_wait_for_events(machine: Machine) -> None:
    machine.run("""
        open_card()
        first, second = (check(cuda.cuStreamCreate(1)) for _ in range(2))
        begin, left, right, joined = (check(cuda.cuEventCreate(0)) for _ in range(4))
        def side_by_side(demand):
            with held(first):
                check(cuda.cuEventRecord(begin, first))
                check(cuda.cuStreamWaitEvent(second, begin, 0))
                busy(5000, first, demand)
                busy(5000, second, demand)
                check(cuda.cuEventRecord(left, first))
                check(cuda.cuEventRecord(right, second))
            check(cuda.cuCtxSynchronize())
            return elapsed_ms(begin, left), elapsed_ms(begin, right)
        # Two kernels of 40 % fit next to each other; two of 100 % share. The second one starts slightly later.
        alone, late = side_by_side(0.4)
        assert abs(alone - 5000) < 0.01 and late < 9000, (alone, late)
        assert side_by_side(1.0)[1] > 9000
        # A wait makes one stream continue after the other, at the computed end of the work that it waits for.
        busy(100, first)
        check(cuda.cuEventRecord(left, first))
        check(cuda.cuStreamWaitEvent(second, left, 0))
        busy(50, second)
        check(cuda.cuEventRecord(right, second))
        check(cuda.cuCtxSynchronize())
        assert elapsed_ms(left, right) >= 50
    """)


def test_the_legacy_stream_orders_itself_against_blocking_streams_only(machine: Machine) -> None:
    machine.run("""
        open_card()
        blocking, free = check(cuda.cuStreamCreate(0)), check(cuda.cuStreamCreate(1))
        memory = check(cuda.cuMemAllocHost(64))
        view = np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(memory))
        view[:] = 0
        device = check(cuda.cuMemAlloc(64))
        with held(blocking):
            check(cuda.cuMemsetD8Async(device, 1, 64, blocking))
            check(cuda.cuMemcpyDtoHAsync(memory, device, 64, 0))
        check(cuda.cuStreamSynchronize(0))
        assert (view == 1).all(), "the legacy stream waited for the blocking one"
        busy(1_000_000, 0)
        check(cuda.cuMemsetD8Async(device, 2, 64, free))
        check(cuda.cuStreamSynchronize(free))
        assert result_of(cuda.cuStreamQuery(0)) == "NOT_READY", "the non-blocking stream did not wait"
        assert result_of(cuda.cuStreamQuery(blocking)) == "SUCCESS"
        check(cuda.cuMemsetD8Async(device, 3, 64, blocking))
        assert result_of(cuda.cuStreamQuery(blocking)) == "NOT_READY"
    """)


def test_threads_with_per_thread_default_streams_do_not_wait_for_each_other(machine: Machine) -> None:
    machine.run("""
        context, device, own = open_card(), check(cuda.cuMemAlloc(64)), cuda.CUstream(2)
        busy(1_000_000, own)
        def other():
            check(cuda.cuCtxSetCurrent(context))
            check(cuda.cuMemsetD8Async(device, 4, 64, own))
            check(cuda.cuStreamSynchronize(own))
            seen.append(result_of(cuda.cuStreamQuery(own)))
        seen = []
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert seen == ["SUCCESS"]
        assert result_of(cuda.cuStreamQuery(own)) == "NOT_READY"
    """)


def test_host_functions_run_in_stream_order(machine: Machine) -> None:
    machine.run("""
        open_card()
        stream = check(cuda.cuStreamCreate(1))
        order = []
        Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        steps = [Function(lambda _, step=step: order.append(step)) for step in range(3)]
        memory = check(cuda.cuMemAllocHost(4))
        view = np.ctypeslib.as_array((ctypes.c_uint8 * 4).from_address(memory))
        view[:] = 0
        look = Function(lambda _: order.append(int(view[0])))
        for step in steps:
            busy(5, stream)
            check(cuda.cuLaunchHostFunc(stream, cuda.CUhostFn(ctypes.cast(step, ctypes.c_void_p).value), 0))
        check(cuda.cuMemsetD8Async(memory, 77, 4, stream))
        check(cuda.cuLaunchHostFunc(stream, cuda.CUhostFn(ctypes.cast(look, ctypes.c_void_p).value), 0))
        check(cuda.cuStreamSynchronize(stream))
        assert order == [0, 1, 2, 77], order
    """)


def test_a_host_function_that_waits_blocks_only_its_own_stream(machine: Machine) -> None:
    machine.run("""
        open_card()
        first, second = (check(cuda.cuStreamCreate(1)) for _ in range(2))
        event, device = check(cuda.cuEventCreate(2)), check(cuda.cuMemAlloc(64))
        with held(first):
            check(cuda.cuEventRecord(event, first))
            assert result_of(cuda.cuStreamQuery(first)) == "NOT_READY"
            assert result_of(cuda.cuEventQuery(event)) == "NOT_READY"
            check(cuda.cuMemsetD8Async(device, 1, 64, second))
            check(cuda.cuStreamSynchronize(second))
        check(cuda.cuEventSynchronize(event))
    """)


def test_contexts_are_current_per_thread(machine: Machine) -> None:
    machine.run("""
        first = open_card(0)
        second = check(cuda.cuCtxCreate(None, 0, 1))
        assert int(check(cuda.cuCtxGetDevice())) == 1
        assert int(check(cuda.cuCtxPopCurrent())) == int(second)
        assert int(check(cuda.cuCtxGetDevice())) == 0
        seen = []
        def other():
            seen.append(int(check(cuda.cuCtxGetCurrent())))
            seen.append(result_of(cuda.cuMemAlloc(10)))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert seen == [0, "INVALID_CONTEXT"], seen
        memory = check(cuda.cuMemAlloc(100 * MIB))
        check(cuda.cuCtxDestroy(first))
        primary = check(cuda.cuDevicePrimaryCtxRetain(0))
        assert int(primary) == int(check(cuda.cuDevicePrimaryCtxRetain(0)))
        check(cuda.cuCtxSetCurrent(primary))
        assert check(cuda.cuMemGetInfo())[0] == GIB, "a context's memory is freed with it"
        check(cuda.cuDevicePrimaryCtxRelease(0))
        check(cuda.cuMemAlloc(10))
        check(cuda.cuDevicePrimaryCtxRelease(0))
        assert result_of(cuda.cuMemAlloc(10)) == "CONTEXT_IS_DESTROYED"
    """)
