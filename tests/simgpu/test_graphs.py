"""Explicit and captured graphs execute their nodes; calls that would wait invalidate a capture."""

from tests.gpu.machines import Machine


def test_a_captured_graph_repeats_its_work(machine: Machine) -> None:
    machine.run("""
        open_card()
        n = 1000
        a = np.ones(n, np.float32)
        x, y = (check(cuda.cuMemAlloc(a.nbytes)) for _ in range(2))
        check(cuda.cuMemcpyHtoD(x, a.ctypes.data, a.nbytes))
        check(cuda.cuMemsetD32(y, 0, n))
        main, side = (check(cuda.cuStreamCreate(1)) for _ in range(2))
        fork, join = (check(cuda.cuEventCreate(2)) for _ in range(2))
        values = ((n, 2.0, int(x), int(y)), (ctypes.c_int, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p))
        saxpy = function("saxpy")
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        check(cuda.cuStreamBeginCapture(main, mode))
        check(cuda.cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, main, values, 0))
        check(cuda.cuEventRecord(fork, main))
        check(cuda.cuStreamWaitEvent(side, fork, 0))
        check(cuda.cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, side, values, 0))
        check(cuda.cuEventRecord(join, side))
        check(cuda.cuStreamWaitEvent(main, join, 0))
        check(cuda.cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, main, values, 0))
        graph = check(cuda.cuStreamEndCapture(main))
        out = np.zeros_like(a)
        check(cuda.cuMemcpyDtoH(out.ctypes.data, y, a.nbytes))
        assert (out == 0).all(), "capturing runs nothing"
        nodes, count = check(cuda.cuGraphGetNodes(graph, 10))
        assert count == 3
        assert check(cuda.cuGraphGetEdges(graph, 10))[-1] == 3
        executable = check(cuda.cuGraphInstantiate(graph, 0))
        for _ in range(5):
            check(cuda.cuGraphLaunch(executable, main))
        check(cuda.cuStreamSynchronize(main))
        check(cuda.cuMemcpyDtoH(out.ctypes.data, y, a.nbytes))
        assert (out == 30).all(), out[0]
        check(cuda.cuGraphExecDestroy(executable))
        check(cuda.cuGraphDestroy(graph))
    """)


def test_a_graph_made_of_nodes(machine: Machine) -> None:
    machine.run("""
        open_card()
        graph = check(cuda.cuGraphCreate(0))
        memory = check(cuda.cuMemAlloc(1024))
        out = np.zeros(1024, np.uint8)
        fill = cuda.CUDA_MEMSET_NODE_PARAMS()
        fill.dst, fill.value, fill.elementSize, fill.width, fill.height = memory, 9, 1, 1024, 1
        context = check(cuda.cuCtxGetCurrent())
        first = check(cuda.cuGraphAddMemsetNode(graph, None, 0, fill, context))
        empty = check(cuda.cuGraphAddEmptyNode(graph, [first], 1))
        copy = cuda.CUDA_MEMCPY3D()
        copy.srcMemoryType, copy.srcDevice = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, memory
        copy.dstMemoryType, copy.dstHost = cuda.CUmemorytype.CU_MEMORYTYPE_HOST, out.ctypes.data
        copy.WidthInBytes, copy.Height, copy.Depth = 1024, 1, 1
        last = check(cuda.cuGraphAddMemcpyNode(graph, [empty], 1, copy, context))
        assert check(cuda.cuGraphNodeGetType(first)) == cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
        executable = check(cuda.cuGraphInstantiate(graph, 0))
        check(cuda.cuGraphLaunch(executable, 0))
        check(cuda.cuCtxSynchronize())
        assert (out == 9).all()
        fill.value = 4
        check(cuda.cuGraphExecMemsetNodeSetParams(executable, first, fill, context))
        check(cuda.cuGraphLaunch(executable, 0))
        check(cuda.cuCtxSynchronize())
        assert (out == 4).all()
        clone = check(cuda.cuGraphClone(graph))
        fill.value = 6
        check(cuda.cuGraphMemsetNodeSetParams(check(cuda.cuGraphNodeFindInClone(first, clone)), fill))
        check(cuda.cuGraphExecUpdate(executable, clone))
        check(cuda.cuGraphLaunch(executable, 0))
        check(cuda.cuCtxSynchronize())
        assert (out == 6).all()
        check(cuda.cuGraphAddEmptyNode(clone, None, 0))
        assert result_of(cuda.cuGraphExecUpdate(executable, clone)) == "GRAPH_EXEC_UPDATE_FAILURE"
        circle = cuda.cuGraphAddDependencies(graph, [last], [first], None, 1)
        assert result_of(circle) == "INVALID_VALUE"
    """)


def test_waiting_during_a_capture_is_refused_and_invalidates_it(machine: Machine) -> None:
    machine.run("""
        open_card()
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        stream, other = check(cuda.cuStreamCreate(1)), check(cuda.cuStreamCreate(1))
        kernel = function("baton_busy")
        for call in (cuda.cuCtxSynchronize, lambda: cuda.cuStreamSynchronize(stream), lambda: cuda.cuMemAlloc(100),
                     lambda: cuda.cuStreamQuery(stream)):
            check(cuda.cuStreamBeginCapture(stream, mode))
            assert check(cuda.cuStreamIsCapturing(stream)).value == 1
            assert result_of(call()) == "STREAM_CAPTURE_UNSUPPORTED", call
            assert check(cuda.cuStreamIsCapturing(stream)).value == 2
            launch = cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, ((1,), (U64,)), 0)
            assert result_of(launch) == "STREAM_CAPTURE_INVALIDATED"
            assert result_of(cuda.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"
            assert check(cuda.cuStreamIsCapturing(stream)).value == 0
        event = check(cuda.cuEventCreate(2))
        check(cuda.cuStreamBeginCapture(stream, mode))
        busy_arguments = ((1000,), (U64,))
        check(cuda.cuEventRecord(event, stream))
        check(cuda.cuStreamWaitEvent(other, event, 0))
        check(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, other, busy_arguments, 0))
        assert result_of(cuda.cuEventQuery(event)) == "CAPTURED_EVENT"
        assert result_of(cuda.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_UNJOINED"
        assert result_of(cuda.cuStreamBeginCapture(0, mode)) == "STREAM_CAPTURE_UNSUPPORTED"
        # Relaxed captures allow the same thread to allocate and wait on other streams.
        check(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        check(cuda.cuMemAlloc(100))
        check(cuda.cuStreamSynchronize(other))
        check(cuda.cuStreamEndCapture(stream))
    """)


def test_nodes_of_any_kind_through_the_generic_call_and_graphs_in_graphs(machine: Machine) -> None:
    machine.run("""
        context = open_card()
        memory, out = check(cuda.cuMemAlloc(4096)), np.zeros(4096, np.uint8)
        graph, child = check(cuda.cuGraphCreate(0)), check(cuda.cuGraphCreate(0))
        fill = cuda.CUgraphNodeParams()
        fill.type = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
        fill.memset.dst, fill.memset.value, fill.memset.elementSize = memory, 7, 1
        fill.memset.width, fill.memset.height, fill.memset.ctx = 4096, 1, context
        check(cuda.cuGraphAddNode(child, None, None, 0, fill))
        launch = cuda.CUDA_KERNEL_NODE_PARAMS()
        launch.func, launch.kernelParams = function("baton_busy"), ((1000,), (U64,))
        launch.gridDimX = launch.gridDimY = launch.gridDimZ = 1
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = 32, 1, 1
        first = check(cuda.cuGraphAddKernelNode(graph, None, 0, launch))
        assert check(cuda.cuGraphKernelNodeGetParams(first)).blockDimX == 32
        check(cuda.cuGraphAddChildGraphNode(graph, [first], 1, child))
        check(cuda.cuGraphLaunch(check(cuda.cuGraphInstantiate(graph, 0)), 0))
        check(cuda.cuMemcpyDtoH(out.ctypes.data, memory, 4096))
        assert (out == 7).all()
    """)
