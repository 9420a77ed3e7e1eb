"""A gang starts as a whole or not at all, and a failed attempt leaves no trace."""

import msgspec
import numpy as np

from baton.engine.events import PodChanged
from tests.engine.clusters import Cluster, gang, job, node, queue, spec, whole


def test_a_gang_that_fits_starts_whole() -> None:
    outcome = Cluster(
        nodes=[node("a", cards=2), node("b", cards=2)], jobs=[gang("g", pods=4, what=spec(ask=[whole()]))]
    ).run()
    assert sorted(outcome.placed.values()) == ["a", "a", "b", "b"]


def test_a_gang_that_lacks_one_card_places_no_pod_and_leaves_no_trace() -> None:
    cluster = Cluster(
        nodes=[node("a", cards=2), node("b", cards=1)], jobs=[gang("g", pods=4, what=spec(ask=[whole()]))]
    )
    before = cluster.engine.state.ledger.usage.copy()
    outcome = cluster.run()
    assert outcome.placed == {}
    assert np.array_equal(before, cluster.engine.state.ledger.usage)
    assert not cluster.engine.state.table.used.any()
    assert not cluster.engine.state.ledger.holders


def test_the_room_that_a_failed_gang_tried_is_free_for_the_next_job() -> None:
    big = gang("big", pods=3, what=spec(ask=[whole()]), created_s=0)
    small = gang("small", pods=2, what=spec(ask=[whole()]), created_s=1)
    outcome = Cluster(nodes=[node("a", cards=2)], jobs=[big, small]).run()
    assert set(outcome.placed) == {"small-0", "small-1"}


def test_a_gang_above_its_minimum_takes_the_available_room() -> None:
    outcome = Cluster(nodes=[node("a", cards=3)], jobs=[job("g", pods=5, min_member=2, what=spec(ask=[whole()]))]).run()
    assert len(outcome.placed) == 3


def test_running_members_count_towards_the_minimum() -> None:
    running = gang("g", pods=3, on=["a", "a"], what=spec(ask=[whole()]))
    outcome = Cluster(nodes=[node("a", cards=3)], jobs=[running]).run()
    assert set(outcome.placed) == {"g-2"}


def test_a_partially_placed_gang_is_completed_before_another_starts() -> None:
    """The scheduler died after binding its first members; other jobs must not take the room that the rest needs."""
    other = gang("other", pods=1, what=spec(ask=[whole()]), created_s=0)
    parts = gang("parts", pods=3, on=["a", "a"], what=spec(ask=[whole()]), created_s=1)
    outcome = Cluster(nodes=[node("a", cards=3)], jobs=[other, parts]).run()
    assert set(outcome.placed) == {"parts-2"}


def test_a_jobs_surplus_leaves_room_for_jobs_whose_pods_are_being_created() -> None:
    """Three elastic jobs are submitted together; the pods of the first one exist before those of the others."""
    nodes = [node("a", cpu=6)]
    jobs = [job(name, pods=6, min_member=2, created_s=100.0) for name in ("first", "second", "third")]
    on_their_way = [msgspec.structs.replace(one, pods=()) for one in jobs[1:]]
    cluster = Cluster(nodes=nodes, jobs=[jobs[0], *on_their_way])
    assert len(cluster.run(100.0).placed) == 2
    cluster.apply(*(PodChanged(member) for one in jobs[1:] for member in one.pods))
    placed = cluster.run(100.0).placed
    assert sorted(name.partition("-")[0] for name in placed) == ["second", "second", "third", "third"]


def test_a_jobs_surplus_does_not_wait_for_pods_that_are_never_created() -> None:
    empty = msgspec.structs.replace(job("empty", min_member=2, created_s=100.0), pods=())
    cluster = Cluster(nodes=[node("a", cpu=6)], jobs=[job("elastic", pods=6, created_s=100.0), empty])
    assert len(cluster.run(100.0).placed) == 1
    assert len(cluster.run(103.0).placed) == 5


def test_a_partially_placed_gang_goes_before_more_important_jobs_and_other_queues() -> None:
    urgent = gang("urgent", pods=1, what=spec(ask=[whole()]), priority=9, queue="first", created_s=0)
    parts = gang("parts", pods=3, on=["a", "a"], what=spec(ask=[whole()]), queue="second", created_s=1)
    queues = [queue("first", weight=9), queue("second", weight=1)]
    for conf in ("simple", "multi-tenant"):
        outcome = Cluster(nodes=[node("a", cards=3)], jobs=[urgent, parts], queues=queues, conf=conf).run()
        assert set(outcome.placed) == {"parts-2"}
