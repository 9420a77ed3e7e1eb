"""NVML while CUDA programs run: it lists them with their use, the sums are right, and they disappear at their end."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import machines
from tests.gpu.machines import Machine, line, running, tell
from tests.waiting import until

MIB = 1 << 20

LOOK = """
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    def percentages():
        try:
            return {str(sample.pid): sample.smUtil for sample in pynvml.nvmlDeviceGetProcessUtilization(card, 0)}
        except pynvml.NVMLError_NotFound:
            return {}
    def old_processes(card):
        import ctypes
        class Process(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]
        count, processes = ctypes.c_uint(64), (Process * 64)()
        assert pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses(card, ctypes.byref(count), processes) == 0
        return processes[: count.value]
    sent, received = pynvml.nvmlDeviceGetFieldValues(card, [197, 198])
    answer({
        "memory_mib": pynvml.nvmlDeviceGetMemoryInfo(card).used >> 20,
        "older": [
            sorted([p.pid, p.usedGpuMemory >> 20] for p in question(card))
            for question in (pynvml.nvmlDeviceGetComputeRunningProcesses_v2, old_processes)
        ],
        "graphics": pynvml.nvmlDeviceGetGraphicsRunningProcesses(card),
        "processes": {str(p.pid): p.usedGpuMemory >> 20 for p in pynvml.nvmlDeviceGetComputeRunningProcesses(card)},
        "load": pynvml.nvmlDeviceGetUtilizationRates(card).gpu,
        "parts": percentages(),
        "temperature_c": pynvml.nvmlDeviceGetTemperature(card, 0),
        "power_w": pynvml.nvmlDeviceGetPowerUsage(card) / 1000,
        "state": pynvml.nvmlDeviceGetPerformanceState(card),
        "sm_mhz": pynvml.nvmlDeviceGetClockInfo(card, 1),
        "sent": sent.value.ullVal,
        "received": received.value.ullVal,
    })
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return machines.make(tmp_path, "p100-16")


def look(machine: Machine) -> Any:
    return machine.ask(LOOK)


def test_a_program_is_listed_with_memory_load_and_traffic_until_it_ends(machine: Machine) -> None:
    workload = machine.start_workload("""
        memory, host = ok(cuda.cuMemAlloc(512 << 20)), ok(cuda.cuMemAllocHost(64 << 20))
        ok(cuda.cuMemcpyHtoD(memory, host, 64 << 20))
        ok(cuda.cuMemcpyDtoH(host, memory, 16 << 20))
        ok(launch(1e6))
        answer("running")
        sys.stdin.readline()
    """)
    with running(workload):
        assert line(workload) == "running"
        seen = until(lambda: look(machine), lambda found: found["load"] == 100)
        pid = str(workload.pid)
        assert seen["processes"] == {pid: seen["memory_mib"]}
        assert seen["memory_mib"] >= 512
        assert seen["older"] == [[[workload.pid, seen["memory_mib"]]]] * 2
        assert seen["graphics"] == []
        assert (seen["received"], seen["sent"]) == (64 * MIB, 16 * MIB)
        assert seen["parts"] == {pid: pytest.approx(100, abs=1)}
        assert seen["state"] == 0
        assert seen["power_w"] == pytest.approx(250, abs=1)
        assert 1189 <= seen["sm_mhz"] <= 1328
        workload.kill()
    left = look(machine)
    assert (left["memory_mib"], left["processes"], left["state"], left["sm_mhz"]) == (0, {}, 8, 405)


def test_programs_that_share_a_card_split_its_load(machine: Machine) -> None:
    script = 'ok(launch(1e6)); answer("running"); sys.stdin.readline()'
    with running(machine.start_workload(script)) as first, running(machine.start_workload(script)) as second:
        assert [line(first), line(second)] == ["running", "running"]

        def settled(found: Any) -> bool:
            parts = {str(program.pid): pytest.approx(50, abs=1) for program in (first, second)}
            return bool(found["load"] == 100 and found["parts"] == parts)

        seen = until(lambda: look(machine), settled)
        assert set(seen["processes"]) == {str(first.pid), str(second.pid)}
    until(lambda: look(machine), lambda found: found["load"] == 0)


def test_a_copy_is_throughput_in_its_direction(machine: Machine) -> None:
    workload = machine.start_workload("""
        memory, host = ok(cuda.cuMemAlloc(64 << 20)), ok(cuda.cuMemAllocHost(64 << 20))
        answer("copying")
        while True:
            ok(cuda.cuMemcpyHtoD(memory, host, 64 << 20))
    """)
    script = """
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        answer([pynvml.nvmlDeviceGetPcieThroughput(card, direction) for direction in range(2)])
    """
    with running(workload):
        assert line(workload) == "copying"
        sent, received = until(lambda: machine.ask(script), lambda found: found[1] > 0)
        assert sent == 0
        assert received * 1024 <= 11.5e9
    until(lambda: machine.ask(script), lambda found: found == [0, 0])


def test_managed_memory_counts_while_resident_and_its_transfer_is_traffic(tmp_path: Path) -> None:
    machine = machines.make(tmp_path / "small", "p100-16", changes="memory_mib: 512")
    workload = machine.start_workload("""
        kernel, size = ok(cuda.cuModuleGetFunction(_module, b"baton_touch")), 320 << 20
        first, second = [ok(cuda.cuMemAllocManaged(size, 1)) for _ in range(2)]
        def touch(memory):
            arguments = ((int(memory), size, 0), (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64))
            ok(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0))
            ok(cuda.cuCtxSynchronize())
        touch(first)
        answer("fits")
        sys.stdin.readline()
        touch(second)
        touch(first)
        answer("thrashed")
        sys.stdin.readline()
    """)
    with running(workload):
        assert line(workload) == "fits"
        fitting = look(machine)
        assert 320 <= fitting["memory_mib"] < 512
        assert fitting["processes"] == {str(workload.pid): fitting["memory_mib"]}
        tell(workload)
        assert line(workload) == "thrashed"
        thrashed, card = look(machine), machine.status().cards[0]
        assert thrashed["memory_mib"] <= 512
        assert 0 < card.paged_in_bytes == thrashed["received"]
        assert 0 < card.paged_out_bytes == thrashed["sent"]


def test_a_card_warms_up_in_modelled_time(tmp_path: Path) -> None:
    machine = machines.make(tmp_path / "fast", "p100-16", time_scale=1000)
    with running(machine.start_workload('ok(launch(1e9)); answer("running"); sys.stdin.readline()')) as workload:
        assert line(workload) == "running"
        until(lambda: look(machine), lambda found: found["temperature_c"] == 68)
    until(lambda: look(machine), lambda found: found["temperature_c"] == 34)


def test_the_source_samples_a_running_program(machine: Machine) -> None:
    script = """
    import msgspec
    from baton.gpu.nvml import NvmlSource
    print(msgspec.json.encode(NvmlSource().telemetry()[0]).decode())
    """
    workload = machine.start_workload(
        'ok(cuda.cuMemAlloc(1 << 30)); ok(launch(1e6)); answer("on"); sys.stdin.readline()'
    )
    with running(workload):
        assert line(workload) == "on"

        def sample() -> Any:
            with machine.start_program(script) as program:
                return line(program)

        seen = until(sample, lambda found: found["utilisation_percent"] == 100)
        (process,) = seen["processes"]
        assert process["pid"] == workload.pid
        assert process["memory_mib"] == seen["memory_used_mib"] >= 1024
        assert process["utilisation_percent"] == pytest.approx(100, abs=1)


@pytest.mark.parametrize("also_asks_nvml", [False, True])
def test_a_process_in_a_container_is_listed_with_the_hosts_pid(machine: Machine, also_asks_nvml: bool) -> None:
    """Of a container, only the pid namespace matters here; inside it the program is pid 1."""
    ask = (
        "import pynvml; pynvml.nvmlInit(); pynvml.nvmlShutdown(); ok(cuda.cuMemAlloc(1))" if also_asks_nvml else "pass"
    )
    script = f"import os\n{ask}\nok(launch(1e6))\nanswer(os.getpid())\nsys.stdin.readline()"
    launcher = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*launcher, "true"], capture_output=True).returncode != 0:
        pytest.skip("cannot make a pid namespace here")
    with running(machine.start_workload(script, launcher)) as outer:
        assert line(outer) == 1
        inner = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        assert list(look(machine)["processes"]) == inner
