"""Sub-groups of a gang: each part starts as a whole or not at all, and the gang needs a minimum of complete parts."""

from typing import Any

import msgspec

from baton.engine.objects import LabelSelector, Parts
from tests.engine.clusters import Cluster, JobLiteral, gang, job, node, spec, whole

CARD = spec(ask=[whole()])
WORKERS = Parts(name="workers", selector=LabelSelector((("role", "worker"),)), keys=("part",), size=2, minimum=2)


def parted(name: str = "train", *, parts: int = 3, size: int = 2, rule: Parts = WORKERS, **more: Any) -> JobLiteral:
    """A gang of equal parts; its pods are assigned to the parts in turn, so that their order alone does not help."""
    literal = gang(name, pods=parts * size, min_member=rule.minimum * rule.size, what=CARD, **more)
    pods = tuple(
        msgspec.structs.replace(pod, labels=(("part", str(at % parts)), ("role", "worker")))
        for at, pod in enumerate(literal.pods)
    )
    return JobLiteral(msgspec.structs.replace(literal.group, parts=(rule,)), pods)


def placed_by_part(literal: JobLiteral, placed: dict[str, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pod in literal.pods:
        if pod.name in placed:
            part = dict(pod.labels)["part"]
            counts[part] = counts.get(part, 0) + 1
    return counts


def test_only_complete_parts_start() -> None:
    """Room for five of six pods: two parts start, and no pod of the third."""
    literal = parted()
    outcome = Cluster(nodes=[node("a", cards=5)], jobs=[literal]).run()
    assert placed_by_part(literal, outcome.placed) == {"0": 2, "1": 2}


def test_all_parts_start_if_there_is_room() -> None:
    literal = parted()
    outcome = Cluster(nodes=[node("a", cards=6)], jobs=[literal]).run()
    assert placed_by_part(literal, outcome.placed) == {"0": 2, "1": 2, "2": 2}


def test_nothing_starts_with_fewer_complete_parts_than_the_minimum() -> None:
    assert Cluster(nodes=[node("a", cards=3)], jobs=[parted()]).run().placed == {}


def test_a_part_that_does_not_start_leaves_its_room_to_others() -> None:
    single = job("single", what=CARD, created_s=5)
    outcome = Cluster(nodes=[node("a", cards=5)], jobs=[parted(), single]).run()
    assert "single-0" in outcome.placed


def test_the_verdict_of_a_gang_with_missing_parts_says_so() -> None:
    literal = parted(parts=4, size=1)
    outcome = Cluster(nodes=[node("a", cards=9)], jobs=[literal]).run()
    assert outcome.placed == {}
    assert "0 of 2 sub-groups workers have 2 pods" in outcome.verdicts["train"].paragraph()


PREEMPT = """
actions: "allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}]
"""


def test_victims_come_from_a_part_that_can_be_spared() -> None:
    """Two of three running parts are needed: one whole part may be evicted, and no pod of another part."""
    literal = parted(on=["a"] * 6, priority=1)
    high = gang("high", pods=2, what=CARD, priority=9)
    outcome = Cluster(nodes=[node("a", cards=6)], jobs=[literal, high], conf=PREEMPT).run()
    parts = {dict(pod.labels)["part"] for pod in literal.pods if pod.name in outcome.evicted}
    assert len(outcome.evicted) == 2
    assert len(parts) == 1


def test_parts_that_are_needed_stay_complete() -> None:
    literal = parted(parts=2, on=["a"] * 4, priority=1)
    high = gang("high", pods=1, what=CARD, priority=9)
    assert Cluster(nodes=[node("a", cards=4)], jobs=[literal, high], conf=PREEMPT).run().evicted == set()
