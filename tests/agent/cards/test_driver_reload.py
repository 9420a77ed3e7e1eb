"""The watch over a real NVML library whose driver goes away and comes back while the process lives."""

from pathlib import Path

import pytest

from baton.gpu import simulated
from tests.gpu import machines
from tests.gpu.machines import line, running

pytestmark = pytest.mark.process

WATCH = """
import asyncio, json, logging, structlog
from baton.agent.cards import watch
from baton.agent.config import Health
from baton.gpu.nvidia import NVIDIA

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

async def main():
    watch._SEARCH_EVERY_S = 0.1
    gpus = watch.GpuWatch([NVIDIA], Health(settle_s=0.01, heal_s=0.05, probe_every_s=0.02))
    await gpus.start()
    following = asyncio.create_task(gpus.run())
    while True:
        await gpus.changed.wait()
        gpus.changed.clear()
        print(json.dumps([len(gpus.cards), len(gpus.unhealthy)]), flush=True)

asyncio.run(main())
"""


def test_cards_come_back_with_their_driver(tmp_path: Path) -> None:
    machine = machines.make(tmp_path, "t4", "t4")
    program = machine.start_program(WATCH)

    def until(wanted: list[int]) -> None:
        while line(program) != wanted:
            pass

    with running(program):
        until([2, 0])
        simulated.stop(machine.directory, force=True)
        until([2, 2])
        machines.make(tmp_path, "t4", "t4")
        until([2, 0])
