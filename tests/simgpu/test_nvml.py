"""NVIDIA's own bindings on the simulated NVML: inventory, topology, versions, and the values of an idle card."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import machines
from tests.gpu.machines import Machine

FOUR_H100 = """
    numa_nodes: [0, 0, 1, 1]
    nvlink_groups: [[0, 1], [2, 3]]
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machines.make(tmp_path_factory.mktemp("four"), "h100", "h100", "h100", "h100", changes=FOUR_H100)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machines.make(tmp_path_factory.mktemp("mixed"), "p100-16", "t4", "l4", "a100-80", "rtx-4090")


def test_every_way_to_name_a_card_leads_to_the_same_card(machine: Machine) -> None:
    found = machine.ask("""
        result = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(card)
            pci = pynvml.nvmlDeviceGetPciInfo(card)
            again = [
                pynvml.nvmlDeviceGetHandleByUUID(uuid),
                pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
                pynvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy),
                pynvml.nvmlDeviceGetHandleBySerial(pynvml.nvmlDeviceGetSerial(card)),
            ]
            result.append([uuid, [pynvml.nvmlDeviceGetIndex(other) for other in again]])
        answer(result)
    """)
    assert [indices for _, indices in found] == [[index] * 4 for index in range(4)]
    assert len({uuid for uuid, _ in found}) == 4
    assert [card.uuid for card in machine.status().cards] == [uuid for uuid, _ in found]


def test_cards_match_their_profiles(mixed: Machine) -> None:
    found = mixed.ask("""
        result = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
            result.append([
                pynvml.nvmlDeviceGetName(card),
                pynvml.nvmlDeviceGetCudaComputeCapability(card),
                pynvml.nvmlDeviceGetMemoryInfo(card).total >> 20,
                pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2).total >> 20,
                pynvml.nvmlDeviceGetBrand(card),
                pynvml.nvmlDeviceGetArchitecture(card),
                pynvml.nvmlDeviceGetEnforcedPowerLimit(card),
                pynvml.nvmlDeviceGetCurrPcieLinkGeneration(card),
                pynvml.nvmlDeviceGetNumGpuCores(card),
                pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_SM),
                pynvml.nvmlDeviceGetNumFans(card),
            ])
        answer(result)
    """)
    assert found == [
        ["Tesla P100-PCIE-16GB", [6, 0], 16384, 16384, 2, 4, 250_000, 3, 3584, 1328, 0],
        ["Tesla T4", [7, 5], 15360, 15360, 2, 6, 70_000, 3, 2560, 1590, 0],
        ["NVIDIA L4", [8, 9], 23034, 23034, 14, 8, 72_000, 4, 7424, 2040, 0],
        ["NVIDIA A100-SXM4-80GB", [8, 0], 81920, 81920, 14, 7, 400_000, 4, 6912, 1410, 0],
        ["NVIDIA GeForce RTX 4090", [8, 9], 24564, 24564, 5, 8, 450_000, 4, 16384, 2520, 2],
    ]


def test_an_idle_card_is_cool_and_slow_and_empty(machine: Machine) -> None:
    found = machine.ask("""
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        memory, rates = pynvml.nvmlDeviceGetMemoryInfo(card), pynvml.nvmlDeviceGetUtilizationRates(card)
        answer([
            memory.used, memory.total - memory.free, rates.gpu, rates.memory,
            pynvml.nvmlDeviceGetTemperature(card, 0), pynvml.nvmlDeviceGetTemperatureV(card, 0),
            pynvml.nvmlDeviceGetPowerUsage(card), pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetPerformanceState(card), pynvml.nvmlDeviceGetComputeRunningProcesses(card),
            pynvml.nvmlDeviceGetCurrentClocksEventReasons(card),
        ])
    """)
    assert found == [0, 0, 0, 0, 27, 27, 70_000, 345, 8, [], 1]


def test_a_card_with_fans_turns_them_slowly_while_it_is_cool(mixed: Machine) -> None:
    found = mixed.ask("""
        card = pynvml.nvmlDeviceGetHandleByIndex(4)
        answer([pynvml.nvmlDeviceGetFanSpeed_v2(card, fan) for fan in range(pynvml.nvmlDeviceGetNumFans(card))])
    """)
    assert found == [30, 30]


def test_thresholds_limits_and_bar1_are_those_of_the_card(machine: Machine) -> None:
    found = machine.ask("""
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        answer([
            [pynvml.nvmlDeviceGetTemperatureThreshold(card, threshold) for threshold in range(2)],
            pynvml.nvmlDeviceGetPowerManagementLimitConstraints(card),
            pynvml.nvmlDeviceGetBAR1MemoryInfo(card).bar1Total >> 30,
            pynvml.nvmlDeviceGetEccMode(card),
            pynvml.nvmlDeviceGetSupportedMemoryClocks(card),
            pynvml.nvmlDeviceGetSupportedGraphicsClocks(card, 2619)[0],
        ])
    """)
    assert found == [[90, 87], [200_000, 700_000], 128, [1, 1], [2619], 1980]


def test_topology_follows_numa_nodes_and_nvlink_groups(machine: Machine) -> None:
    found = machine.ask("""
        cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(4)]
        answer({
            "ancestors": [[pynvml.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in cards] for a in cards],
            "read": [pynvml.nvmlDeviceGetP2PStatus(cards[0], other, 0) for other in cards[1:]],
            "nvlink": [pynvml.nvmlDeviceGetP2PStatus(cards[0], other, 2) for other in cards[1:]],
            "numa": [pynvml.nvmlDeviceGetNumaNodeId(card) for card in cards],
            "memory": [pynvml.nvmlDeviceGetMemoryAffinity(card, 1, 0)[0] for card in cards],
            "cpus": bool(pynvml.nvmlDeviceGetCpuAffinity(cards[0], 16)[0] & 1),
            "near": [pynvml.nvmlDeviceGetIndex(near) for near in pynvml.nvmlDeviceGetTopologyNearestGpus(cards[2], 30)],
        })
    """)
    assert found["ancestors"] == [[0, 30, 50, 50], [30, 0, 50, 50], [50, 50, 0, 30], [50, 50, 30, 0]]
    assert found["read"] == [0, 5, 5]
    assert found["nvlink"] == [0, 5, 5]
    assert found["numa"] == [0, 0, 1, 1]
    assert found["memory"] == [1, 1, 2, 2]
    assert found["cpus"] is True
    assert found["near"] == [3]


def test_nvlinks_lead_to_the_other_cards_of_the_group(machine: Machine) -> None:
    found = machine.ask("""
        cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(4)]
        buses = {pynvml.nvmlDeviceGetPciInfo(card).busId: index for index, card in enumerate(cards)}
        answer([
            [buses[pynvml.nvmlDeviceGetNvLinkRemotePciInfo(card, link).busId]
             for link in range(18) if pynvml.nvmlDeviceGetNvLinkState(card, link)]
            for card in cards
        ])
    """)
    assert found == [[1] * 18, [0] * 18, [3] * 18, [2] * 18]


def test_mig_is_off_where_the_card_has_it_and_unknown_elsewhere(mixed: Machine) -> None:
    found = mixed.ask("""
        def mode(index):
            try:
                return pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError as error:
                return error.value
        answer([mode(0), mode(3), pynvml.nvmlDeviceGetMaxMigDeviceCount(pynvml.nvmlDeviceGetHandleByIndex(3))])
    """)
    assert found == [3, [0, 0], 0]


def test_versions_and_error_strings(machine: Machine) -> None:
    driver, nvml, cuda, text = machine.ask("""
        answer([
            pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetNVMLVersion(),
            pynvml.nvmlSystemGetCudaDriverVersion(), pynvml.nvmlErrorString(15),
        ])
    """)
    assert nvml.endswith(driver)
    assert cuda >= 12000
    assert text == "GPU is lost"


def test_unsupported_functions_are_reported_as_not_found(machine: Machine) -> None:
    found = machine.ask("""
        try:
            pynvml.nvmlDeviceGetEncoderSessions(pynvml.nvmlDeviceGetHandleByIndex(0))
        except pynvml.NVMLError as error:
            answer(error.value)
    """)
    assert found == 13


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("pynvml.nvmlDeviceGetHandleByIndex(4)", 2),
        ("pynvml.nvmlDeviceGetHandleByUUID('GPU-00000000-0000-0000-0000-000000000000')", 6),
        ("pynvml.nvmlDeviceGetHandleByPciBusId('0000:77:00.0')", 6),
        ("pynvml.nvmlDeviceGetHandleByPciBusId('nonsense')", 2),
        ("pynvml.nvmlDeviceGetTemperature(card, 9)", 2),
        ("pynvml.nvmlDeviceGetClockInfo(card, 9)", 2),
        ("pynvml.nvmlDeviceGetNvLinkState(card, 99)", 2),
        ("pynvml.nvmlDeviceGetMemoryInfo(card, version=0x01000028)", 25),
        ("pynvml.nvmlDeviceGetFanSpeed(card)", 3),
        ("[pynvml.nvmlShutdown(), pynvml.nvmlDeviceGetName(card)]", 1),
    ],
)
def test_an_invalid_call_returns_the_right_code(machine: Machine, call: str, code: int) -> None:
    found = machine.ask(f"""
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        try:
            {call}
        except pynvml.NVMLError as error:
            answer(error.value)
    """)
    assert found == code


def test_without_a_machine_there_is_no_driver(tmp_path: Path) -> None:
    program = Machine(tmp_path).start_program("""
        import pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            print(error.value)
    """)
    with program:
        assert machines.line(program) == 9


def test_a_container_sees_only_the_cards_it_was_given(machine: Machine) -> None:
    script = """
        cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        answer([
            [pynvml.nvmlDeviceGetUUID(card), pynvml.nvmlDeviceGetIndex(card), pynvml.nvmlDeviceGetMinorNumber(card),
             pynvml.nvmlDeviceGetNumaNodeId(card)] for card in cards
        ])
    """
    every = [card.uuid for card in machine.status().cards]
    given = machine.ask(script, NVIDIA_VISIBLE_DEVICES=f"{every[2]},{every[1]}")
    assert given == [[every[2], 0, 2, 1], [every[1], 1, 1, 0]]
    assert machine.ask(script, NVIDIA_VISIBLE_DEVICES="void") == []
    assert len(machine.ask(script, NVIDIA_VISIBLE_DEVICES="all")) == 4


def test_a_forked_child_may_keep_using_nvml(machine: Machine) -> None:
    found = machine.ask("""
        import os
        card = pynvml.nvmlDeviceGetHandleByIndex(2)
        parent = pynvml.nvmlDeviceGetUUID(card)
        child = os.fork()
        if child == 0:
            os._exit(0 if pynvml.nvmlDeviceGetUUID(card) == parent else 1)
        answer([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), pynvml.nvmlDeviceGetUUID(card) == parent])
    """)
    assert found == [0, True]


@pytest.fixture(autouse=True)
def _no_clients_remain(machine: Machine) -> Iterator[None]:
    yield
    assert machine.status().clients == []
