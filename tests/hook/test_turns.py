"""Taking turns: work waits for the lock, and no work runs after the lock is released."""

import os
import random
import sys
import time
from collections.abc import Callable

import pytest

from baton.lock import wire
from baton.lock.wire import Kind
from tests.hook.conftest import ProbeDevice, Workloads, finish, wait_for_launches
from tests.hook.daemon import PATIENCE_S, Client, Daemon


def test_a_launch_waits_for_the_lock(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); say(launch())")
    client = daemon.client()
    client.greet()
    client.expect(Kind.REQ_LOCK)
    assert client.silent()
    assert workloads.record.devices[0].launches == 0
    client.send(wire.LOCK_OK)
    assert finish(work) == "0\n"
    assert workloads.record.devices[0].launches == 1


def test_the_registration_names_the_gpu(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(1); say(launch())", PROBE_DEVICES="2")
    client = daemon.client()
    client.greet()
    client.grant()
    finish(work)
    assert client.gpu == bytes([0xA1] * 16)


def test_copies_and_memsets_wait_too(workloads: Workloads, daemon: Daemon) -> None:
    code = """
use()
pointer = ctypes.c_ulonglong(allocate(64)[1])
say('allocated')
say(call('cuMemcpyHtoD_v2', pointer, bytes(64), ctypes.c_size_t(64)))
next_line()
say(call('cuMemsetD8_v2', pointer, 1, ctypes.c_size_t(64)))
"""
    work = workloads.python(code)
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    assert work.stdout.readline() == "allocated\n"  # memory is not gated
    client.grant()
    assert work.stdout.readline() == "0\n"
    client.drop()
    assert workloads.record.devices[0].copies == 1
    assert work.stdin is not None
    work.stdin.write("on\n")
    work.stdin.flush()
    client.grant()
    assert finish(work) == "0\n"
    assert workloads.record.devices[0].copies == 2


def test_the_lock_is_released_only_when_the_gpu_is_done(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); launch(); say('launched'); next_line()", PROBE_KERNEL_US="300000")
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    client.grant()
    work.stdout.readline()
    client.drop()
    assert workloads.record.devices[0].busy_until_us <= time.monotonic_ns() // 1000
    assert workloads.record.syncs >= 1
    finish(work)


def test_results_of_the_driver_are_passed_through(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); say(launch(), launch(kernel=1))", PROBE_LAUNCH_RESULT="719")
    client = daemon.client()
    client.greet()
    client.grant()
    assert finish(work) == "719 400\n"


def test_an_idle_holder_releases_the_lock_and_requests_it_again(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); launch(); say('launched'); next_line(); say(launch())")
    assert work.stdin is not None
    client = daemon.client()
    client.greet(idle_ms=50)
    client.grant()
    client.expect(Kind.LOCK_RELEASED)
    work.stdin.write("again\n")
    work.stdin.flush()
    client.grant()
    assert finish(work) == "launched\n0\n"


def test_idle_time_begins_when_the_gpu_has_no_work_left(workloads: Workloads, daemon: Daemon) -> None:
    """A program that waits for a long kernel makes no calls; it keeps its turn for a full idle time after it."""
    work = workloads.python("use(); launch(); say('launched'); next_line()", PROBE_KERNEL_US="700000")
    client = daemon.client()
    client.greet(idle_ms=100)
    client.grant()
    client.expect(Kind.LOCK_RELEASED)
    assert time.monotonic_ns() // 1000 - workloads.record.devices[0].busy_until_us >= 100_000
    finish(work)


def test_a_drop_to_a_client_without_the_lock_gets_no_answer(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); say(launch())")
    client = daemon.client()
    client.greet()
    client.expect(Kind.REQ_LOCK)
    client.send(wire.DROP_LOCK)
    assert client.silent()
    client.send(wire.LOCK_OK)
    assert finish(work) == "0\n"


def test_scheduling_off_opens_the_gate_and_on_closes_it(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); say(launch()); next_line(); say(launch())")
    assert work.stdout is not None
    assert work.stdin is not None
    client = daemon.client()
    client.greet()
    client.expect(Kind.REQ_LOCK)
    client.send(wire.SCHED_OFF)
    assert work.stdout.readline() == "0\n"
    client.send(wire.SCHED_ON)
    assert client.silent(0.3)
    work.stdin.write("on\n")
    work.stdin.flush()
    client.grant()
    assert finish(work) == "0\n"


def quiet(device: ProbeDevice) -> tuple[int, int]:
    return device.launches + device.copies, device.inside


def alternate(client: Client, device: ProbeDevice, rounds: int, seed: int) -> None:
    """Grant and revoke the lock in turn; between a release and the next grant no work may reach the driver."""
    chance = random.Random(seed)
    client.expect(Kind.REQ_LOCK)
    for _ in range(rounds):
        client.send(wire.LOCK_OK)
        time.sleep(chance.random() * 0.004)
        client.drop()
        before = quiet(device)
        assert before[1] == 0, "a call was in the driver when the lock was released"
        client.expect(Kind.REQ_LOCK)
        time.sleep(chance.random() * 0.002)
        assert quiet(device) == before, "work reached the driver without the lock"
    client.send(wire.LOCK_OK)


def test_no_work_reaches_the_driver_between_release_and_grant(
    workloads: Workloads, daemon: Daemon, program: Callable[[str], str]
) -> None:
    work = workloads.start(program("hammer"), "6", PROBE_LAUNCH_US="30")
    client = daemon.client()
    client.greet()
    alternate(client, workloads.record.devices[0], rounds=300, seed=4)
    wait_for_launches(workloads, work, 300)
    finish(work)


def test_the_gate_needs_no_membarrier(workloads: Workloads, daemon: Daemon, program: Callable[[str], str]) -> None:
    deny = program("without_membarrier")
    work = workloads.start(deny, program("hammer"), "4", PROBE_LAUNCH_US="30")
    client = daemon.client()
    client.greet()
    alternate(client, workloads.record.devices[0], rounds=100, seed=5)
    finish(work)


def test_two_threads_on_two_gpus_never_wait_for_each_other(workloads: Workloads, daemon: Daemon) -> None:
    code = """
def work(device):
    use(device)
    say(device, launch())
first = threading.Thread(target=work, args=(0,))
first.start()
next_line()
second = threading.Thread(target=work, args=(1,))
second.start()
second.join()
say('second done')
first.join()
"""
    work = workloads.python(code, PROBE_DEVICES="2")
    assert work.stdin is not None
    assert work.stdout is not None
    first = daemon.client()
    first.greet()
    first.expect(Kind.REQ_LOCK)  # and is left waiting
    work.stdin.write("go\n")
    work.stdin.flush()
    second = daemon.client()
    second.greet()
    second.grant()
    assert work.stdout.readline() == "1 0\n"
    assert work.stdout.readline() == "second done\n"
    assert workloads.record.devices[0].launches == 0
    first.send(wire.LOCK_OK)
    assert finish(work) == "0 0\n"


def test_a_gang_connects_all_its_gpus_before_its_single_request(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(0); say(launch()); use(1); say(launch())", PROBE_DEVICES="2", BATON_GANG="1")
    members = [daemon.client(), daemon.client()]
    identities = [member.greet() for member in members]
    assert identities[0]["gang"] == identities[1]["gang"]
    assert {identity["gang_size"] for identity in identities} == {"2"}
    first = next(member for member in members if member.gpu == bytes([0xA0] * 16))
    other = next(member for member in members if member is not first)
    first.expect(Kind.REQ_LOCK)
    assert other.silent()
    for member in members:
        member.send(wire.LOCK_OK)
    assert finish(work) == "0\n0\n"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for process namespaces")
def test_gangs_in_two_containers_are_separate(workloads: Workloads, daemon: Daemon) -> None:
    """A daemon in its own container does not see pids, and the pids inside the two containers are the same."""
    code = "from tests.hook.workload import *; use(0); say(launch()); use(1); say(launch())"
    gangs: list[str] = []
    for _ in range(2):
        work = workloads.start(
            "unshare", "--pid", "--fork", sys.executable, "-c", code, PROBE_DEVICES="2", BATON_GANG="1"
        )
        members = [daemon.client(), daemon.client()]
        identities = [member.greet() for member in members]
        assert [identity["pid"] for identity in identities] == ["1", "1"]
        gangs += {identity["gang"] for identity in identities}
        for member in members:
            member.send(wire.LOCK_OK)
        assert finish(work) == "0\n0\n"
    assert len(set(gangs)) == len(gangs) == 2


def test_a_thread_with_a_small_stack_passes(workloads: Workloads, daemon: Daemon) -> None:
    code = """
threading.stack_size(64 * 1024)
thread = threading.Thread(target=lambda: (use(), say(launch())))
thread.start()
thread.join()
"""
    work = workloads.python(code)
    client = daemon.client()
    client.greet()
    client.grant()
    assert finish(work) == "0\n"


def test_outstanding_work_is_bounded_in_time(workloads: Workloads, daemon: Daemon) -> None:
    """Kernels of 3 ms with a window of 100 ms: a release never waits for hundreds of them."""
    code = "use(); stream = new_stream()\nfor _ in range(500): launch(stream)\nsay('done'); next_line()"
    work = workloads.python(code, PROBE_KERNEL_US="3000", BATON_WINDOW="100ms")
    client = daemon.client()
    client.greet()
    client.grant()
    device = workloads.record.devices[0]
    worst_us = 0
    while device.launches < 500 and work.poll() is None:
        worst_us = max(worst_us, device.busy_until_us - time.monotonic_ns() // 1000)
        time.sleep(0.002)
    assert work.stdout is not None
    assert work.stdout.readline() == "done\n"
    assert worst_us < 300_000  # all 500 take 1,500 ms; the first window lets 16 through
    finish(work)


def test_reports_tell_memory_and_launches(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); allocate(1 << 20); launch(); say('done'); next_line()")
    client = daemon.client()
    client.greet(report_ms=20)
    reports: list[dict[str, str]] = []
    while not reports or reports[-1]["launches"] != "1":
        frame = client.frames.get(timeout=PATIENCE_S)
        if frame.kind == Kind.REQ_LOCK:
            assert reports, "the working set is reported before the lock is asked for"
            client.send(wire.LOCK_OK)
        elif frame.kind == Kind.REPORT:
            reports.append(wire.fields(frame))
    assert reports[-1]["allocated"] == str(1 << 20)
    assert int(reports[-1]["wait_us"]) > 0
    finish(work)
