"""The tree of queues: allowed changes and additions next to queues in use."""

import asyncio

import pytest

from baton.admission.endpoints import Policy, Webhooks
from baton.admission.reviews import Request
from tests.admission.cases import LARGE, SMALL, Case, queue
from tests.admission.test_refusals import KnownCluster, review
from tests.volcano_jobs import Object


def busy(made: Object, pods: int = 3) -> Object:
    """A queue with running pods, in itself or in a child."""
    return {**made, "status": {"state": "Open", "allocated": {"pods": str(pods), "cpu": "3"}}}


def path(name: str, hierarchy: str, weights: str) -> Object:
    return queue(name, annotations={"volcano.sh/hierarchy": hierarchy, "volcano.sh/hierarchy-weights": weights})


def test_a_parent_with_busy_children_can_get_another_child() -> None:
    """The allocation of a queue includes its children."""
    given = (busy(queue("research")), busy(queue("vision", parent="research")))
    assert review(Case("none", queue("speech", parent="research"), given)).findings.message() == ""
    moved = queue("speech", parent="research")
    assert review(Case("none", moved, (*given, queue("speech")), before=queue("speech"))).findings.message() == ""


def test_queues_may_share_a_position_in_the_hierarchy() -> None:
    given = (path("vision", "root/research", "1/2"),)
    assert review(Case("none", path("speech", "root/research", "1/2"), given)).findings.message() == ""


def test_a_change_of_the_hierarchy_alone_is_checked() -> None:
    """The scheduler reads these annotations, even if the spec has not changed."""
    before = path("vision", "root/research", "1/2")
    after = path("vision", "root/research", "1/two")
    assert review(Case("none", after, (before,), before=before)).findings.keys == ["queue-hierarchy-weight"]


def test_a_queue_may_change_its_weight_even_if_its_position_would_be_refused_today() -> None:
    """Queues that are older than a limit of depth or sums can still be changed."""
    deep = [queue("d1", deserved=SMALL), *(queue(f"d{depth}", parent=f"d{depth - 1}") for depth in range(2, 8))]
    heavier = queue("d7", parent="d6", weight=5)
    assert review(Case("none", heavier, tuple(deep), before=deep[-1])).findings.message() == ""
    given = (queue("shared", deserved=SMALL), queue("one", parent="shared", deserved=LARGE))
    heavier = queue("one", parent="shared", deserved=LARGE, weight=5)
    assert review(Case("none", heavier, given, before=given[1])).findings.message() == ""


@pytest.mark.parametrize("kind", ["deserved", "guarantee"])
def test_a_parent_may_not_be_lowered_below_the_sum_of_its_children(kind: str) -> None:
    def promised(amounts: Object) -> Object:
        return {"deserved": amounts, **({"guarantee": {"resource": amounts}} if kind == "guarantee" else {})}

    before = queue("shared", **promised({"cpu": "16"}))
    given = (before, *(queue(name, parent="shared", **promised(SMALL)) for name in ("one", "two")))
    fits = queue("shared", **promised(LARGE))
    assert review(Case("none", fits, given, before=before)).findings.message() == ""
    verdict = review(Case("none", queue("shared", **promised(SMALL)), given, before=before))
    assert f"sum of children's {kind} (8) exceeds parent's {kind} limit (4) of cpu" in verdict.findings.message()


@pytest.mark.parametrize("name", ["default", "root", "over"])
def test_a_queue_that_is_needed_is_not_deleted_in_a_bulk_deletion(name: str) -> None:
    """In a bulk deletion the API server asks for each object, with its name only in the object."""
    given = (queue("default"), queue("root"), queue("over"), queue("under", parent="over"))
    webhooks = Webhooks(KnownCluster(given), Policy())  # type: ignore[arg-type]  # stands in for a Cluster
    request = Request(uid="u", operation="DELETE", name="", old_object=queue(name))
    assert not asyncio.run(webhooks.validate_queue(request)).allowed
    assert asyncio.run(webhooks.validate_queue(Request(uid="u", operation="DELETE", old_object=queue("under")))).allowed
