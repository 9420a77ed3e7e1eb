"""If a victim cannot be evicted, another one is, and no room is kept for a job that does not get its place."""

import pytest

from baton.engine.events import BudgetChanged, BudgetRemoved, Event, EvictFailed, GroupChanged, PodChanged, PodRemoved
from baton.engine.objects import Budget, LabelSelector
from baton.model.ids import PodKey
from tests.engine.clusters import Cluster, job, node, spec

CONF = """
actions: "allocate, {action}"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}]
- plugins: [{{name: predicates}}, {{name: nodeorder}}]
"""
PREEMPT = CONF.format(action="preempt")
WEB = {"app": "web"}


def budget(allowed: int, name: str = "budget") -> Budget:
    return Budget(namespace="team", name=name, disruptions_allowed=allowed, selector=LabelSelector((("app", "web"),)))


def refused(cluster: Cluster, now_s: float, until_s: float) -> str:
    """Let the eviction that the engine chooses fail; returns the victim."""
    (victim,) = cluster.run(now_s).evicted
    cluster.apply(EvictFailed(PodKey(f"team/{victim}"), until_s))
    return victim


@pytest.mark.parametrize("action", ["preempt", "gangpreempt"])
def test_another_pod_is_evicted_instead(action: str) -> None:
    jobs = [job(f"low{at}", what=spec(cpu=4), on=["n"], created_s=float(at)) for at in range(2)]
    jobs.append(job("high", what=spec(cpu=4), priority=9))
    cluster = Cluster(nodes=[node("n", cpu=8)], jobs=jobs, conf=CONF.format(action=action))
    first = refused(cluster, 0.0, until_s=10.0)
    second = refused(cluster, 1.0, until_s=6.0)
    assert {first, second} == {"low0-0", "low1-0"}
    assert cluster.run(2.0).evicted == set()
    assert cluster.run(6.0).evicted == {second}
    cluster.apply(PodRemoved(PodKey(f"team/{second}")))
    assert cluster.run(7.0).placed == {"high-0": "n"}


def test_another_task_of_the_job_is_evicted_instead() -> None:
    members = job("j", pods=3, what=spec(cpu=4), on=["n", "n"])
    cluster = Cluster(nodes=[node("n", cpu=8)], jobs=[members], conf=PREEMPT)
    important = job("j", pods=3, what=spec(cpu=4), priority=9).pods[2]
    cluster.apply(PodChanged(important))
    assert {refused(cluster, 0.0, 10.0), refused(cluster, 1.0, 10.0)} == {"j-0", "j-1"}
    assert cluster.run(2.0).evicted == set()


@pytest.mark.parametrize(
    "eased",
    [BudgetChanged(budget(1)), BudgetRemoved("team", "budget")],
    ids=["the budget allows one again", "the budget is gone"],
)
def test_a_refusal_of_a_budget_holds_for_all_its_pods(eased: Event) -> None:
    """Meanwhile no other pod of the budget is evicted, and free room is not kept for the waiting job."""
    jobs = [job(f"low{at}", what=spec(cpu=3), on=["n"], labels=WEB) for at in range(2)]
    jobs.append(job("high", what=spec(cpu=4), priority=9))
    cluster = Cluster(nodes=[node("n", cpu=8)], jobs=jobs, budgets=[budget(0)], conf=PREEMPT)
    refused(cluster, 0.0, until_s=100.0)
    small = job("small", what=spec(cpu=2), created_s=1.0)
    cluster.apply(GroupChanged(small.group), *map(PodChanged, small.pods))
    outcome = cluster.run(1.0)
    assert (outcome.evicted, outcome.placed) == (set(), {"small-0": "n"})
    cluster.apply(BudgetChanged(budget(0)))
    assert cluster.run(3.0).evicted == set()
    cluster.apply(eased)
    assert cluster.run(4.0).evicted


def test_a_refusal_for_a_pod_with_several_budgets_holds_for_that_pod_only() -> None:
    jobs = [job(f"low{at}", what=spec(cpu=4), on=["n"], labels=WEB) for at in range(2)]
    cluster = Cluster(
        nodes=[node("n", cpu=8)],
        jobs=[*jobs, job("high", what=spec(cpu=4), priority=9)],
        budgets=[budget(1), budget(1, "another")],
        conf=PREEMPT,
    )
    assert refused(cluster, 0.0, 10.0) != refused(cluster, 1.0, 10.0)
