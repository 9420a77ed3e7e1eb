"""Queues among queues: what may be changed or added around others that are in use."""

from tests.jobs.admission.cases import Case, Object, queue
from tests.jobs.admission.test_refusals import review


def busy(made: Object, pods: int = 3) -> Object:
    """A queue whose pods, or those of the queues below it, run."""
    return {**made, "status": {"state": "Open", "allocated": {"pods": str(pods), "cpu": "3"}}}


def test_a_parent_in_use_gets_another_child_beside_those_whose_pods_run() -> None:
    """What a queue has allocated is that of the queues below it, too."""
    given = (busy(queue("research")), busy(queue("vision", parent="research")))
    assert review(Case("none", queue("speech", parent="research"), given)).findings.message() == ""
    moved = queue("speech", parent="research")
    assert review(Case("none", moved, (*given, queue("speech")), before=queue("speech"))).findings.message() == ""
