"""`baton why` before the scheduler is asked: what the API server's own words come down to."""

from typing import Any

import pytest

from baton.cli.reasons import settled

OURS = {"schedulerName": "volcano"}
PLACED = {**OURS, "nodeName": "node-1"}


def waiting(name: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("spec", "status", "told"),
    [
        (OURS, {"phase": "Pending"}, ""),
        (OURS, {}, ""),
        ({"schedulerName": "other"}, {}, "is left to the scheduler 'other', which is none of Baton's"),
        (PLACED, {"phase": "Running"}, "runs on node-1"),
        (PLACED, {"phase": "Pending"}, "starts on node-1"),
        (PLACED, {"phase": "Pending", "containerStatuses": [waiting("main", "ContainerCreating")]}, "starts on node-1"),
        (
            PLACED,
            {"phase": "Pending", "containerStatuses": [waiting("main", "ErrImagePull", "no such image")]},
            "is on node-1 and its containers cannot start: main ErrImagePull no such image",
        ),
        (PLACED, {"phase": "Succeeded"}, "has succeeded"),
        (PLACED, {"phase": "Failed", "reason": "Evicted", "message": "no memory"}, "has failed: Evicted, no memory"),
    ],
)
def test_a_pod_that_no_scheduler_has_to_place_is_told_as_it_is(
    spec: dict[str, Any], status: dict[str, Any], told: str
) -> None:
    assert settled(spec, status, deleting=False) == told


def test_a_pod_that_is_being_deleted_waits_for_nothing_else() -> None:
    assert settled(OURS, {"phase": "Pending"}, deleting=True) == "is being deleted"
