"""Reclaim settles: victims are recreated at once, and after a few cycles no more pods are evicted."""

import pytest

from baton.model.ids import PodKey
from tests.engine.clusters import Cluster, evictions, gang, job, node, queue, spec, whole

CARD = spec(ask=[whole()])
CARDS = "baton.dev/cards"
GIB = 1 << 30
CONF = """
actions: "allocate, {action}"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}, {{name: conformance}}, {{name: capacity}}, {{name: predicates}}]
"""
RECLAIM, GANGRECLAIM = CONF.format(action="reclaim"), CONF.format(action="gangreclaim")


def runs(cluster: Cluster, name: str) -> bool:
    return cluster.engine.state.tasks[PodKey(f"team/{name}")].row >= 0


def test_after_one_exchange_each_queue_has_its_half() -> None:
    jobs = [
        job("theirs", pods=4, what=CARD, on=["a"] * 4, queue="theirs"),
        *(job(f"mine{number}", what=CARD, queue="mine") for number in range(4)),
    ]
    queues = [queue(name, deserved={CARDS: 2}) for name in ("mine", "theirs")]
    cluster = Cluster(nodes=[node("a", cards=4)], jobs=jobs, queues=queues, conf=RECLAIM)
    assert sum(evictions(cluster, jobs)) == 2
    assert sum(runs(cluster, f"mine{number}-0") for number in range(4)) == 2


@pytest.mark.parametrize("conf", [RECLAIM, GANGRECLAIM], ids=["reclaim", "gangreclaim"])
def test_queues_with_excess_of_different_resources_do_not_alternate(conf: str) -> None:
    """One has more cpu than it deserves, the other more memory, and each is below its share of the other resource."""
    jobs = [
        job(f"{name}{at}", what=spec(cpu=cpu, memory_gib=memory), on=["a"], queue=name, created_s=float(at))
        for name, cpu, memory in (("memory", 1, 3), ("cpu", 3, 1))
        for at in range(5)
    ]
    jobs += [job(f"{name}-waits", what=spec(cpu=1, memory_gib=1), queue=name) for name in ("memory", "cpu")]
    queues = [queue(name, deserved={"cpu": 10_000, "memory": 10 * GIB}) for name in ("cpu", "memory")]
    cluster = Cluster(nodes=[node("a", cpu=20, memory_gib=20)], jobs=jobs, queues=queues, conf=conf)
    assert evictions(cluster, jobs)[-6:] == [0] * 6


def test_no_gang_is_evicted_for_one_beyond_the_deserved_share_of_its_queue() -> None:
    jobs = [
        gang("theirs", pods=2, what=CARD, on=["a", "a"], queue="theirs"),
        gang("mine", pods=2, what=CARD, queue="mine"),
    ]
    for deserved, expected in ((2, 2), (1, 0)):
        queues = [queue("mine", deserved={CARDS: deserved}), queue("theirs")]
        cluster = Cluster(nodes=[node("a", cards=2)], jobs=jobs, queues=queues, conf=GANGRECLAIM)
        assert len(cluster.run().evicted) == expected


def test_victims_do_not_take_their_room_back_whatever_their_priority_in_their_queue() -> None:
    jobs = [
        job("theirs", pods=4, what=CARD, on=["a"] * 4, queue="theirs", priority=9),
        gang("mine", pods=2, what=CARD, queue="mine", created_s=5.0),
    ]
    queues = [queue("mine", deserved={CARDS: 2}), queue("theirs", priority=1)]
    cluster = Cluster(nodes=[node("a", cards=4)], jobs=jobs, queues=queues, conf=RECLAIM)
    assert sum(evictions(cluster, jobs)) == 2
    assert runs(cluster, "mine-0")
    assert runs(cluster, "mine-1")


TIERS = """
actions: "allocate, reclaim"
tiers:
- plugins: [{{name: priority}}, {first}, {{name: conformance}}]
- plugins: [{{name: {second}}}, {{name: predicates}}]
"""
PLAIN_GANG = "{name: gang, enableReclaimable: false}"


@pytest.mark.parametrize("first", ["{name: gang}", PLAIN_GANG], ids=["gang", "only kube-system is protected"])
def test_a_queue_within_its_deserved_share_keeps_it_even_if_the_first_tier_ignores_queues(first: str) -> None:
    """Each queue deserves the cpu that its pod requests, but there is memory for only one of the pods."""
    jobs = [job(f"of-{name}", what=spec(cpu=1, memory_gib=4), queue=name) for name in ("one", "other")]
    queues = [queue(name, deserved={"cpu": 1000, "memory": GIB}) for name in ("one", "other")]
    conf = TIERS.format(first=first, second="capacity")
    cluster = Cluster(nodes=[node("n", cpu=8, memory_gib=4)], jobs=jobs, queues=queues, conf=conf)
    assert evictions(cluster, jobs)[-6:] == [0] * 6


def test_queues_whose_pods_do_not_fit_together_do_not_alternate() -> None:
    """Each queue deserves its whole request, but the pods do not fit onto the nodes together."""
    jobs = [
        gang("one", pods=2, what=spec(cpu=3), queue="one", on=["a", "b"]),
        gang("other", pods=2, what=spec(cpu=2), queue="other", created_s=1.0),
    ]
    nodes = [node(name, cpu=4) for name in ("a", "b")] + [node("c", cpu=2)]
    queues = [queue(name) for name in ("one", "other")]
    cluster = Cluster(nodes=nodes, jobs=jobs, queues=queues, conf=TIERS.format(first=PLAIN_GANG, second="proportion"))
    assert evictions(cluster, jobs)[-6:] == [0] * 6
    assert runs(cluster, "one-0")


def test_usage_above_the_deserved_share_is_still_reclaimed() -> None:
    jobs = [
        *(job(f"theirs{number}", what=CARD, on=["a"], queue="theirs") for number in range(4)),
        *(job(f"mine{number}", what=CARD, queue="mine") for number in range(4)),
    ]
    queues = [queue(name) for name in ("mine", "theirs")]
    conf = TIERS.format(first="{name: gang}", second="proportion")
    cluster = Cluster(nodes=[node("a", cards=4)], jobs=jobs, queues=queues, conf=conf)
    assert sum(evictions(cluster, jobs)) == 2


@pytest.mark.parametrize("second", ["capacity", "proportion"])
def test_priority_decides_if_no_share_does_and_the_room_is_kept(second: str) -> None:
    """All queues are far below their deserved shares, but only two cards are on usable nodes."""
    jobs = [
        *(job(f"low{number}", what=CARD, on=["a"], queue=f"low{number}", priority=1) for number in range(2)),
        *(job(f"high{number}", what=CARD, queue=f"high{number}", priority=9) for number in range(2)),
    ]
    names = [f"{kind}{number}" for kind in ("low", "high") for number in range(2)]
    queues = [queue(name, deserved={CARDS: 8}) for name in names]
    nodes = [node("a", cards=2), node("b", cards=30, unschedulable=True)]
    conf = TIERS.format(first="{name: gang}", second=second)
    cluster = Cluster(nodes=nodes, jobs=jobs, queues=queues, conf=conf)
    assert sum(evictions(cluster, jobs)) == 2
    assert runs(cluster, "high0-0")
    assert runs(cluster, "high1-0")
