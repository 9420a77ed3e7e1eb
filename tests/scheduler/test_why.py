"""What a pod's own status says before the engine is asked."""

from typing import Any

import msgspec
import pytest

from baton.engine.verdicts import Cause
from baton.model import core
from baton.scheduler.why import settled

OURS = {"schedulerName": "volcano"}
PLACED = {**OURS, "nodeName": "node-1"}


def waiting(name: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def pod(spec: dict[str, Any], status: dict[str, Any], **metadata: Any) -> core.Pod:
    named = {"name": "a", "namespace": "team", **metadata}
    return msgspec.convert({"metadata": named, "spec": spec, "status": status}, core.Pod)


@pytest.mark.parametrize(
    ("spec", "status", "sentence"),
    [
        ({"schedulerName": "other"}, {}, "belongs to the scheduler 'other', which is not Baton"),
        (PLACED, {"phase": "Running"}, "runs on node-1"),
        (PLACED, {"phase": "Pending"}, "starts on node-1"),
        (PLACED, {"phase": "Pending", "containerStatuses": [waiting("main", "ContainerCreating")]}, "starts on node-1"),
        (
            PLACED,
            {"phase": "Pending", "containerStatuses": [waiting("main", "ErrImagePull", "no such image")]},
            "is on node-1, but its containers cannot start: main ErrImagePull no such image",
        ),
        (PLACED, {"phase": "Succeeded"}, "has succeeded"),
        (PLACED, {"phase": "Failed", "reason": "Evicted", "message": "no memory"}, "has failed: Evicted, no memory"),
    ],
)
def test_a_pod_that_does_not_wait_for_the_scheduler_has_a_sentence(
    spec: dict[str, Any], status: dict[str, Any], sentence: str
) -> None:
    verdict = settled(pod(spec, status), {"volcano"})
    assert verdict is not None
    assert verdict.paragraph() == f"team/a {sentence}."
    assert not verdict.cause.waits


@pytest.mark.parametrize("status", [{"phase": "Pending"}, {}])
def test_a_pod_without_a_node_waits_for_the_scheduler(status: dict[str, Any]) -> None:
    assert settled(pod(OURS, status), {"volcano"}) is None


def test_a_pod_that_is_being_deleted_waits_for_nothing_else() -> None:
    verdict = settled(pod(OURS, {"phase": "Pending"}, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert verdict is not None
    assert (verdict.cause, verdict.paragraph()) == (Cause.DELETING, "team/a is being deleted.")


def test_a_pod_of_any_scheduler_waits_as_long_as_no_names_are_given() -> None:
    assert settled(pod({"schedulerName": "other"}, {})) is None
