"""Inside a queue, a starving job takes room from less important ones, and never more than it needs."""

import msgspec
import pytest

from baton.engine.events import PodChanged, PodRemoved
from baton.engine.objects import AffinityTerm, Budget, CardRules, LabelSelector, PodSpec
from baton.model.ids import CardId, PodKey
from tests.engine.clusters import Cluster, JobLiteral, gang, job, node, pod, queue, running, spec, vgpu, whole

CONF = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
  - name: pdb
- plugins:
  - name: predicates
  - name: nodeorder
"""
CARD = spec(ask=[whole()])


def test_a_more_important_job_evicts_exactly_what_it_needs() -> None:
    low = job("low", pods=4, what=CARD, on=["a"] * 4, priority=1)
    high = gang("high", pods=2, what=CARD, priority=9, created_s=5)
    outcome = Cluster(nodes=[node("a", cards=4)], jobs=[low, high], conf=CONF).run()
    assert len(outcome.evicted) == 2
    assert set(outcome.nominated) == {"high-0", "high-1"}
    assert outcome.placed == {}


def test_equal_priority_evicts_no_pod() -> None:
    low = job("low", pods=1, what=CARD, on=["a"], priority=5)
    high = job("high", pods=1, what=CARD, priority=5)
    assert Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf=CONF).run().evicted == set()


def test_without_the_action_no_pod_is_evicted() -> None:
    low = job("low", pods=1, what=CARD, on=["a"], priority=1)
    high = job("high", pods=1, what=CARD, priority=5)
    assert (
        Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf=CONF.replace(", preempt", "")).run().evicted == set()
    )


def test_another_queue_is_not_touched() -> None:
    low = job("low", pods=1, what=CARD, on=["a"], priority=1, queue="theirs")
    high = job("high", pods=1, what=CARD, priority=5, queue="mine")
    cluster = Cluster(nodes=[node("a", cards=1)], jobs=[low, high], queues=[queue("mine"), queue("theirs")], conf=CONF)
    assert cluster.run().evicted == set()


def test_a_queue_at_its_limit_still_makes_room_inside_itself() -> None:
    """The victims give their room back to the same queue, so an exhausted share does not prevent preemption."""
    full = CONF.replace("  - name: predicates", "  - name: proportion\n  - name: predicates")
    low = job("low", pods=4, what=CARD, on=["a"] * 4, priority=1)
    high = gang("high", pods=2, what=CARD, priority=9, created_s=5)
    outcome = Cluster(nodes=[node("a", cards=4)], jobs=[low, high], conf=full).run()
    assert len(outcome.evicted) == 2
    assert set(outcome.nominated) == {"high-0", "high-1"}


def test_nothing_is_evicted_for_a_gang_that_still_would_not_fit() -> None:
    low = job("low", pods=2, what=CARD, on=["a", "a"], priority=1)
    high = gang("high", pods=3, what=CARD, priority=9)
    outcome = Cluster(nodes=[node("a", cards=2)], jobs=[low, high], conf=CONF).run()
    assert outcome.evicted == set()
    assert outcome.nominated == {}


def test_a_gang_uses_free_nodes_before_it_evicts() -> None:
    low = job("low", pods=2, what=CARD, on=["a", "a"], priority=1)
    high = gang("high", pods=3, what=CARD, priority=9)
    outcome = Cluster(nodes=[node("a", cards=2), node("b", cards=2)], jobs=[low, high], conf=CONF).run()
    assert len(outcome.evicted) == 1


def test_victims_of_a_gang_are_only_those_above_its_minimum() -> None:
    low = job("low", pods=3, min_member=2, what=CARD, on=["a"] * 3, priority=1)
    high = gang("high", pods=2, what=CARD, priority=9)
    assert Cluster(nodes=[node("a", cards=3)], jobs=[low, high], conf=CONF).run().evicted == set()
    single = job("one", pods=1, what=CARD, priority=9)
    assert len(Cluster(nodes=[node("a", cards=3)], jobs=[low, single], conf=CONF).run().evicted) == 1


def test_pods_that_are_not_preemptable_and_system_pods_stay() -> None:
    for option in ({"preemptable": False}, {"critical": True}):
        low = job("low", pods=1, what=CARD, on=["a"], priority=1, pod_options=option)
        high = job("high", pods=1, what=CARD, priority=5)
        assert Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf=CONF).run().evicted == set()


def test_preemption_policy_never_evicts_no_pod() -> None:
    low = job("low", pods=1, what=CARD, on=["a"], priority=1)
    high = job("high", pods=1, what=CARD, priority=5, pod_options={"can_preempt": False})
    assert Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf=CONF).run().evicted == set()


def test_a_vgpu_pod_preempts_a_vgpu_pod() -> None:
    low = job("low", pods=2, what=spec(ask=[vgpu(memory_mib=8000)]), on=["a", "a"], priority=1)
    high = job("high", pods=1, what=spec(ask=[vgpu(memory_mib=6000)]), priority=5)
    outcome = Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf=CONF).run()
    assert len(outcome.evicted) == 1
    assert outcome.nominated == {"high-0": "a"}


@pytest.mark.parametrize(
    "hopeless",
    [
        spec(ask=[vgpu(memory_mib=500)], card_rules=CardRules(models=("h100",))),
        spec(ask=[vgpu(memory_mib=500)], card_rules=CardRules(ids=(CardId("elsewhere/0"),))),
        spec(ask=[vgpu(memory_mib=500)], card_rules=CardRules(min_compute_capability=99)),
        spec(ask=[vgpu(memory_mib=1_000_000)]),
        spec(ask=[vgpu(2, memory_mib=500)]),
    ],
    ids=["model", "card", "capability", "memory", "number"],
)
def test_no_pod_is_evicted_from_cards_that_would_not_fit_when_empty(hopeless: PodSpec) -> None:
    low = job("low", pods=2, what=spec(ask=[vgpu(memory_mib=8000)]), on=["a", "a"], priority=1)
    high = job("high", pods=1, what=hopeless, priority=5)
    outcome = Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf=CONF).run()
    assert (outcome.evicted, outcome.nominated, outcome.placed) == (set(), {}, {})


def test_the_promised_place_is_taken_when_the_victim_is_gone() -> None:
    low = job("low", pods=1, what=CARD, on=["a"], priority=1)
    high = job("high", pods=1, what=CARD, priority=5)
    cluster = Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf=CONF)
    assert cluster.run().evicted == {"low-0"}
    assert cluster.run(1.0).evicted == set(), "the same victim is not evicted twice"
    cluster.apply(PodRemoved(PodKey("team/low-0")))
    assert cluster.run(2.0).placed == {"high-0": "a"}


def test_a_victim_whose_anti_affinity_blocks_the_pod_is_evicted() -> None:
    apart = AffinityTerm(selector=LabelSelector((("app", "high"),)), topology_key="kubernetes.io/hostname")
    low = job("low", pods=1, what=spec(anti_affinity=(apart,)), on=["a"], priority=1)
    high = job("high", pods=1, what=spec(), priority=5, labels={"app": "high"})
    outcome = Cluster(nodes=[node("a")], jobs=[low, high], conf=CONF).run()
    assert outcome.evicted == {"low-0"}


def test_only_the_victim_that_holds_the_host_port_is_evicted() -> None:
    serving = spec(host_ports=(("", "TCP", 80),))
    low = [job("low", what=serving, on=["a"], priority=2), job("other", on=["a"], priority=1)]
    high = job("high", what=serving, priority=9)
    cluster = Cluster(nodes=[node("a")], jobs=[*low, high], conf=CONF)
    for cycle in range(3):
        outcome = cluster.run(float(cycle))
        assert outcome.evicted == ({"low-0"} if cycle == 0 else set())
        assert outcome.placed == {}, "the port is still in use"
    cluster.apply(PodRemoved(PodKey("team/low-0")))
    assert cluster.run(3.0).placed == {"high-0": "a"}


def test_a_more_important_task_of_the_same_job_takes_the_place_of_its_sibling() -> None:
    from tests.engine.clusters import JobLiteral, pod, running

    base = job("j", pods=0)
    members = (
        running("j-0", "a", CARD, group=base.group.key, priority=1),
        pod("j-1", CARD, group=base.group.key, priority=9),
    )
    outcome = Cluster(nodes=[node("a", cards=1)], jobs=[JobLiteral(base.group, members)], conf=CONF).run()
    assert outcome.evicted == {"j-0"}


def test_a_task_stays_within_the_limit_of_its_queue_when_it_replaces_a_sibling() -> None:
    """A free node does not help: the task waits for the limit of the queue, so a sibling must be evicted for it."""
    limited = CONF.replace("  - name: predicates", "  - name: capacity\n  - name: predicates")
    siblings = job("j", pods=2, on=["a"], pod_options={"priority": 1})
    important = msgspec.structs.replace(siblings.pods[1], priority=9)
    cluster = Cluster(
        nodes=[node("a")],
        jobs=[JobLiteral(siblings.group, (siblings.pods[0], important))],
        queues=[queue("default", capability={"cpu": 1000})],
        conf=limited,
    )
    outcome = cluster.run()
    assert outcome.placed == {}
    assert outcome.evicted == {"j-0"}


def test_the_cheapest_node_is_chosen() -> None:
    two = job("two", pods=2, what=spec(cpu=4), on=["a", "a"], priority=1)
    one = job("one", pods=1, what=spec(cpu=8), on=["b"], priority=1)
    high = job("high", pods=1, what=spec(cpu=8), priority=5)
    outcome = Cluster(nodes=[node("a", cpu=8), node("b", cpu=8)], jobs=[two, one, high], conf=CONF).run()
    assert outcome.evicted == {"one-0"}


@pytest.mark.parametrize("allowed", [0, 1])
def test_disruption_budgets_hold(allowed: int) -> None:
    low = job("low", pods=1, what=CARD, on=["a"], priority=1, labels={"app": "web"})
    high = job("high", pods=1, what=CARD, priority=5)
    budget = Budget(namespace="team", name="b", selector=LabelSelector((("app", "web"),)), disruptions_allowed=allowed)
    outcome = Cluster(nodes=[node("a", cards=1)], jobs=[low, high], budgets=[budget], conf=CONF).run()
    assert len(outcome.evicted) == allowed


def test_a_pod_covered_by_several_budgets_is_not_evicted() -> None:
    """The API server never evicts such a pod, whatever the budgets allow; another pod can make room."""
    covered = job("covered", what=CARD, on=["a"], priority=1, labels={"app": "web"})
    bare = job("bare", what=CARD, on=["a"], priority=2)
    high = job("high", what=CARD, priority=9, created_s=5)
    budgets = [
        Budget(namespace="team", name=name, selector=LabelSelector((("app", "web"),)), disruptions_allowed=1)
        for name in ("one", "two")
    ]
    cluster = Cluster(nodes=[node("a", cards=2)], jobs=[covered, bare, high], budgets=budgets, conf=CONF)
    assert cluster.run().evicted == {"bare-0"}


def test_a_gang_that_waits_for_a_victim_binds_none_of_its_members_yet() -> None:
    low = job("low", pods=1, what=CARD, on=["a"], priority=1)
    high = gang("high", pods=2, what=CARD, priority=9)
    outcome = Cluster(nodes=[node("a", cards=2)], jobs=[low, high], conf=CONF).run()
    assert outcome.placed == {}
    assert outcome.evicted == {"low-0"}
    assert set(outcome.nominated) == {"high-0", "high-1"}


def test_a_gang_keeps_its_minimum_of_every_role() -> None:
    """A launcher and three workers, of which two are enough: only a worker is surplus, however young the launcher."""
    workers = job(
        "gang",
        pods=3,
        min_member=3,
        what=CARD,
        on=["a"] * 3,
        priority=1,
        pod_options={"role": "worker"},
        min_role_members=(("launcher", 1), ("worker", 2)),
    )
    launcher = running("gang-l", "a", CARD, group=workers.group.key, role="launcher", priority=1, created_s=9.0)
    one = job("one", what=CARD, priority=9, created_s=10.0)
    cluster = Cluster(nodes=[node("a", cards=4)], jobs=[workers, one], pods=[launcher], conf=CONF)
    (victim,) = cluster.run().evicted
    assert victim != "gang-l"
    two = gang("two", pods=2, what=CARD, priority=9, created_s=10.0)
    cluster = Cluster(nodes=[node("a", cards=4)], jobs=[workers, two], pods=[launcher], conf=CONF)
    assert cluster.run().evicted == set()


def test_a_whole_gang_uses_the_node_that_its_anti_affinity_cleared() -> None:
    """The first member evicts all pods of one node; the others find their places there and clear no further nodes."""
    low = job("low", pods=6, what=spec(cpu=1), on=["a"] * 3 + ["b"] * 3, priority=1, labels={"app": "web"})
    apart = AffinityTerm(selector=LabelSelector((("app", "web"),)), topology_key="kubernetes.io/hostname")
    high = gang("high", pods=3, what=spec(cpu=1, anti_affinity=(apart,)), priority=9)
    cluster = Cluster(nodes=[node("a", cpu=3), node("b", cpu=3)], jobs=[low, high], conf=CONF)
    outcome = cluster.run()
    assert len(set(outcome.nominated.values())) == 1
    assert len(outcome.evicted) == 3
    assert outcome.placed == {}
    for number, name in enumerate(sorted(outcome.evicted)):
        waiting = cluster.run()
        assert (waiting.evicted, waiting.placed) == (set(), {})
        heir = pod(f"heir-{number}", low.pods[0].spec, group=low.group.key, labels={"app": "web"}, priority=1)
        cluster.apply(PodRemoved(PodKey(f"team/{name}")), PodChanged(heir))
    assert set(cluster.run().placed) == {"high-0", "high-1", "high-2"}
