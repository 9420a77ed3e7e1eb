"""The three ways of the demo, on a machine that is small and fast enough for a test."""

import json
import tempfile
from pathlib import Path

import pytest

from baton.errors import BatonError
from baton.local.scenarios import Job, JobProgress, Progress, Scenario, Way
from tests.local.conftest import Machine

pytestmark = pytest.mark.process


def progress(*fractions: tuple[str, float]) -> Progress:
    jobs = [JobProgress(Job(tenant, tenant, 0, 1, steps=100), step=round(done * 100)) for tenant, done in fractions]
    return Progress(Way.BATON, jobs)


@pytest.mark.parametrize(
    ("fractions", "fairness"),
    [
        ((("a", 1.0), ("b", 1.0), ("c", 1.0)), 1.0),
        ((("a", 1.0), ("b", 0.0), ("c", 0.0)), 1 / 3),
        ((("a", 1.0), ("a", 0.0), ("b", 0.5)), 1.0),
    ],
)
def test_fairness_is_jains_index_of_the_tenants(fractions: tuple[tuple[str, float], ...], fairness: float) -> None:
    way = progress(*fractions)
    assert way.fairness() is None
    way.note_first_finish()
    assert way.fairness() == pytest.approx(fairness)


def test_fairness_is_measured_when_the_first_job_finishes() -> None:
    way = progress(("a", 1.0), ("b", 0.5))
    way.note_first_finish()
    first = way.fairness()
    way.jobs[1].step = 100
    way.note_first_finish()
    assert way.fairness() == first


@pytest.mark.parametrize("way", list(Way))
async def test_every_way_finishes_every_job(way: Way) -> None:
    jobs = [Job(tenant, tenant, 0, 9, steps=4, gpu_s=2, cpu_s=2, kernels=4) for tenant in ("ann", "ben")]
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        async with Scenario(way, jobs, Path(folder), profile="p100-16", time_scale=100) as scenario:
            await scenario.run()
    assert [job.fraction for job in scenario.progress.jobs] == [1.0, 1.0]
    first, second = sorted(scenario.progress.jobs, key=lambda job: job.started_at or 0.0)
    assert first.finished_at is not None
    assert second.started_at is not None
    assert (second.started_at >= first.finished_at) == (way is Way.SERIAL)


async def test_a_job_that_fails_is_named() -> None:
    jobs = [Job("ann", "too-big", 0, 20, steps=2)]
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        async with Scenario(Way.SERIAL, jobs, Path(folder), profile="p100-16", time_scale=100) as scenario:
            with pytest.raises(BatonError, match=r"job too-big of ann failed \(serial\).*OUT_OF_MEMORY"):
                await scenario.run()


def test_the_demo_reports_all_three_ways(machine: Machine) -> None:
    """With little patience, so that the test is short; the makespan of a stopped way is estimated and marked."""
    shown = machine.baton("demo", "-q", "-o", "json", "--patience", "2")
    assert shown.returncode == 0, shown.stderr
    outcomes = {outcome["way"]: outcome for outcome in json.loads(shown.stdout)}
    assert set(outcomes) == {"serial", "unmanaged", "baton"}
    assert all(outcome["estimated"] for outcome in outcomes.values())
    assert outcomes["serial"]["speedup_over_serial"] == 1.0
