"""A program on two GPUs beside programs on one: they take turns, never run on one GPU together, and all of them end."""

import sys

import pytest

from tests.local.conftest import PATIENCE_S, Machine

pytestmark = pytest.mark.process

BOTH = """
import ctypes, threading
from baton.local.trainer import Gpu
def work(ordinal):
    gpu = Gpu(ordinal)
    data = gpu.allocate(9 << 30, managed=False)
    for _ in range(12):
        gpu.touch(data, 9 << 30, 6.0, 112)
        gpu.synchronize()
threads = [threading.Thread(target=work, args=(ordinal,)) for ordinal in (0, 1)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_a_gang_and_singles_never_share_a_gpu_in_turns(machine: Machine) -> None:
    machine.baton("run", "--", "true")
    machine.baton("lock", "set", "--mode", "serial", "--quantum", "0.2")
    singles = [
        machine.start(
            "run", "-q", "--gpus", "1", "--tenant", name, "--", *machine.trainer("--gpu-seconds", "8", steps=12)
        )
        for name in ("ann", "ben")
    ]
    gang = machine.start("run", "-q", "--gpus", "2", "--gang", "--tenant", "cid", "--", sys.executable, "-c", BOTH)
    whole = 0
    for status in machine.control.follow(20):
        holders = {gpu.gpu: gpu.holders for gpu in status.gpus}
        assert all(len(held) <= 1 for held in holders.values()), holders
        mine = {client.gpu for client in status.clients if client.tenant == "cid" and client.state == "holding"}
        whole += len(mine) == 2
        if all(process.poll() is not None for process in (gang, *singles)):
            break
    for process in (gang, *singles):
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    assert whole, "the gang was never seen on both GPUs"
    assert all(tenant.account.grants for tenant in machine.control.status().tenants if tenant.tenant != "root")


def test_two_threads_on_two_gpus_do_not_wait_for_each_other(machine: Machine) -> None:
    """Another program keeps one GPU; the thread on the other GPU continues all the same."""
    machine.baton("run", "--", "true")
    machine.baton("lock", "set", "--mode", "serial", "--quantum", "3600")
    hog = machine.start(
        "run", "-q", "--gpus", "1", "--", *machine.trainer("--gpu-seconds", "36000", "--kernels", "1", steps=99)
    )
    for status in machine.control.follow(20):
        if any(gpu.holders for gpu in status.gpus):
            break
    taken = next(index for index, gpu in enumerate(status.gpus) if gpu.holders)
    program = f"""
import threading
from baton.local.trainer import Gpu
def work(ordinal):
    gpu = Gpu(ordinal)
    data = gpu.allocate(1 << 30, managed=False)
    for _ in range(5):
        gpu.touch(data, 1 << 30, 1.0, 112)
        gpu.synchronize()
    print("done", ordinal, flush=True)
threading.Thread(target=work, args=({taken},), daemon=True).start()
work({1 - taken})
"""
    both = machine.start("run", "-q", "--gpus", "2", "--", sys.executable, "-c", program)
    assert both.stdout is not None
    assert both.stdout.readline() == f"done {1 - taken}\n"
    for process in (both, hog):
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
