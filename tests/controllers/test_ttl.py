"""How long a finished job is kept."""

import datetime

import pytest

from baton.controllers.ttl import left_s
from baton.model.meta import Metadata
from baton.model.volcano import Job, JobSpec, JobState, JobStatus

NOW = datetime.datetime(2026, 1, 1, 12, 0, 30, tzinfo=datetime.UTC)


def job(phase: str, ttl_s: int | None, ended: str | None = "2026-01-01T12:00:00Z", deleted: str = "") -> Job:
    state = JobState(phase=phase, last_transition_time=ended)
    return Job(Metadata(deletion_timestamp=deleted), JobSpec(ttl_seconds_after_finished=ttl_s), JobStatus(state=state))


@pytest.mark.parametrize(
    ("one", "left"),
    [
        (job("Completed", 100), 70.0),
        (job("Failed", 30), 0.0),
        (job("Terminated", 0), -30.0),
        (job("Running", 0), None),
        (job("Aborted", 0), None),
        (job("Completed", None), None),
        (job("Completed", 0, ended=None), None),
        (job("Completed", 0, deleted="2026-01-01T12:00:10Z"), None),
    ],
)
def test_the_time_that_is_left(one: Job, left: float | None) -> None:
    assert left_s(one, NOW) == left
