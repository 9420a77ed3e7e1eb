"""Several processes on one card: they share its time, and a process that dies leaves nothing behind."""

import os
import subprocess
from pathlib import Path

import pytest

from baton import native
from tests.gpu.machines import PATIENCE_S, Machine, running


def _ready(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"


def test_two_processes_share_the_card(machine: Machine) -> None:
    endless = """
        open_card()
        busy(100_000_000, demand=float(sys.argv[1]))
        say("ready")
        sys.stdin.readline()
    """
    measured = """
        open_card()
        start, end = (check(cuda.cuEventCreate(0)) for _ in range(2))
        with held():
            check(cuda.cuEventRecord(start, 0))
            busy(4000, demand=float(sys.argv[1]))
            check(cuda.cuEventRecord(end, 0))
        check(cuda.cuCtxSynchronize())
        say(elapsed_ms(start, end))
    """

    def beside_another(demand: float) -> float:
        with running(machine.start(endless, str(demand))) as other:
            _ready(other)
            return float(machine.run(measured, str(demand)))

    assert beside_another(1.0) == pytest.approx(8000, rel=0.01)
    assert beside_another(0.4) == pytest.approx(4000, rel=0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_process_killed_at_any_moment_leaves_nothing_behind(machine: Machine, tmp_path: Path, seed: int) -> None:
    """Three processes at a time allocate, page and launch, and are killed at random moments, 150 times."""
    killer = tmp_path / "killer"
    source = Path(__file__).parent / "killer.c"
    command = ["gcc", "-O1", "-pthread", "-o", killer, source, native.library("simgpu/libcuda.so.1")]
    subprocess.run([str(word) for word in command], check=True)
    done = subprocess.run(
        [killer, "150", str(seed)], capture_output=True, text=True, timeout=250, env=machine.environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    card = machine.card()
    assert card.processes == []
    assert card.free_bytes == card.memory_bytes
    assert (card.device_bytes, card.managed_bytes, card.resident_bytes) == (0, 0, 0)
    assert card.work_waiting == 0


def test_a_dead_process_lock_is_taken_over_with_everything_it_guards(machine: Machine, tmp_path: Path) -> None:
    program = tmp_path / "recovery"
    sources = Path(__file__).parent.parent.parent / "native/simgpu"
    command = ["gcc", "-std=gnu11", "-g", "-fsanitize=address,undefined", "-pthread", "-I", sources, "-o", program]
    command += [Path(__file__).parent / "recovery.c", *sorted(sources.glob("machine*.c")), "-lm"]
    subprocess.run([str(word) for word in command], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=PATIENCE_S, env=machine.environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_living_processes_take_over_the_locks_of_dead_ones(machine: Machine) -> None:
    holder = machine.start("""
        open_card()
        check(cuda.cuMemAlloc(1000 * MIB))
        busy(1_000_000)
        say("ready")
        sys.stdin.read()
    """)
    _ready(holder)
    survivor = machine.start("""
        open_card()
        assert result_of(cuda.cuMemAlloc(900 * MIB)) == "OUT_OF_MEMORY"
        say("ready")
        sys.stdin.readline()
        check(cuda.cuMemAlloc(900 * MIB))
        start, end = (check(cuda.cuEventCreate(0)) for _ in range(2))
        with held():
            check(cuda.cuEventRecord(start, 0))
            busy(1000)
            check(cuda.cuEventRecord(end, 0))
        check(cuda.cuCtxSynchronize())
        say(elapsed_ms(start, end))
    """)
    _ready(survivor)
    holder.kill()
    holder.communicate()
    assert float(survivor.communicate("\n", timeout=PATIENCE_S)[0]) == pytest.approx(1000, rel=0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="making a pid namespace needs root")
def test_processes_in_separate_namespaces_share_and_die_like_any_other(machine: Machine) -> None:
    """Both processes are pid 1 in their namespace, as in two containers."""
    program = """
        assert os.getpid() == 1
        open_card()
        check(cuda.cuMemAlloc(300 * MIB))
        busy(1_000_000)
        say("ready")
        sys.stdin.read()
    """
    apart = ["unshare", "--pid", "--fork", "--kill-child"]
    programs = [machine.start(program, under=apart) for _ in range(2)]
    for one in programs:
        _ready(one)
    card = machine.card()
    assert card.device_bytes == 600 << 20
    seen = {process.pid for process in card.processes}
    assert len(seen) == 2
    assert all(b"python" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in seen), "pids of this namespace"
    programs[0].kill()
    programs[0].communicate()
    machine.run("open_card(); check(cuda.cuMemAlloc(700 * MIB))")
    assert machine.card().device_bytes == 300 << 20
    programs[1].kill()
    programs[1].communicate()
    machine.run("open_card(); check(cuda.cuMemAlloc(1000 * MIB))")


def test_a_forked_child_is_refused_and_its_parent_continues(machine: Machine) -> None:
    machine.run("""
        open_card()
        memory = check(cuda.cuMemAlloc(100 * MIB))
        busy(500)
        child = os.fork()
        if child == 0:
            codes = [cuda.cuInit(0)[0], cuda.cuMemAlloc(1)[0], cuda.cuCtxSynchronize()[0]]
            os._exit(0 if codes == [3, 3, 3] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemFree(memory))
    """)
    assert machine.card().processes == []


def test_a_child_that_outlives_its_parent_does_not_keep_its_memory(machine: Machine) -> None:
    parent = machine.start("""
        open_card()
        check(cuda.cuMemAlloc(100 * MIB))
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        say("ready")
        os.kill(os.getpid(), 9)
    """)
    _ready(parent)
    parent.wait(timeout=PATIENCE_S)
    assert machine.card().free_bytes == 1 << 30
    parent.communicate("")


def test_visible_devices_are_chosen_by_number_and_uuid(machine: Machine) -> None:
    uuids = [card.uuid for card in machine.status().cards]
    program = """
        first = cuda.cuInit(0)
        count = check(cuda.cuDeviceGetCount()) if first[0] == 0 else 0
        say(*(check(cuda.cuDeviceGetUuid(device)).bytes.hex() for device in range(count)))
    """

    def seen(**environment: str) -> list[str]:
        return machine.run(program, **environment).split()

    plain = [uuid.removeprefix("GPU-").replace("-", "") for uuid in uuids]
    assert seen() == plain
    assert seen(CUDA_VISIBLE_DEVICES="1,0") == plain[::-1]
    assert seen(CUDA_VISIBLE_DEVICES=uuids[1]) == [plain[1]]
    assert seen(CUDA_VISIBLE_DEVICES="1,7,0") == [plain[1]]
    assert seen(CUDA_VISIBLE_DEVICES="") == []
    assert seen(NVIDIA_VISIBLE_DEVICES=uuids[1]) == [plain[1]]
    assert seen(NVIDIA_VISIBLE_DEVICES=uuids[1], CUDA_VISIBLE_DEVICES="0") == [plain[1]]
    assert seen(NVIDIA_VISIBLE_DEVICES="none") == []
