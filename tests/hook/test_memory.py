"""The memory limit applies on every path; oversubscription makes memory managed; queries report the limit."""

from tests.hook.conftest import Workloads, finish
from tests.hook.daemon import Daemon

MIB = 1 << 20
GIB = 1 << 30
OOM = 2


def test_plain_memory_becomes_managed(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet())
    assert workloads.run("use(); result, pointer = allocate(1 << 20); say(result, free(pointer))") == "0 0\n"
    assert (workloads.record.managed, workloads.record.plain) == (1, 0)


def test_plain_memory_stays_plain_if_the_user_disables_oversubscription(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet())
    assert workloads.run("use(); say(allocate(1 << 20)[0])", BATON_OVERSUBSCRIBE="0") == "0\n"
    assert (workloads.record.managed, workloads.record.plain) == (0, 1)


def test_plain_memory_stays_plain_if_the_daemon_disables_oversubscription(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet(oversubscribe=0))
    assert workloads.run("use(); say(allocate(1 << 20)[0])") == "0\n"
    assert (workloads.record.managed, workloads.record.plain) == (0, 1)


LIMIT = """
use()
first, kept = allocate(6 << 20)
say(first, allocate(3 << 20)[0], memory())
say(free(kept), allocate(3 << 20)[0], memory())
total = ctypes.c_size_t()
check('cuDeviceTotalMem_v2', ctypes.byref(total), 0)
say(total.value)
"""
LIMITED = f"0 {OOM} ({2 * MIB}, {8 * MIB})\n0 0 ({5 * MIB}, {8 * MIB})\n{8 * MIB}\n"


def test_the_limit_of_the_environment_holds(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet())
    assert workloads.run(LIMIT, BATON_MEMORY_LIMIT="8Mi") == LIMITED


def test_the_limit_of_the_daemon_holds(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet(memory=8 * MIB))
    assert workloads.run(LIMIT) == LIMITED


def test_the_smaller_limit_counts(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet(memory=8 * MIB))
    assert workloads.run(LIMIT, BATON_MEMORY_LIMIT="1Gi") == LIMITED


def test_the_limit_holds_when_threads_allocate_together(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet(memory=100 * MIB))
    code = """
use()
granted = []
def work():
    use()
    for _ in range(50):
        granted.append(allocate(1 << 20)[0] == 0)
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
say(sum(granted), memory()[0])
"""
    assert workloads.run(code) == "100 0\n"


def test_one_process_may_use_the_card_less_a_reserve(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet())
    code = "use(); say(memory()); say(allocate(14 << 30)[0], allocate(1 << 30)[0], memory())"
    room = 16 * GIB - 1536 * MIB
    assert workloads.run(code) == f"({room}, {16 * GIB})\n0 {OOM} ({room - 14 * GIB}, {16 * GIB})\n"


def test_a_small_card_keeps_a_tenth(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet())
    assert workloads.run("use(); say(memory())", PROBE_TOTAL=str(GIB)) == f"({GIB - GIB // 10}, {GIB})\n"


def test_one_process_may_exceed_the_card_when_asked(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet())
    code = "use(); say([allocate(10 << 30)[0] for _ in range(3)])"
    assert workloads.run(code, NVSHARE_ENABLE_SINGLE_OVERSUB="0") == "[0, 0, 0]\n"


def test_memory_of_a_destroyed_context_is_returned(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet(memory=8 * MIB))
    code = """
context = ctypes.c_void_p()
check('cuInit', 0)
for _ in range(3):
    check('cuCtxCreate_v2', ctypes.byref(context), 0, 0)
    say(allocate(8 << 20)[0])
    check('cuCtxDestroy_v2', context)
"""
    assert workloads.run(code) == "0\n0\n0\n"


def test_stream_ordered_memory_counts_and_is_not_substituted(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet(memory=8 * MIB))
    code = """
use()
first, pointer = allocate(8 << 20, 'cuMemAllocAsync', None)
say(first, allocate(1, 'cuMemAllocAsync', None)[0], allocate(1)[0])
say(call('cuMemFreeAsync', ctypes.c_ulonglong(pointer), None), allocate(8 << 20)[0])
"""
    assert workloads.run(code) == f"0 {OOM} {OOM}\n0 0\n"
    assert workloads.record.freed_async == 1


def test_managed_memory_freed_in_stream_order_is_freed(workloads: Workloads, daemon: Daemon) -> None:
    daemon.serve(lambda client: client.greet())
    code = "use(); pointer = allocate(64)[1]; say(call('cuMemFreeAsync', ctypes.c_ulonglong(pointer), None))"
    assert workloads.run(code) == "0\n"
    assert workloads.record.freed_async == 0


def test_allocation_works_without_a_daemon(workloads: Workloads) -> None:
    work = workloads.python("use(); say(allocate(1 << 20)[0])")
    assert finish(work) == "0\n"
