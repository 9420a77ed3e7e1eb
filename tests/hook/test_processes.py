"""Processes, threads and libraries that come and go."""

import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.lock import wire
from baton.lock.wire import Kind
from tests.hook.conftest import Workloads, compile_c, finish, wait_for_launches
from tests.hook.daemon import PATIENCE_S, Daemon
from tests.lock.clocks import JUMPS, Clock
from tests.lock.clocks import clock as clock  # the fixture


def no_client_came(daemon: Daemon) -> bool:
    with pytest.raises(queue.Empty):
        daemon.client(0.2)
    return True


def test_a_program_without_cuda_never_connects(workloads: Workloads, daemon: Daemon) -> None:
    code = "import os; print(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    hooked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=workloads.environment())
    assert (hooked.stdout, hooked.stderr) == (bare, "")
    assert no_client_came(daemon)


def test_a_program_that_only_looks_for_devices_never_connects(workloads: Workloads, daemon: Daemon) -> None:
    code = """
check('cuInit', 0)
count = ctypes.c_int()
check('cuDeviceGetCount', ctypes.byref(count))
say(count.value, len(os.listdir('/proc/self/task')))
"""
    assert workloads.run(code) == "1 1\n"
    assert no_client_came(daemon)


def test_a_child_leaves_its_parents_connection_alone(workloads: Workloads, daemon: Daemon) -> None:
    code = """
use()
launch()
child = os.fork()
if child == 0:
    os._exit(0 if len(os.listdir('/proc/self/task')) == 1 else 1)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), launch())
next_line()
"""
    work = workloads.python(code)
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    client.grant()
    assert work.stdout.readline() == "0 0\n"
    assert not client.gone.is_set()
    client.drop()
    finish(work)


def test_a_child_that_uses_the_gpu_is_a_separate_client(workloads: Workloads, daemon: Daemon) -> None:
    code = """
use()
launch()
child = os.fork()
if child == 0:
    use()
    os._exit(launch())
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    work = workloads.python(code)
    parent = daemon.client()
    parent_pid = parent.greet()["pid"]
    parent.grant()
    child = daemon.client()
    assert child.greet()["pid"] != parent_pid
    child.expect(Kind.REQ_LOCK)
    parent.drop()
    child.send(wire.LOCK_OK)
    assert finish(work) == "0\n"


def test_exec_removes_threads_and_descriptors_of_the_hook(workloads: Workloads, daemon: Daemon) -> None:
    code = "use(); launch(); os.execvp('ls', ['ls', '/proc/self/fd'])"
    work = workloads.python(code)
    client = daemon.client()
    client.greet()
    client.grant()
    assert finish(work).split() == ["0", "1", "2", "3"]
    assert client.gone.wait(PATIENCE_S)


def test_threads_come_and_go(workloads: Workloads, daemon: Daemon) -> None:
    code = """
def work():
    use()
    for _ in range(3):
        assert launch() == 0
for _ in range(60):
    threads = [threading.Thread(target=work) for _ in range(5)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
say('done'); next_line()
"""
    work = workloads.python(code)
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    client.grant()
    assert work.stdout.readline() == "done\n"
    client.drop()
    assert workloads.record.devices[0].launches == 900
    finish(work)


def test_threads_of_the_hook_block_signals(workloads: Workloads, daemon: Daemon) -> None:
    code = "use(); launch(); say(os.getpid()); next_line()"
    work = workloads.python(code)
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    client.grant()
    pid = work.stdout.readline().strip()
    client.drop()
    blocked = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        blocked[status["Name"]] = int(status["SigBlk"], 16)
    ours = {name: mask for name, mask in blocked.items() if name.startswith("baton")}
    assert set(ours) == {"baton-client", "baton-drain"}
    terminate, user = 1 << 14, 1 << 9
    assert all(mask & terminate and mask & user for mask in ours.values())
    finish(work)


def test_the_driver_may_be_closed_and_opened_again(workloads: Workloads, daemon: Daemon, tmp_path: Path) -> None:
    reopen = compile_c("reopen.c", tmp_path / "reopen", "-ldl")
    work = workloads.start(str(reopen))
    client = daemon.client()
    client.greet()
    client.grant()
    assert finish(work) == "done\n"
    assert workloads.record.devices[0].launches == 100


def test_a_context_handle_reused_for_another_gpu(workloads: Workloads, daemon: Daemon) -> None:
    """The driver may reuse a destroyed context's address for the next one."""
    code = """
check('cuInit', 0)
context = ctypes.c_void_p()
for turn in range(6):
    check('cuCtxCreate_v2', ctypes.byref(context), 0, turn % 2)
    assert launch() == 0
    check('cuCtxDestroy_v2', context)
say('done'); next_line()
"""
    work = workloads.python(code, PROBE_DEVICES="2")
    assert work.stdout is not None
    for _ in range(2):
        client = daemon.client()
        client.greet()
        client.grant()
    assert work.stdout.readline() == "done\n"
    assert [workloads.record.devices[index].launches for index in (0, 1)] == [3, 3]
    finish(work)


def test_a_primary_context_may_be_retained_and_released_many_times(workloads: Workloads, daemon: Daemon) -> None:
    """Libraries do this around every call; the recorded events must not accumulate."""
    work = workloads.python("""
context = use()
for _ in range(100):
    for _ in range(16):
        launch()
    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    check("cuDevicePrimaryCtxRelease_v2", 0)
say(launch())
""")
    client = daemon.client()
    client.greet()
    client.grant()
    assert finish(work) == "0\n"
    assert workloads.record.events <= 16


def test_a_thread_may_be_cancelled_while_it_waits(
    workloads: Workloads, daemon: Daemon, program: Callable[..., str]
) -> None:
    work = workloads.start(program("cancel"))
    client = daemon.client()
    client.greet()
    client.expect(Kind.REQ_LOCK)
    assert work.stdin is not None
    work.stdin.write("cancel\n")
    work.stdin.flush()
    assert work.stdout is not None
    assert work.stdout.readline() == "cancelled\n"
    client.send(wire.LOCK_OK)
    assert finish(work) == "launched\n"


@pytest.mark.parametrize("threads", [1, 8])
def test_a_program_may_end_while_its_threads_wait(
    workloads: Workloads, daemon: Daemon, program: Callable[[str], str], threads: int
) -> None:
    code = f"""
for _ in range({threads}):
    threading.Thread(target=lambda: (use(), launch()), daemon=True).start()
next_line()
os._exit(0)
"""
    work = workloads.python(code)
    client = daemon.client()
    client.greet()
    client.expect(Kind.REQ_LOCK)
    finish(work)


def test_a_child_does_not_wait_for_threads_of_its_parent(workloads: Workloads, daemon: Daemon) -> None:
    """A thread is inside the driver when another thread forks; the child does not have that thread."""
    code = """
thread = threading.Thread(target=lambda: (use(), say('launching'), launch()))
thread.start()
next_line()
child = os.fork()
if child == 0:
    use()
    say('child', launch())
    os._exit(0 if next_line() else 1)
thread.join()
os.waitpid(child, 0)
"""
    work = workloads.python(code, PROBE_LAUNCH_US="1000000")
    assert work.stdout is not None
    assert work.stdin is not None
    assert work.stdout.readline() == "launching\n"
    parent = daemon.client()
    parent.greet()
    parent.grant()
    wait_for_launches(workloads, work, 0)  # counted on the way in
    work.stdin.write("fork\n")
    work.stdin.flush()
    child = daemon.client()
    child.greet()
    child.grant()
    assert work.stdout.readline() == "child 0\n"
    child.drop()
    finish(work)


def test_a_hooked_program_is_not_disturbed_by_a_jump(clock: Clock, workloads: Workloads, daemon: Daemon) -> None:
    """Waiting, throttling and releasing continue, whatever happens to the time of day."""
    code = "use(); stream = new_stream()\nwhile not next_line(): [launch(stream) for _ in range(50)]; say('launched')"
    jumping = {"LD_PRELOAD": f"{clock.library}:{workloads.hook}", "JUMP_FILE": str(clock.file)}
    work = workloads.python(code, PROBE_KERNEL_US="200", BATON_WINDOW="5ms", **jumping)
    assert work.stdin is not None
    assert work.stdout is not None
    work.stdin.write("\n")
    work.stdin.flush()
    client = daemon.client()
    client.greet()
    for by_s in JUMPS:
        clock.jump(by_s)
        client.grant()
        assert work.stdout.readline() == "launched\n"
        client.drop()
        work.stdin.write("\n")
        work.stdin.flush()
    client.grant()
    assert work.stdout.readline() == "launched\n"
    work.stdin.write("end\n")
    finish(work)
