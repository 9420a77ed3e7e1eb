"""Reclaim comes to an end: victims are made anew at once, and after a few cycles nobody is evicted any more."""

import pytest

from baton.engine.objects import PodKey
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
def test_queues_that_are_rich_in_different_things_do_not_take_turns(conf: str) -> None:
    """One has more cpu than it deserves, the other more memory, and each is below in what the other has."""
    jobs = [
        job(f"{name}{at}", what=spec(cpu=cpu, memory_gib=memory), on=["a"], queue=name, created_s=float(at))
        for name, cpu, memory in (("memory", 1, 3), ("cpu", 3, 1))
        for at in range(5)
    ]
    jobs += [job(f"{name}-waits", what=spec(cpu=1, memory_gib=1), queue=name) for name in ("memory", "cpu")]
    queues = [queue(name, deserved={"cpu": 10_000, "memory": 10 * GIB}) for name in ("cpu", "memory")]
    cluster = Cluster(nodes=[node("a", cpu=20, memory_gib=20)], jobs=jobs, queues=queues, conf=conf)
    assert evictions(cluster, jobs)[-6:] == [0] * 6


def test_no_gang_gives_way_to_one_that_goes_beyond_what_its_queue_deserves() -> None:
    jobs = [
        gang("theirs", pods=2, what=CARD, on=["a", "a"], queue="theirs"),
        gang("mine", pods=2, what=CARD, queue="mine"),
    ]
    for deserved, expected in ((2, 2), (1, 0)):
        queues = [queue("mine", deserved={CARDS: deserved}), queue("theirs")]
        cluster = Cluster(nodes=[node("a", cards=2)], jobs=jobs, queues=queues, conf=GANGRECLAIM)
        assert len(cluster.run().evicted) == expected


def test_victims_do_not_take_back_what_they_left_however_important_they_are_in_their_queue() -> None:
    jobs = [
        job("theirs", pods=4, what=CARD, on=["a"] * 4, queue="theirs", priority=9),
        gang("mine", pods=2, what=CARD, queue="mine", created_s=5.0),
    ]
    queues = [queue("mine", deserved={CARDS: 2}), queue("theirs", priority=1)]
    cluster = Cluster(nodes=[node("a", cards=4)], jobs=jobs, queues=queues, conf=RECLAIM)
    assert sum(evictions(cluster, jobs)) == 2
    assert runs(cluster, "mine-0")
    assert runs(cluster, "mine-1")
