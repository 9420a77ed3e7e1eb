"""Running pods are moved only to better places, a few at a time, and within budgets."""

from typing import Any

import pytest

from baton.engine.events import EvictFailed
from baton.engine.objects import Budget, LabelSelector, Pod
from baton.model.ids import PodKey
from tests.engine.clusters import Cluster, job, node, running, spec, whole

CONF = """
actions: "allocate, shuffle"
tiers:
- plugins:
  - name: gang
  - name: predicates
configurations:
- name: shuffle
  arguments: {maxMoves: 2}
"""
CARD = spec(ask=[whole()])
NODES = [node("a", cards=2), node("b", cards=2)]


def scattered(**options: Any) -> list[Pod]:
    return [running(name, on, CARD, **options) for name, on in (("r", "a"), ("s", "b"))]


def test_one_pod_is_moved_to_free_a_whole_node() -> None:
    big = job("big", what=spec(ask=[whole(2)]))
    outcome = Cluster(nodes=NODES, jobs=[big], pods=scattered(), conf=CONF).run()
    assert outcome.evicted == {"r"}
    assert outcome.nominated == {"big-0": "a"}
    assert "moved to b" in outcome.plan.evictions[0].reason


def test_no_pod_is_moved_without_another_place() -> None:
    big = job("big", what=spec(ask=[whole(2)]))
    full = [*scattered(), running("t", "b", CARD)]
    assert Cluster(nodes=NODES, jobs=[big], pods=full, conf=CONF).run().evicted == set()


def test_no_pod_is_moved_for_a_job_that_fits() -> None:
    assert Cluster(nodes=NODES, jobs=[job("small", what=CARD)], pods=scattered(), conf=CONF).run().evicted == set()


def test_budgets_and_protected_pods_are_respected() -> None:
    big = job("big", what=spec(ask=[whole(2)]))
    budget = Budget(namespace="team", name="b", selector=LabelSelector(), disruptions_allowed=0)
    assert Cluster(nodes=NODES, jobs=[big], pods=scattered(), budgets=[budget], conf=CONF).run().evicted == set()
    fixed = scattered(preemptable=False)
    assert Cluster(nodes=NODES, jobs=[big], pods=fixed, conf=CONF).run().evicted == set()


def test_a_pod_that_was_just_placed_is_not_moved() -> None:
    """A plan never both starts and stops a pod."""
    jobs = [job("first", what=CARD, created_s=-1.0), job("big", what=spec(ask=[whole(2)]))]
    fixed = [running("s", "b", CARD, preemptable=False)]
    outcome = Cluster(nodes=NODES, jobs=jobs, pods=fixed, conf=CONF).run()
    assert set(outcome.placed) == {"first-0"}
    assert outcome.evicted == set()


def test_a_pod_whose_eviction_was_refused_is_not_moved() -> None:
    big = job("big", what=spec(ask=[whole(2)]))
    cluster = Cluster(nodes=NODES, jobs=[big], pods=scattered(), conf=CONF)
    assert cluster.run().evicted == {"r"}
    cluster.apply(EvictFailed(PodKey("team/r"), 10.0))
    assert cluster.run(1.0).evicted == {"s"}


TDM = """
actions: "allocate, shuffle"
tiers:
- plugins:
  - name: gang
  - name: tdm
    arguments:
      tdm.revocable-zone.night: 20:00-06:00
  - name: predicates
"""
NIGHT_S, NOON_S = 22 * 3600.0, 12 * 3600.0


def test_revocable_nodes_serve_in_their_hours_and_are_emptied_afterwards() -> None:
    nodes = [node("lent", labels={"volcano.sh/revocable-zone": "night"})]
    cluster = Cluster(nodes=nodes, jobs=[job("j", what=spec(revocable_zone="*"))], conf=TDM)
    assert cluster.run(NOON_S).placed == {}
    assert cluster.run(NIGHT_S).placed == {"j-0": "lent"}
    picky = Cluster(nodes=nodes, jobs=[job("j")], conf=TDM)
    assert picky.run(NIGHT_S).placed == {}, "a pod that does not accept revocable nodes"
    there = job("j", pods=2, what=spec(revocable_zone="*"), on=["lent", "lent"])
    assert len(Cluster(nodes=nodes, jobs=[there], conf=TDM).run(NOON_S).evicted) == 1, "one per job and period"


@pytest.mark.parametrize(
    ("budget", "gone"),
    [
        ({"budget_min_available": "1"}, 3),
        ({"budget_min_available": "50%"}, 2),
        ({"budget_max_unavailable": "25%"}, 1),
        ({"budget_min_available": "most"}, 0),
        ({"budget_max_unavailable": "-1%"}, 0),
        ({"budget_max_unavailable": "٣"}, 0),
    ],
)
def test_a_job_loses_no_more_than_its_budget_and_nothing_with_an_invalid_one(budget: dict[str, Any], gone: int) -> None:
    nodes = [node("lent", labels={"volcano.sh/revocable-zone": "night"})]
    there = job("j", pods=4, what=spec(revocable_zone="*"), on=["lent"] * 4, **budget)
    assert len(Cluster(nodes=nodes, jobs=[there], conf=TDM).run(NOON_S).evicted) == gone
