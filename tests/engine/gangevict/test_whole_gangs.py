"""Gang preemption and reclaim: surplus first, then whole gangs, and none that is not needed."""

import pytest

from tests.engine.clusters import Cluster, Outcome, gang, job, node, queue, spec, whole

CARD = spec(ask=[whole()])


def conf(action: str, arguments: str = "") -> str:
    plugins = "{name: priority}, {name: gang}, {name: conformance}"
    queues = ", {name: proportion}" if "reclaim" in action else ""
    return f"""
actions: "allocate, {action}"
tiers:
- plugins: [{plugins}{queues}, {{name: predicates}}]
configurations:
- name: {action}
  arguments: {{{arguments}}}
"""


def cluster(action: str = "gangpreempt", arguments: str = "") -> Cluster:
    """Two gangs of two fill four cards; a more important gang of two arrives."""
    jobs = [
        gang("old", pods=2, what=CARD, on=["a", "a"], priority=1, created_s=1.0),
        gang("young", pods=2, what=CARD, on=["b", "b"], priority=1, created_s=2.0),
        gang("high", pods=2, what=CARD, priority=9, created_s=3.0),
    ]
    return Cluster(nodes=[node("a", cards=2), node("b", cards=2)], jobs=jobs, conf=conf(action, arguments))


def test_plain_preemption_protects_every_gang() -> None:
    assert cluster("preempt").run().evicted == set()


def test_one_whole_gang_is_evicted_youngest_first() -> None:
    outcome = cluster().run()
    assert outcome.evicted == {"young-0", "young-1"}
    assert outcome.nominated == {"high-0": "b", "high-1": "b"}


@pytest.mark.parametrize("said", ["false", '"false"'])
def test_evicting_whole_gangs_can_be_disabled(said: str) -> None:
    assert cluster(arguments=f"allowWholeBundle: {said}").run().evicted == set()


def test_surplus_goes_before_a_whole_gang() -> None:
    elastic = job("elastic", pods=3, min_member=1, what=CARD, on=["a"] * 3, priority=1)
    firm = gang("firm", pods=2, what=CARD, on=["b"] * 2, priority=1, created_s=9.0)
    high = gang("high", pods=2, what=CARD, priority=9)
    nodes = [node("a", cards=3), node("b", cards=2)]
    outcome = Cluster(nodes=nodes, jobs=[elastic, firm, high], conf=conf("gangpreempt")).run()
    assert len(outcome.evicted) == 2
    assert all(name.startswith("elastic") for name in outcome.evicted)


def test_a_gang_that_turns_out_not_to_be_needed_is_spared() -> None:
    """The youngest gang's small node does not help a pod of four cards; only the gang on the right node is evicted."""
    wide = spec(ask=[whole(4)])
    small = gang("small", pods=1, what=CARD, on=["a"], priority=1, created_s=5.0, min_member=1)
    large = gang("large", pods=2, what=spec(ask=[whole(2)]), on=["b", "b"], priority=1)
    high = gang("high", pods=1, what=wide, priority=9)
    nodes = [node("a", cards=1), node("b", cards=4)]
    outcome = Cluster(nodes=nodes, jobs=[small, large, high], conf=conf("gangpreempt")).run()
    assert outcome.evicted == {"large-0", "large-1"}


def test_a_job_of_equal_priority_is_left_alone() -> None:
    held = gang("held", pods=2, what=CARD, on=["a", "a"], priority=9)
    high = gang("high", pods=2, what=CARD, priority=9)
    outcome = Cluster(nodes=[node("a", cards=2)], jobs=[held, high], conf=conf("gangpreempt")).run()
    assert outcome.evicted == set()


def test_nothing_is_evicted_if_the_gang_still_would_not_fit() -> None:
    held = gang("held", pods=2, what=CARD, on=["a", "a"], priority=1)
    high = gang("high", pods=3, what=CARD, priority=9)
    outcome = Cluster(nodes=[node("a", cards=2)], jobs=[held, high], conf=conf("gangpreempt")).run()
    assert outcome.evicted == set()


def reclaimed(action: str) -> Outcome:
    """Queue a holds everything in two gangs; b deserves half."""
    jobs = [gang(f"a{at}", pods=2, what=CARD, on=["n", "n"], queue="a", created_s=float(at)) for at in range(2)]
    jobs.append(gang("b", pods=2, what=CARD, queue="b", created_s=9.0))
    queues = [queue("a"), queue("b")]
    return Cluster(nodes=[node("n", cards=4)], jobs=jobs, queues=queues, conf=conf(action)).run()


def test_a_queue_takes_back_a_whole_gang() -> None:
    assert reclaimed("reclaim").evicted == set(), "the plain action protects every gang"
    outcome = reclaimed("gangreclaim")
    assert outcome.evicted == {"a1-0", "a1-1"}
    assert set(outcome.nominated) == {"b-0", "b-1"}


@pytest.mark.parametrize("minimum", [1, 2])
def test_surplus_goes_first_even_without_the_gang_plugins_vote(minimum: int) -> None:
    """Each of two jobs can spare one pod, and the two needed victims come from both."""
    size = minimum + 1
    first = job("first", pods=size, min_member=minimum, what=CARD, on=["a"] * size, priority=1)
    second = job("second", pods=size, min_member=minimum, what=CARD, on=["b"] * size, priority=1)
    high = gang("high", pods=2, what=CARD, priority=9)
    text = conf("gangpreempt").replace("{name: gang}", "{name: gang, enablePreemptable: false}")
    nodes = [node("a", cards=size), node("b", cards=size)]
    outcome = Cluster(nodes=nodes, jobs=[first, second, high], conf=text).run()
    assert sorted(name.partition("-")[0] for name in outcome.evicted) == ["first", "second"]
