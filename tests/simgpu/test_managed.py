"""Managed memory can oversubscribe the card: absent memory is brought in over the link, at a cost in time."""

from collections.abc import Callable

import pytest

from tests.gpu.machines import Machine, running

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def card(make_machine: Callable[..., Machine]) -> Machine:
    """One card of 1 GiB whose migrations run at 1 GB/s of modelled time."""
    return make_machine(f"*.memory_bytes={GIB}", "*.paging_bytes_per_s=1e9", "*.time_scale=50")


def test_a_kernel_pays_once_for_absent_memory(card: Machine) -> None:
    card.run("""
        open_card()
        size = 512 * MIB
        a, b, c = (check(cuda.cuMemAllocManaged(size, 1)) for _ in range(3))
        marks = [check(cuda.cuEventCreate(0)) for _ in range(6)]
        with held():
            for mark, memory in zip(marks, (a, a, b, c, a), strict=False):
                check(cuda.cuEventRecord(mark, 0))
                touch(memory, size, 10)
            check(cuda.cuEventRecord(marks[5], 0))
        check(cuda.cuCtxSynchronize())
        times = [elapsed_ms(left, right) for left, right in zip(marks, marks[1:], strict=False)]
        transfer = size / 1e9 * 1000
        assert abs(times[0] - 10) < 1, "new memory needs no transfer"
        assert abs(times[1] - 10) < 1, "it stays resident"
        assert abs(times[2] - 10) < 1, "two of the three fit"
        assert abs(times[3] - 10 - transfer) < 20, "the third evicts the least recently used one"
        assert abs(times[4] - 10 - 2 * transfer) < 20, "which comes back and evicts another"
        assert result_of(cuda.cuMemAllocManaged(0, 1)) == "INVALID_VALUE"
    """)
    seen = card.card()
    assert seen.paged_in_bytes == 512 * MIB
    assert seen.paged_out_bytes == 1024 * MIB
    assert seen.managed_bytes == 0
    assert seen.resident_bytes == 0


def test_a_kernel_touches_the_range_it_names_and_an_unknown_kernel_everything(card: Machine) -> None:
    card.run("""
        open_card()
        a = check(cuda.cuMemAllocManaged(512 * MIB, 1))
        touch(a, 64 * MIB)
        check(cuda.cuCtxSynchronize())
        assert check(cuda.cuMemGetInfo())[0] == GIB - 64 * MIB
        touch(int(a) + 256 * MIB, 1)
        check(cuda.cuCtxSynchronize())
        assert check(cuda.cuMemGetInfo())[0] == GIB - 72 * MIB, "in pieces of a sixty-fourth"
        check(cuda.cuLaunchKernel(function("unknown"), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
        check(cuda.cuCtxSynchronize())
        assert check(cuda.cuMemGetInfo())[0] == GIB - 512 * MIB
        check(cuda.cuMemFree(a))
        assert check(cuda.cuMemGetInfo())[0] == GIB
    """)


def test_plain_memory_evicts_managed_memory(card: Machine) -> None:
    card.run("""
        open_card()
        managed = check(cuda.cuMemAllocManaged(800 * MIB, 1))
        touch(managed, 800 * MIB)
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemAlloc(600 * MIB))
        free, total = check(cuda.cuMemGetInfo())
        assert 0 <= free < 20 * MIB
        assert result_of(cuda.cuMemAlloc(600 * MIB)) == "OUT_OF_MEMORY"
    """)


def test_prefetching_pays_the_transfer_ahead_of_the_kernel(card: Machine) -> None:
    card.run("""
        open_card()
        size = 512 * MIB
        a, b = (check(cuda.cuMemAllocManaged(size, 1)) for _ in range(2))
        host = cuda.CUmemLocation()
        host.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
        device = cuda.CUmemLocation()
        device.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        touch(a, size)
        check(cuda.cuMemPrefetchAsync(a, size, host, 0, 0))
        check(cuda.cuCtxSynchronize())
        assert check(cuda.cuMemGetInfo())[0] == GIB
        start, end = (check(cuda.cuEventCreate(0)) for _ in range(2))
        with held():
            check(cuda.cuMemPrefetchAsync(a, size, device, 0, 0))
            check(cuda.cuEventRecord(start, 0))
            touch(a, size, 10)
            check(cuda.cuEventRecord(end, 0))
        check(cuda.cuCtxSynchronize())
        assert abs(elapsed_ms(start, end) - 10) < 1
    """)


def test_two_working_sets_that_do_not_fit_thrash_and_one_alone_does_not(card: Machine) -> None:
    endless = """
        open_card()
        size = 700 * MIB
        memory, kernel = check(cuda.cuMemAllocManaged(size, 1)), function("baton_touch")
        values = ((int(memory), size, 50_000_000), (U64, U64, U64))
        launched = 0
        while True:
            check(cuda.cuLaunchKernel(kernel, blocks_for(1), 1, 1, 1024, 1, 1, 0, 0, values, 0))
            launched += 1
            if launched == 500:
                say("ready")
    """
    measured = """
        open_card()
        size = 700 * MIB
        memory = check(cuda.cuMemAllocManaged(size, 1))
        touch(memory, size)
        check(cuda.cuCtxSynchronize())
        start, end = (check(cuda.cuEventCreate(0)) for _ in range(2))
        with held():
            check(cuda.cuEventRecord(start, 0))
            for _ in range(20):
                touch(memory, size, 50)
            check(cuda.cuEventRecord(end, 0))
        check(cuda.cuCtxSynchronize())
        say(elapsed_ms(start, end))
    """
    alone = float(card.run(measured))
    assert alone == pytest.approx(20 * 50, rel=0.01)
    with running(card.start(endless)) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        both = float(card.run(measured))
    # Each step transfers most of a working set in and out: 50 + 2 x 734 ms, while the other process does the same.
    assert both > 20 * alone
