"""Stream captures are never broken, whatever the lock does in the meantime."""

import time
from collections.abc import Callable

from baton.lock import wire
from baton.lock.wire import Kind
from tests.hook.conftest import Workloads, finish
from tests.hook.daemon import Daemon

CAPTURE = """
use()
stream = new_stream()
launch(stream)
check('cuStreamBeginCapture_v2', stream, 0)
say('capturing')
next_line()
for _ in range(40):
    assert launch(stream) == 0
graph = ctypes.c_void_p()
say('end', call('cuStreamEndCapture', stream, ctypes.byref(graph)))
next_line()
"""


def test_a_drop_waits_for_the_end_of_a_capture(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python(CAPTURE)
    assert work.stdin is not None
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    client.grant()
    assert work.stdout.readline() == "capturing\n"
    syncs = workloads.record.syncs
    client.send(wire.DROP_LOCK)
    assert client.silent(0.2)
    assert workloads.record.syncs == syncs
    work.stdin.write("go\n")
    work.stdin.flush()
    assert work.stdout.readline() == "end 0\n"
    client.expect(Kind.LOCK_RELEASED)
    finish(work)
    assert workloads.record.broken_captures == 0


def test_a_capture_that_does_not_end_does_not_keep_the_lock(workloads: Workloads, daemon: Daemon) -> None:
    """The lock is released and the capture stays intact; its thread continues in the next turn."""
    code = CAPTURE.replace("say('end'", "assert launch(None) == 0\nsay('end'")
    work = workloads.python(code, BATON_CAPTURE_WAIT="100ms")
    assert work.stdin is not None
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    client.grant()
    assert work.stdout.readline() == "capturing\n"
    syncs = workloads.record.syncs
    client.drop()
    assert workloads.record.syncs == syncs
    work.stdin.write("go\n")
    work.stdin.flush()
    client.grant()
    assert work.stdout.readline() == "end 0\n"
    client.drop()
    assert workloads.record.syncs > syncs
    finish(work)
    assert workloads.record.broken_captures == 0


def test_captured_work_needs_no_lock(workloads: Workloads, daemon: Daemon) -> None:
    code = CAPTURE.replace("launch(stream)\ncheck", "check", 1)
    work = workloads.python(code)
    assert work.stdin is not None
    assert work.stdout is not None
    assert work.stdout.readline() == "capturing\n"
    work.stdin.write("go\n")
    work.stdin.flush()
    client = daemon.client()
    client.greet()
    assert work.stdout.readline() == "end 0\n"
    assert client.silent()
    assert workloads.record.devices[0].launches == 0
    finish(work)


def test_an_idle_turn_is_not_released_during_a_capture(workloads: Workloads, daemon: Daemon) -> None:
    # The turn is requested inside the capture, because a pause of 20 ms before it would correctly end the turn.
    work = workloads.python(
        CAPTURE.replace("launch(stream)\n", "", 1).replace("say('capturing')", "launch(); say('capturing')")
    )
    assert work.stdin is not None
    assert work.stdout is not None
    client = daemon.client()
    client.greet(idle_ms=20)
    client.grant()
    assert work.stdout.readline() == "capturing\n"
    syncs = workloads.record.syncs
    assert client.silent(0.2)
    assert workloads.record.syncs == syncs
    work.stdin.write("go\n")
    work.stdin.flush()
    assert work.stdout.readline() == "end 0\n"
    client.expect(Kind.LOCK_RELEASED)
    finish(work)
    assert workloads.record.broken_captures == 0


def test_a_capturing_thread_may_still_do_other_work(workloads: Workloads, daemon: Daemon) -> None:
    """While the drop is delayed, the gate stays open: the other work may be needed before the capture can end."""
    code = CAPTURE.replace("graph =", "assert launch() == 0\ngraph =")
    work = workloads.python(code)
    assert work.stdin is not None
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    client.grant()
    assert work.stdout.readline() == "capturing\n"
    client.send(wire.DROP_LOCK)
    assert client.silent()
    work.stdin.write("go\n")
    work.stdin.flush()
    assert work.stdout.readline() == "end 0\n"
    client.expect(Kind.LOCK_RELEASED)
    finish(work)


def test_a_capture_that_fails_to_end_is_over(workloads: Workloads, daemon: Daemon) -> None:
    code = """
use()
stream = new_stream()
graph = ctypes.c_void_p()
launch(stream)
say(call('cuStreamEndCapture', stream, ctypes.byref(graph)))
check('cuStreamBeginCapture_v2', stream, 0)
say(call('cuStreamBeginCapture_v2', stream, 0))
check('cuStreamEndCapture', stream, ctypes.byref(graph))
next_line()
"""
    work = workloads.python(code)
    assert work.stdout is not None
    client = daemon.client()
    client.greet()
    client.grant()
    assert [work.stdout.readline() for _ in range(2)] == ["901\n", "901\n"]
    client.drop()
    finish(work)


def test_captures_under_constant_drops(workloads: Workloads, daemon: Daemon, program: Callable[[str], str]) -> None:
    work = workloads.start(program("hammer"), "4", "1", "captures", PROBE_KERNEL_US="50")
    client = daemon.client()
    client.greet(idle_ms=5)
    until = time.monotonic() + 3
    while time.monotonic() < until or workloads.record.syncs <= 10:
        frame = client.next()
        if frame.kind == Kind.REQ_LOCK:
            client.send(wire.LOCK_OK)
            time.sleep(0.002)
            client.send(wire.DROP_LOCK)
    client.send(wire.SCHED_OFF)
    finish(work)
    assert workloads.record.broken_captures == 0
