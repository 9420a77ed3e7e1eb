"""NVML shows every injected fault as it would show a real one, and healing brings the card back."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.gpu.cards import Severity
from baton.gpu.xids import XIDS
from tests.gpu import machines
from tests.gpu.machines import Machine, line, running, tell
from tests.waiting import until

HOUR_MS = 3_600_000


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return machines.make(tmp_path, "a100-80", "p100-16")


@contextlib.contextmanager
def listener(machine: Machine, timeout_ms: int = HOUR_MS) -> Iterator["subprocess.Popen[str]"]:
    """A program with an event set on both cards that answers "ready" and then each event as [type, data]."""
    program = machine.start_asking(f"""
        events = pynvml.nvmlEventSetCreate()
        cards = {{}}
        for index in range(2):
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(card, pynvml.nvmlDeviceGetSupportedEventTypes(card), events)
        answer("ready")
        while True:
            try:
                data = pynvml.nvmlEventSetWait_v2(events, {timeout_ms})
                answer([data.eventType, data.eventData])
            except pynvml.NVMLError as error:
                answer(error.value)
                break
        pynvml.nvmlEventSetFree(events)
    """)
    with running(program):
        assert line(program) == "ready"
        yield program


def codes(machine: Machine, card: int = 0) -> dict[str, object]:
    """What a health check asks of one card: the return code of a simple call, and the fields about errors."""
    answered: dict[str, object] = machine.ask(f"""
        def ask(question, *arguments):
            try:
                return question(*arguments)
            except pynvml.NVMLError as error:
                return {{"error": error.value}}
        card = ask(pynvml.nvmlDeviceGetHandleByIndex, {card})
        if isinstance(card, dict):
            answer({{"handle": card["error"]}})
        else:
            answer({{
                "handle": 0,
                "recovery": pynvml.nvmlDeviceGetFieldValues(card, [230])[0].value.uiVal,
                "volatile": ask(pynvml.nvmlDeviceGetTotalEccErrors, card, 1, 0),
                "aggregate": ask(pynvml.nvmlDeviceGetTotalEccErrors, card, 1, 1),
                "retired": ask(pynvml.nvmlDeviceGetRetiredPages, card, 1),
                "pending": ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, card),
                "rows": ask(pynvml.nvmlDeviceGetRemappedRows, card),
                "width": pynvml.nvmlDeviceGetCurrPcieLinkWidth(card),
            }})
    """)
    return answered


def test_an_xid_wakes_a_waiter_and_is_reported_once(machine: Machine) -> None:
    with listener(machine) as first, listener(machine) as second:
        machine.inject("xid", 0, xid=31)
        machine.inject("xid", 0, xid=43)
        for program in (first, second):
            assert line(program) == [8, 31]
            assert line(program) == [8, 43]


def test_an_event_from_before_the_registration_is_not_reported(machine: Machine) -> None:
    machine.inject("xid", 0, xid=31)
    with listener(machine) as program:
        machine.inject("xid", 1, xid=13)
        assert line(program) == [8, 13]


def test_waiting_ends_at_its_timeout(machine: Machine) -> None:
    with listener(machine, timeout_ms=1) as program:
        assert line(program) == 10


def test_more_events_than_the_machine_remembers_lose_only_the_oldest(machine: Machine) -> None:
    program = machine.start_asking("""
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(0), 8, events)
        answer("ready")
        sys.stdin.readline()
        seen = []
        try:
            while True:
                seen.append(pynvml.nvmlEventSetWait_v2(events, 0).eventData)
        except pynvml.NVMLError_Timeout:
            answer(seen)
    """)
    with program:
        assert line(program) == "ready"
        for number in range(1, 101):
            machine.inject("xid", 0, xid=1000 + number)
        tell(program)
        assert line(program) == [1000 + number for number in range(37, 101)]


def test_a_card_off_the_bus_is_lost_until_it_is_healed(machine: Machine) -> None:
    with listener(machine) as program:
        machine.inject("lost", 1)
        assert line(program) == [8, 79]
    assert codes(machine, 1) == {"handle": 15}
    assert codes(machine, 0)["handle"] == 0
    machine.inject("heal", 1)
    assert codes(machine, 1)["handle"] == 0


def test_a_handle_from_before_the_loss_reports_lost_and_then_works_again(machine: Machine) -> None:
    program = machine.start_asking("""
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(3):
            sys.stdin.readline()
            try:
                answer(pynvml.nvmlDeviceGetTemperature(card, 0) > 0)
            except pynvml.NVMLError as error:
                answer(error.value)
    """)
    with program:
        tell(program)
        assert line(program) is True
        machine.inject("lost")
        tell(program)
        assert line(program) == 15
        machine.inject("heal")
        tell(program)
        assert line(program) is True


def test_nvlink_to_a_lost_card_is_down(tmp_path: Path) -> None:
    pair = machines.make(tmp_path / "pair", "a100-80", "a100-80", changes="nvlink_groups: [[0, 1]]")
    script = "answer(pynvml.nvmlDeviceGetNvLinkState(pynvml.nvmlDeviceGetHandleByIndex(0), 0))"
    assert pair.ask(script) == 1
    pair.inject("lost", 1)
    assert pair.ask(script) == 0


def test_uncorrectable_ecc_remaps_a_row_on_a_new_card(machine: Machine) -> None:
    with listener(machine) as program:
        machine.inject("ecc", 0)
        assert line(program) == [8, 48]
        assert line(program) == [2, 0]
    broken = codes(machine, 0)
    assert (broken["recovery"], broken["volatile"], broken["aggregate"]) == (1, 1, 1)
    assert broken["rows"] == [0, 1, 1, 0]
    assert broken["pending"] == {"error": 3}
    machine.inject("heal", 0)
    healed = codes(machine, 0)
    assert (healed["recovery"], healed["volatile"], healed["aggregate"]) == (0, 0, 1)
    assert healed["rows"] == [0, 1, 0, 0]


def test_uncorrectable_ecc_retires_a_page_on_an_old_card(machine: Machine) -> None:
    machine.inject("ecc", 1)
    broken = codes(machine, 1)
    assert broken["rows"] == {"error": 3}
    assert broken["pending"] == 1
    assert isinstance(broken["retired"], list)
    assert len(broken["retired"]) == 1
    machine.inject("heal", 1)
    assert codes(machine, 1)["pending"] == 0


def test_a_slow_link_trained_to_fewer_lanes(machine: Machine) -> None:
    machine.inject("slow-link", 0, factor=0.25)
    assert codes(machine, 0)["width"] == 4
    machine.inject("heal", 0)
    assert codes(machine, 0)["width"] == 16


def test_the_machine_and_the_table_agree_on_which_xids_want_a_reset(machine: Machine) -> None:
    for number, xid in XIDS.items():
        machine.inject("xid", 0, xid=number)
        wants_reset = machine.status().cards[0].reset_xid == number
        assert wants_reset == (xid.severity is Severity.FATAL), number
        machine.inject("heal", 0)


def test_listeners_of_a_stopped_machine_see_a_lost_card(machine: Machine) -> None:
    from baton.gpu import simulated

    with listener(machine) as program:
        simulated.stop(machine.directory, force=True)
        assert line(program) == 15


def test_a_lost_card_ends_its_programs_and_accepts_no_new_ones(machine: Machine) -> None:
    workload = machine.start_workload("""
        ok(launch(1e6))
        answer("running")
        sys.stdin.readline()
        answer([code_of(cuda.cuCtxSynchronize()), code_of(launch(1))])
    """)
    with running(workload):
        assert line(workload) == "running"
        machine.inject("lost")
        tell(workload)
        codes_seen = line(workload)
        assert all(code != 0 for code in codes_seen), codes_seen
    assert codes(machine) == {"handle": 15}
    newcomer = machine.start_workload("answer('in')")
    with running(newcomer):
        assert newcomer.stdout is not None
        assert newcomer.stdout.read() == ""
        assert newcomer.wait() == 1
    machine.inject("heal")
    with running(machine.start_workload("ok(launch(0)); answer(code_of(cuda.cuCtxSynchronize()))")) as healed:
        assert line(healed) == 0


@pytest.mark.parametrize(("fault", "details", "code"), [("ecc", {}, 214), ("xid", {"xid": 31}, 700)])
def test_a_fault_that_kills_a_context_is_both_an_error_and_an_event(
    machine: Machine, fault: str, details: dict[str, float], code: int
) -> None:
    workload = machine.start_workload("""
        ok(launch(1e6))
        answer("running")
        answer(code_of(cuda.cuCtxSynchronize()))
    """)
    with listener(machine) as listening, running(workload):
        assert line(workload) == "running"
        machine.inject(fault, 0, **details)
        assert line(workload) == code
        assert line(listening) == [8, int(details.get("xid", 48))]


def test_a_fault_can_be_aimed_at_one_of_several_processes(machine: Machine) -> None:
    script = """
        ok(launch(1e6))
        answer("running")
        sys.stdin.readline()
        answer(code_of(cuda.cuStreamQuery(0)))
    """
    with running(machine.start_workload(script)) as bystander, running(machine.start_workload(script)) as target:
        assert [line(bystander), line(target)] == ["running", "running"]
        machine.inject("xid", 0, xid=43, pid=target.pid)
        tell(bystander)
        tell(target)
        assert line(bystander) == 600
        assert line(target) == 719


def test_a_hanging_kernel_keeps_the_card_busy_until_it_is_healed(machine: Machine) -> None:
    machine.inject("hang")
    workload = machine.start_workload("""
        ok(launch(0))
        answer("launched")
        answer(code_of(cuda.cuCtxSynchronize()))
    """)
    load = "answer(pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0)).gpu)"
    with running(workload):
        assert line(workload) == "launched"
        until(lambda: machine.ask(load), lambda percent: percent == 100)
        assert machine.status().cards[0].kernels == 0
        machine.inject("heal")
        assert line(workload) != 0


def test_a_slow_link_slows_copies_by_its_factor(machine: Machine) -> None:
    workload = machine.start("""
        open_card()
        bytes_ = 256 << 20
        memory, host = check(cuda.cuMemAlloc(bytes_)), check(cuda.cuMemAllocHost(bytes_))
        events = [check(cuda.cuEventCreate(0)) for _ in range(2)]
        for _ in range(2):
            sys.stdin.readline()
            with held():
                check(cuda.cuEventRecord(events[0], 0))
                check(cuda.cuMemcpyHtoDAsync(memory, host, bytes_, 0))
                check(cuda.cuEventRecord(events[1], 0))
            check(cuda.cuEventSynchronize(events[1]))
            say(elapsed_ms(*events))
    """)
    with running(workload):
        tell(workload)
        healthy_ms = line(workload)
        machine.inject("slow-link", factor=0.1)
        tell(workload)
        assert line(workload) == pytest.approx(10 * healthy_ms, rel=0.02)
