"""Misleading sizes: two programs seem to fit together, and the daemon learns from their behaviour that they do not."""

import pytest

from baton.gpu import simulated
from baton.local.daemon import OwnDaemon
from tests.local.conftest import PATIENCE_S, Machine

pytestmark = pytest.mark.process


def test_programs_that_thrash_are_made_to_take_turns(machine: Machine) -> None:
    card = simulated.status(machine.folder / "machine").cards[0].uuid
    daemon = OwnDaemon(machine.folder / "run" / "lock", {}, ["--gpu", f"{card}=64Gi"])
    daemon.start()
    words = machine.trainer("--gpu-seconds", "6", "--cpu-seconds", "0", "--kernels", "20", steps=100000)
    programs = [machine.start("run", "-q", "--gpus", "1", "--tenant", "ann", "--", *words)]
    for status in machine.control.follow(50):
        if status.clients and status.clients[0].account.received_s > 1:  # it has worked alone for a while
            break
    programs.append(machine.start("run", "-q", "--gpus", "1", "--tenant", "ben", "--", *words))
    together = False
    for status in machine.control.follow(50):
        (gpu,) = status.gpus
        together = together or (len(gpu.holders) == 2 and not gpu.exclusive)
        if gpu.thrash_spells and gpu.exclusive and len(gpu.holders) == 1:
            break
    assert together, "they were never let run together"
    for program in programs:
        program.terminate()
        program.communicate(timeout=PATIENCE_S)
    daemon.stop()
