"""The common interface over NVML: cards, samples, health and events as the rest of Baton sees them.

NVML is one per process, so each test runs a separate program that prints what the source returns.
"""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton.gpu import simulated
from baton.gpu.cards import Card, CardEvent, CardHealth, Sample, Severity
from tests.gpu import machines
from tests.gpu.machines import Machine, line, running, tell

pytestmark = pytest.mark.process

PRELUDE = """
import msgspec, sys
from baton.gpu.nvml import NvmlSource
def answer(value):
    print(msgspec.json.encode(value).decode(), flush=True)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    changes = "numa_nodes: [0, 1]\nnvlink_groups: [[0, 1]]"
    return machines.make(tmp_path, "a100-80", "a100-80", changes=changes)


def asked(machine: Machine, script: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env=machine.environment,
        timeout=machines.PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_inventory(machine: Machine) -> None:
    cards = msgspec.convert(asked(machine, "answer(NvmlSource().cards())"), tuple[Card, ...])
    first, second = cards
    assert [card.id for card in cards] == [card.uuid for card in machine.status().cards]
    assert (first.model, first.memory_mib, first.compute_capability) == ("NVIDIA A100-SXM4-80GB", 81920, (8, 0))
    assert (first.pci_id, second.pci_id) == ("0000:01:00.0", "0000:02:00.0")
    assert (first.numa_node, second.numa_node) == (0, 1)
    assert (first.nvlink_peers, second.nvlink_peers) == ((second.id,), (first.id,))
    assert (first.index, second.device_nodes, second.family) == (0, ("/dev/nvidia1",), "ampere")


def test_a_sample_of_a_quiet_card_has_no_gaps(machine: Machine) -> None:
    samples = msgspec.convert(asked(machine, "answer(NvmlSource().telemetry())"), tuple[Sample, ...])
    assert len(samples) == 2
    quiet = samples[0]
    assert quiet == Sample(
        card=quiet.card,
        utilisation_percent=0,
        memory_used_mib=0,
        memory_total_mib=81920,
        temperature_c=28,
        power_w=55.0,
        power_limit_w=400.0,
        sm_clock_mhz=210,
        pcie_sent_bytes=0,
        pcie_received_bytes=0,
        processes=(),
        link_lanes=16,
        link_lanes_most=16,
    )


def test_a_sample_reports_lost_lanes(machine: Machine) -> None:
    machine.inject("slow-link", 1, factor=0.25)
    samples = msgspec.convert(asked(machine, "answer(NvmlSource().telemetry())"), tuple[Sample, ...])
    assert [(sample.link_lanes, sample.link_lanes_most) for sample in samples] == [(16, 16), (4, 16)]


def test_the_source_is_described_as_simulated(machine: Machine) -> None:
    assert asked(machine, "answer(NvmlSource().description)").startswith("simulated NVIDIA driver ")


def test_health_and_events_follow_a_card_through_loss_and_healing(machine: Machine) -> None:
    program = machine.start_program(
        PRELUDE
        + textwrap.dedent("""
        source = NvmlSource()
        source.cards()
        source.events(0)
        answer("ready")
        for word in sys.stdin:
            if word == "events\\n":
                answer(source.events(3600))
            elif word == "health\\n":
                answer(source.health())
            elif word == "samples\\n":
                answer([sample.card for sample in source.telemetry()])
    """)
    )

    def events() -> list[CardEvent]:
        tell(program, "events")
        return msgspec.convert(line(program), list[CardEvent])

    def health() -> list[CardHealth]:
        tell(program, "health")
        return msgspec.convert(line(program), list[CardHealth])

    first, second = (card.uuid for card in machine.status().cards)
    with program:
        assert line(program) == "ready"
        assert [state.healthy for state in health()] == [True, True]

        machine.inject("xid", 1, xid=31)
        happened = events()
        assert [(event.card, event.xid, event.severity) for event in happened] == [(second, 31, Severity.APPLICATION)]
        assert [state.healthy for state in health()] == [True, True]

        machine.inject("lost", 0)
        happened = events()
        assert [(event.card, event.xid, event.severity) for event in happened] == [(first, 79, Severity.FATAL)]
        lost, well = health()
        assert (lost.card, lost.healthy, well.healthy) == (first, False, True)
        assert "fallen off the bus" in lost.reason
        tell(program, "samples")
        assert line(program) == [second]

        machine.inject("heal", 0)
        assert [state.healthy for state in health()] == [True, True]

        machine.inject("ecc", 1)
        assert {event.xid for event in events()} <= {48, None}
        assert [state.reason for state in health()] == ["", "the driver asks for a reset of this GPU"]
        assert program.stdin is not None
        program.stdin.close()


def test_the_loss_of_the_driver_is_reported_once_and_ends_when_it_is_back(machine: Machine) -> None:
    program = machine.start_program(
        PRELUDE
        + textwrap.dedent("""
        source = NvmlSource()
        source.events(0)
        answer("ready")
        sys.stdin.readline()
        answer(source.events(0.01))
        answer(source.events(0.01))
        answer([state.healthy for state in source.health()])
        sys.stdin.readline()
        source.close()
        answer(len(NvmlSource().cards()))
    """)
    )
    with running(program):
        assert line(program) == "ready"
        simulated.stop(machine.directory, force=True)
        tell(program)
        (event,) = msgspec.convert(line(program), list[CardEvent])
        assert (event.card, event.severity) == (None, Severity.FATAL)
        assert line(program) == []
        assert line(program) == [False, False]
        machines.make(machine.directory, "t4")
        tell(program)
        assert line(program) == 1


def test_a_card_that_was_never_seen_is_counted_as_silent(machine: Machine) -> None:
    machine.inject("lost", 1)
    found = asked(machine, "source = NvmlSource(); answer([len(source.cards()), source.silent_cards])")
    assert found == [1, 1]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("RESET_REQUIRED", "the driver asks for a reset of this GPU"),
        ("INSUFFICIENT_POWER", "NVML fails in nvmlDeviceGetMemoryInfo: Insufficient External Power"),
        ("CORRUPTED_INFOROM", ""),
    ],
)
def test_an_error_of_one_card_does_not_hide_the_others(machine: Machine, error: str, reason: str) -> None:
    found = asked(
        machine,
        f"""
        import functools, pynvml
        source = NvmlSource()
        bad = source.cards()[1].id
        true = pynvml.nvmlDeviceGetMemoryInfo
        @functools.wraps(true)
        def fails(handle):
            if pynvml.nvmlDeviceGetUUID(handle) == bad:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_{error})
            return true(handle)
        pynvml.nvmlDeviceGetMemoryInfo = fails
        answer([len(source.cards()), len(source.telemetry()), [state.reason for state in source.health()]])
        """,
    )
    answering = 1 if reason else 2
    assert found == [answering, answering, ["", reason]]


def test_cards_without_a_bus_or_a_uuid_do_not_cause_a_failure(machine: Machine) -> None:
    """As on boards whose GPU is part of the processor."""
    found = asked(
        machine,
        """
        import pynvml
        def unknown(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        pynvml.nvmlDeviceGetPciInfo = unknown
        source = NvmlSource()
        places = [(card.index, card.pci_id) for card in source.cards()]
        pynvml.nvmlDeviceGetUUID = unknown
        answer([places, source.cards(), source.silent_cards])
        """,
    )
    assert found == [[[0, ""], [1, ""]], [], 2]


def test_without_a_driver_the_error_is_one_sentence(tmp_path: Path) -> None:
    script = """
    from baton.errors import UnavailableError
    try:
        NvmlSource({argument})
    except UnavailableError as error:
        answer([type(error).__name__, str(error)])
    """
    empty = Machine(tmp_path)
    kind, sentence = asked(empty, script.format(argument=""))
    assert kind == "UnavailableError"
    assert sentence.startswith("libnvidia-ml.so.1 is installed, but no driver answers")
    nowhere = Machine(tmp_path, library_folder=tmp_path)
    kind, sentence = asked(nowhere, script.format(argument=""))
    assert kind == "NoDriverError"
    assert "`baton simgpu start`" in sentence
    kind, sentence = asked(nowhere, script.format(argument=f"__import__('pathlib').Path({str(tmp_path / 'x.so')!r})"))
    assert "cannot load the NVML library" in sentence


def test_a_library_can_be_named_by_its_path(machine: Machine) -> None:
    from baton.native import library

    pathless = Machine(machine.directory, library_folder=Path("/nonexistent"))
    path = str(library("simgpu/libnvidia-ml.so.1"))
    found = asked(pathless, f"from pathlib import Path\nanswer(len(NvmlSource(Path({path!r})).cards()))")
    assert found == 2
