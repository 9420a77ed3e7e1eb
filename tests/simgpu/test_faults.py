"""Fault injection and healing."""

import subprocess

import pytest

from tests.gpu.machines import PATIENCE_S, Machine

_WORKING = """
    open_card()
    memory = check(cuda.cuMemAlloc(100 * MIB))
    say("ready")
    sys.stdin.readline()
    say(result_of(cuda.cuCtxSynchronize()))
    say(result_of(cuda.cuMemAlloc(1)))
    say(result_of(cuda.cuCtxCreate(None, 0, 0)))
"""


def _ready(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


@pytest.mark.parametrize(
    ("fault", "details", "result", "afterwards"),
    [
        ("xid", {"xid": 31}, "ILLEGAL_ADDRESS", "SUCCESS"),
        ("xid", {"xid": 13}, "LAUNCH_FAILED", "SUCCESS"),
        ("ecc", {}, "ECC_UNCORRECTABLE", "SUCCESS"),
        ("lost", {}, "DEVICE_UNAVAILABLE", "DEVICE_UNAVAILABLE"),
    ],
)
def test_a_fault_permanently_kills_the_contexts_it_hits(
    machine: Machine, fault: str, details: dict[str, float], result: str, afterwards: str
) -> None:
    program = machine.start(_WORKING)
    _ready(program)
    machine.inject(fault, 0, **details)
    assert program.communicate("\n", timeout=PATIENCE_S)[0].split() == [result, result, afterwards]
    machine.inject("heal")
    machine.run("open_card(); busy(1); check(cuda.cuCtxSynchronize())")


def test_an_application_xid_hits_one_process_and_spares_the_others(machine: Machine) -> None:
    first, second = machine.start(_WORKING), machine.start(_WORKING)
    _ready(first)
    _ready(second)
    machine.inject("xid", xid=43, pid=first.pid)
    assert first.communicate("\n", timeout=PATIENCE_S)[0].split() == ["LAUNCH_FAILED", "LAUNCH_FAILED", "SUCCESS"]
    assert second.communicate("\n", timeout=PATIENCE_S)[0].split() == ["SUCCESS", "SUCCESS", "SUCCESS"]


def test_work_in_flight_ends_with_the_fault(machine: Machine) -> None:
    program = machine.start("""
        open_card()
        busy(1_000_000)
        say("ready")
        say(result_of(cuda.cuCtxSynchronize()))
        say(result_of(cuda.cuMemAlloc(1)))
        check(cuda.cuCtxCreate(None, 0, 1))
        busy(1)
        say(result_of(cuda.cuCtxSynchronize()))
    """)
    _ready(program)
    machine.inject("lost")
    assert [_line(program) for _ in range(3)] == ["DEVICE_UNAVAILABLE", "DEVICE_UNAVAILABLE", "SUCCESS"]
    program.communicate(timeout=PATIENCE_S)
    assert machine.card().health == "lost"
    assert machine.card().xids[-1].xid == 79


def test_a_hanging_kernel_hangs_until_the_card_is_healed(machine: Machine) -> None:
    machine.inject("hang")
    program = machine.start("""
        open_card()
        busy(1)
        say("ready")
        say(result_of(cuda.cuCtxSynchronize()))
    """)
    _ready(program)
    assert machine.card().work_waiting == 1
    machine.inject("heal")
    assert _line(program) == "LAUNCH_FAILED"
    program.communicate(timeout=PATIENCE_S)


def test_a_slow_link_slows_copies(machine: Machine) -> None:
    program = """
        open_card()
        memory, host = check(cuda.cuMemAlloc(64 * MIB)), check(cuda.cuMemAllocHost(64 * MIB))
        start, end = (check(cuda.cuEventCreate(0)) for _ in range(2))
        with held():
            check(cuda.cuEventRecord(start, 0))
            check(cuda.cuMemcpyHtoDAsync(memory, host, 64 * MIB, 0))
            check(cuda.cuEventRecord(end, 0))
        check(cuda.cuCtxSynchronize())
        say(elapsed_ms(start, end))
    """
    healthy = float(machine.run(program))
    machine.inject("slow-link", factor=0.01)
    assert float(machine.run(program)) > 20 * healthy


def test_stopping_the_machine_ends_all_waits(machine: Machine) -> None:
    program = machine.start("""
        open_card()
        busy(1_000_000)
        say("ready")
        say(result_of(cuda.cuCtxSynchronize()))
    """)
    _ready(program)
    machine.stop()
    assert _line(program) == "DEVICE_UNAVAILABLE"
    program.communicate(timeout=PATIENCE_S)
