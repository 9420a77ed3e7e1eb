"""One replica leads, loses the lease, and leads again."""

import types
from typing import Any

import pytest

from baton.model.ids import PodKey
from baton.scheduler import metrics as metrics_module
from baton.scheduler.loop import Scheduler
from baton.scheduler.metrics import Metrics
from baton.scheduler.program import SchedulerProgram
from baton.scheduler.reload import LiveConfiguration
from baton.scheduler.settings import Settings
from tests.observe.pages import scrape

POD = PodKey("ml/train-worker-0")


async def test_how_long_pods_waited_is_not_counted_from_an_earlier_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever led meanwhile has bound the pod; hours later another has its name."""
    metrics = Metrics()
    client: Any = None
    program = SchedulerProgram(client, Settings(), LiveConfiguration(metrics), metrics)
    now_s = [1000.0]
    monkeypatch.setattr(metrics_module, "time", types.SimpleNamespace(monotonic=lambda: now_s[0]))

    async def sees_the_pod(_scheduler: Scheduler) -> None:
        metrics.watched(POD)

    async def binds_the_pod(_scheduler: Scheduler) -> None:
        metrics.watched(POD)
        metrics.bound(POD, 0.1)

    for term in (sees_the_pod, binds_the_pod):
        monkeypatch.setattr(Scheduler, "run", term)
        await program._term()
        now_s[0] += 3600.0
    page = await scrape(metrics.registry)
    assert page.value("baton_scheduler_stage_seconds_sum", stage="bound") == 0.0
