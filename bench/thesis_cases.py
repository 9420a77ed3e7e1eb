"""The published two-job cases with Baton, against running them serially and against no scheduler.

The jobs are those of the calibration (`simgpu_calibration`): small ones fit on the card together, big ones do not; 50
and 90 give the percentage of their time that is GPU time. Here they are separate programs under the real hook and the
real daemon, which has no knowledge of them and measures the cost of a switch. Hook and daemon use their defaults.

Simulated time is accelerated, but Baton's own times (100 ms of outstanding work, 50 ms of idle time) are not: at the
scale of 60 they are 6 and 3 modelled seconds, which counts against Baton; a phase of a job takes 69 or more. Big jobs
without a scheduler take hours, so only they run faster.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from baton.local.scenarios import Job, Scenario, Way
from bench import simgpu_calibration
from bench.simgpu_calibration import DEMAND, JOBS, STEP_S

_SCALE = float(os.environ.get("BATON_BENCH_SCALE", "60"))
_THRASHING_SCALE = 250.0
_OVER_SERIAL = {"big_50": 1.30, "big_90": 1.00}
_OVER_UNMANAGED = {"small_50": 0.98, "small_90": 0.98}


def jobs(cases: Sequence[simgpu_calibration.Job], copies: int) -> list[Job]:
    """Each case on its own card."""
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
        for card, case in enumerate(cases)
        for copy in range(copies)
    ]


def makespans(
    way: Way, copies: int, *, cases: Sequence[simgpu_calibration.Job] = JOBS, scale: float = _SCALE
) -> dict[str, float]:
    """Modelled seconds from the start of the first job to the end of the last one, by case."""

    async def measure(folder: Path) -> Scenario:
        async with Scenario(way, jobs(cases, copies), folder, profile="p100-16", time_scale=scale) as scenario:
            await scenario.run()
        return scenario

    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        done = asyncio.run(measure(Path(folder))).progress.jobs
    spans = {}
    for card, case in enumerate(cases):
        mine = [job for job in done if job.job.card == card]
        spans[case.name] = (max(job.reported_at for job in mine) - min(job.working_at for job in mine)) * scale
    return spans


def _row(title: str, cells: Sequence[str]) -> None:
    print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


def _ratios(title: str, of: dict[str, float], to: dict[str, float], aims: dict[str, float]) -> None:
    cells = [f"{to[name] / of[name]:.2f}x" + (f" (target {aims[name]:.2f}x)" if name in aims else "") for name in of]
    _row(title, cells)


def run() -> None:
    names = [case.name for case in JOBS]
    small, big = JOBS[:2], JOBS[2:]
    _row("two copies, modelled seconds", names)
    print("|---" * (len(names) + 1) + "|")
    solo = makespans(Way.SERIAL, 1)
    serial = {name: 2 * solo[name] for name in names}
    _row("serial (twice alone)", [f"{serial[name]:.0f}" for name in names])
    with_baton = makespans(Way.BATON, 2)
    _row("with Baton", [f"{with_baton[name]:.0f}" for name in names])
    unmanaged = makespans(Way.UNMANAGED, 2, cases=small)
    unmanaged |= makespans(Way.UNMANAGED, 2, cases=big, scale=_THRASHING_SCALE)
    _row("unmanaged", [f"{unmanaged[name]:.0f}" for name in names])
    _ratios("Baton over serial", with_baton, serial, _OVER_SERIAL)
    _ratios("Baton over unmanaged", with_baton, unmanaged, _OVER_UNMANAGED)
    print(f"\ntime scale {_SCALE:g}, big_* unmanaged {_THRASHING_SCALE:g}; hook and daemon with their defaults")
