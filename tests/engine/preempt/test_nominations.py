"""The room that victims leave is kept for the pods they were evicted for."""

from typing import Any

import msgspec

from baton.engine.events import GroupChanged, PodChanged, PodRemoved
from baton.engine.verdicts import Cause
from baton.model.ids import GroupKey, NodeName, PodKey
from tests.engine.clusters import Cluster, evictions, gang, job, node, queue, spec, whole

CARD = spec(ask=[whole()])
CONF = """
actions: "allocate, preempt"
tiers:
- plugins: [{name: gang}, {name: job-order, arguments: {job-order.policy: sjf}}]
- plugins: [{name: priority, enableJobOrder: false}, {name: predicates}]
"""
"""Jobs are not ordered by priority: a preemptor is not the first to get room."""

SHARES = """
actions: "allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: drf}, {name: proportion}, {name: predicates}]
"""


def preempted() -> Cluster:
    """A gang of two has evicted two pods of one node; neither has left yet."""
    low = job("low", pods=2, what=CARD, on=["a", "a"], priority=1)
    high = gang("high", pods=2, what=CARD, priority=5, expected_duration_s=1000.0, created_s=1.0)
    cluster = Cluster(nodes=[node("a", cards=2)], jobs=[low, high], conf=CONF)
    assert cluster.run().evicted == {"low-0", "low-1"}
    return cluster


def come(cluster: Cluster, name: str, **more: Any) -> None:
    quick = job(name, what=CARD, expected_duration_s=1.0, created_s=2.0, **more)
    cluster.apply(GroupChanged(quick.group), *(PodChanged(item) for item in quick.pods))


def leave(cluster: Cluster, *names: str) -> None:
    cluster.apply(*(PodRemoved(PodKey(f"team/{name}")) for name in names))


def test_a_shorter_job_does_not_take_the_room_of_the_victims() -> None:
    cluster = preempted()
    come(cluster, "quick")
    leave(cluster, "low-0")
    assert cluster.run(1.0).placed == {}, "one of two cards is free, and it is not for the newcomer"
    leave(cluster, "low-1")
    assert set(cluster.run(2.0).placed) == {"high-0", "high-1"}


def test_explanations_know_the_kept_room() -> None:
    """The verdict is the same as in the plan, and an explanation takes no room from any job."""
    cluster = preempted()
    come(cluster, "quick")
    leave(cluster, "low-0")
    for _ in range(2):
        verdicts = {name: cluster.engine.explain(GroupKey(f"team/{name}"), 1.0) for name in ("quick", "high")}
        assert [verdict.cause for verdict in verdicts.values()] == [Cause.NODES, Cause.PIPELINED]
        assert "0 of 1 cards" in verdicts["quick"].paragraph()
        assert cluster.run(1.0).verdicts["high"].cause is Cause.PIPELINED
    leave(cluster, "low-1")
    cluster.engine.explain(GroupKey("team/quick"), 2.0)
    assert set(cluster.run(2.0).placed) == {"high-0", "high-1"}


def test_a_more_important_job_may_take_it() -> None:
    cluster = preempted()
    come(cluster, "urgent", priority=9)
    leave(cluster, "low-0", "low-1")
    assert "urgent-0" in cluster.run(1.0).placed


def test_a_nomination_expires_after_its_turn() -> None:
    """Half of the preemptor is gone, so it can no longer start; it does not block other jobs forever."""
    cluster = preempted()
    cluster.apply(PodRemoved(PodKey("team/high-1")))
    come(cluster, "quick")
    come(cluster, "second")
    leave(cluster, "low-0", "low-1")
    assert len(cluster.run(1.0).placed) == 1, "the other card is kept for one more cycle"
    assert len(cluster.run(2.0).placed) == 1


def test_nominations_are_known_after_a_restart() -> None:
    high = gang("high", pods=2, what=CARD, priority=5, expected_duration_s=1000.0)
    waiting = [msgspec.structs.replace(item, nominated=NodeName("a")) for item in high.pods]
    leaving = job("low", what=CARD, on=["a"], priority=1, pod_options={"deleting": True})
    quick = job("quick", what=CARD, expected_duration_s=1.0)
    cluster = Cluster(nodes=[node("a", cards=2)], jobs=[leaving, quick], conf=CONF)
    cluster.apply(GroupChanged(high.group), *(PodChanged(item) for item in waiting))
    assert cluster.run().placed == {}


def test_victims_do_not_use_up_the_freed_share_of_their_queue() -> None:
    """Another node has room for them, and their gang, which is now partially placed, goes first."""
    jobs = [
        gang("theirs", pods=2, what=spec(cpu=3), on=["a", "b"]),
        job("mine", what=spec(cpu=2), created_s=1.0),
    ]
    nodes = [node(name, cpu=3) for name in ("a", "b", "c")]
    queues = [queue("default", capability={"cpu": 7000})]
    cluster = Cluster(nodes=nodes, jobs=jobs, queues=queues, conf=SHARES)
    assert sum(evictions(cluster, jobs)) == 1
    assert cluster.engine.state.tasks[PodKey("team/mine-0")].row >= 0
