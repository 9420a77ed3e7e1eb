"""The published two-job cases with Baton, against running them serially and against no scheduler.

The jobs are those of the calibration (`simgpu_calibration`): small ones fit into the card together, big ones do not;
50 and 90 say which part of their time is GPU time. Here they are programs of their own under the real hook and the real
daemon, which knows nothing of them and measures what a switch costs. The settings are not quite the defaults: the
hook's window and the shortest idle time shrink with the time scale (`baton.local.scenarios`).
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from baton.local.scenarios import Job, Scenario, Way
from bench.simgpu_calibration import DEMAND, JOBS, STEP_S

_SCALE = float(os.environ.get("BATON_BENCH_SCALE", "250"))
_AIMS = {"small_50": 1.0, "small_90": 1.0, "big_50": 1.30, "big_90": 1.00}


def jobs(copies: int) -> list[Job]:
    """Each case on a card of its own."""
    blocks = int(DEMAND * 56 * 2048 / 1024)
    return [
        Job(
            tenant=f"tenant-{copy}",
            name=f"{case.name}-{copy}",
            card=card,
            working_set_gib=case.working_set_bytes / (1 << 30),
            steps=1,
            gpu_s=case.steps * STEP_S,
            cpu_s=case.cpu_s,
            kernels=case.steps,
            blocks=blocks,
        )
        for card, case in enumerate(JOBS)
        for copy in range(copies)
    ]


def makespans(way: Way, copies: int) -> dict[str, float]:
    """Modelled seconds from the first job at work to the last one done, by case."""

    async def measure(folder: Path) -> Scenario:
        async with Scenario(way, jobs(copies), folder, profile="p100-16", time_scale=_SCALE) as scenario:
            await scenario.run()
        return scenario

    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        done = asyncio.run(measure(Path(folder))).progress.jobs
    spans = {}
    for card, case in enumerate(JOBS):
        mine = [job for job in done if job.job.card == card]
        spans[case.name] = (max(job.told_at for job in mine) - min(job.working_at for job in mine)) * _SCALE
    return spans


def _row(title: str, cells: Sequence[str]) -> None:
    print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


def run() -> None:
    names = [case.name for case in JOBS]
    _row("two copies, modelled seconds", names)
    print("|---" * (len(names) + 1) + "|")
    solo = makespans(Way.SERIAL, 1)
    serial = {name: 2 * solo[name] for name in names}
    _row("serial (twice alone)", [f"{serial[name]:.0f}" for name in names])
    with_baton = makespans(Way.BATON, 2)
    _row("with Baton", [f"{with_baton[name]:.0f}" for name in names])
    unmanaged = makespans(Way.UNMANAGED, 2)
    _row("unmanaged", [f"{unmanaged[name]:.0f}" for name in names])
    _row("Baton over serial", [f"{serial[name] / with_baton[name]:.2f}x (aim {_AIMS[name]:.2f}x)" for name in names])
    _row("Baton over unmanaged", [f"{unmanaged[name] / with_baton[name]:.2f}x" for name in names])
    print(f"\ntime scale {_SCALE:g}; aims for small_*: within 2 % of unmanaged")
