"""How long a finished job is kept."""

import datetime

import pytest

from baton.controllers.ttl import left_s
from baton.model.volcano import Job
from tests.volcano_jobs import job

NOW = datetime.datetime(2026, 1, 1, 12, 0, 30, tzinfo=datetime.UTC)


def ended_job(phase: str, ttl_s: int | None, ended: str | None = "2026-01-01T12:00:00Z", deleted: str = "") -> Job:
    return job(
        phase=phase,
        state={"lastTransitionTime": ended},
        metadata={"deletionTimestamp": deleted},
        ttlSecondsAfterFinished=ttl_s,
    )


@pytest.mark.parametrize(
    ("one", "left"),
    [
        (ended_job("Completed", 100), 70.0),
        (ended_job("Failed", 30), 0.0),
        (ended_job("Terminated", 0), -30.0),
        (ended_job("Running", 0), None),
        (ended_job("Aborted", 0), None),
        (ended_job("Completed", None), None),
        (ended_job("Completed", 0, ended=None), None),
        (ended_job("Completed", 0, deleted="2026-01-01T12:00:10Z"), None),
    ],
)
def test_the_remaining_time_of_a_finished_job(one: Job, left: float | None) -> None:
    assert left_s(one, NOW) == left
