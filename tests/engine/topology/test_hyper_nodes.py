"""Jobs in the network: a hard gang is placed in one hyper node of an allowed tier, a soft one as close as possible."""

from typing import Any

import msgspec
import pytest

from baton.engine.events import HyperNodeChanged, HyperNodeRemoved, NodeChanged, PodRemoved
from baton.engine.objects import Closeness, HyperNode, HyperNodeMember, LabelSelector, Parts
from baton.model.ids import PodKey
from tests.engine.clusters import Cluster, JobLiteral, gang, job, node, pod, running, spec


def hyper(name: str, tier: int, *members: str, **more: Any) -> HyperNode:
    """A hyper node with nodes as members in tier 1, and with hyper nodes as members above."""
    listed = tuple(HyperNodeMember(nodes=tier == 1, name=member) for member in members)
    return HyperNode(name=name, tier=tier, members=listed, **more)


TREE = [
    hyper("s0", 1, "n0", "n1"),
    hyper("s1", 1, "n2", "n3"),
    hyper("s2", 1, "n4", "n5"),
    hyper("s3", 1, "n6", "n7"),
    hyper("s4", 2, "s0", "s1"),
    hyper("s5", 2, "s2", "s3"),
    hyper("s6", 3, "s4", "s5"),
]
HARD1, HARD2, SOFT = Closeness(highest_tier=1), Closeness(highest_tier=2), Closeness(hard=False)
CONF = """
actions: "allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}, {name: binpack}, {name: network-topology-aware}]
"""


def used(**cpu: Any) -> list[Any]:
    """Pods of other jobs, by node."""
    return [running(f"other-{on}", on, spec(cpu=amount)) for on, amount in cpu.items()]


def tree(jobs: list[JobLiteral], hyper_nodes: list[HyperNode] = TREE, conf: str = CONF, **cpu: Any) -> Cluster:
    """Eight nodes with 8 CPUs in a tree of three tiers; `cpu` is used by other jobs."""
    nodes = [node(f"n{number}", cpu=8) for number in range(8)]
    cluster = Cluster(nodes=nodes, jobs=jobs, pods=used(**cpu), conf=conf)
    cluster.apply(*(HyperNodeChanged(item) for item in hyper_nodes))
    return cluster


def close(name: str = "train", *, pods: int = 2, cpu: int = 2, **more: Any) -> JobLiteral:
    return gang(name, pods=pods, what=spec(cpu=cpu), **{"closeness": HARD1, **more})


def test_the_fullest_hyper_node_that_fits_is_taken() -> None:
    assert set(tree([close(cpu=5)], n2=1, n3=1).run().placed.values()) == {"n2", "n3"}


def test_a_hyper_node_without_room_for_the_whole_gang_is_skipped() -> None:
    assert set(tree([close(cpu=4)], n2=5, n3=1, n4=1).run().placed.values()) <= {"n4", "n5"}


def test_without_room_in_any_hyper_node_the_verdict_tells_how_close_the_best_is() -> None:
    cluster = tree([close(pods=3, cpu=8)])
    outcome = cluster.run()
    assert outcome.placed == {}
    told = outcome.verdicts["train"].paragraph()
    assert (
        "none of 4 hyper nodes of tier 1 or lower has room for 3 more pods at once; the nearest, s0, has room for 2"
        in told
    )
    assert cluster.engine.explain(PodKey("team/train-0"), 0.0).detail in told


def test_a_higher_tier_is_used_only_when_it_is_allowed_and_no_lower_one_fits() -> None:
    full: dict[str, Any] = {"n0": 8, "n2": 8, "n4": 8, "n6": 8, "n5": 1}
    assert tree([close(cpu=5)], **full).run().placed == {}
    assert set(tree([close(cpu=5, closeness=HARD2)], **full).run().placed.values()) == {"n5", "n7"}
    assert set(tree([close(cpu=2, closeness=HARD2)], **full).run().placed.values()) == {"n5"}


def test_a_gang_that_fits_on_one_node_goes_there() -> None:
    """n4 and n5 are in one rack and n4 is fuller, but has room for one of the two."""
    assert set(tree([close(closeness=HARD2)], n0=4, n2=4, n4=5, n6=4, n5=1).run().placed.values()) == {"n5"}
    after_one = tree([close(pods=2, closeness=HARD2, on=["n5"])], n4=4).run()
    assert after_one.placed == {"train-1": "n5"}


def test_a_tier_can_be_given_by_its_name() -> None:
    named = [msgspec.structs.replace(item, tier_name="rack") if item.tier == 1 else item for item in TREE]
    rack = Closeness(highest_tier_name="rack")
    assert tree([close(pods=3, cpu=8, closeness=rack)], hyper_nodes=named).run().placed == {}
    assert len(tree([close(pods=2, cpu=8, closeness=rack)], hyper_nodes=named).run().placed) == 2
    lost = tree([close(closeness=Closeness(highest_tier_name="row"))], hyper_nodes=named).run()
    assert "no hyper node has a tier named row" in lost.verdicts["train"].paragraph()


def test_without_hyper_nodes_a_hard_gang_waits_with_a_reason() -> None:
    outcome = tree([close()], hyper_nodes=[]).run()
    assert outcome.placed == {}
    assert "the cluster has no hyper node of tier 1 or lower" in outcome.verdicts["train"].paragraph()


def test_a_recreated_pod_goes_where_its_gang_is() -> None:
    """n0 is fuller now, but the pod stays with its gang."""
    cluster = tree([close(on=["n6"])], n0=5, n1=5)
    assert cluster.run().placed["train-1"] in ("n6", "n7")
    crowded = tree([close(on=["n6"])], n6=6, n7=8)
    assert crowded.run().placed == {}


def test_pods_that_run_too_far_apart_are_the_reason() -> None:
    outcome = tree([close(pods=3, on=["n0", "n7"])]).run()
    assert "its running pods are not all in one hyper node of tier 1 or lower" in outcome.verdicts["train"].paragraph()


def test_an_elastic_gang_prefers_room_for_all_of_it() -> None:
    """s1 is fuller and has room for the minimum; s2 has room for all pods."""
    elastic = close(pods=4, min_member=2, cpu=4)
    outcome = tree([elastic], n0=8, n1=8, n2=4, n3=4, n6=8, n7=8).run()
    assert len(outcome.placed) == 4
    assert set(outcome.placed.values()) == {"n4", "n5"}


def test_soft_takes_the_lowest_tier_that_fits_and_never_refuses() -> None:
    scarce: dict[str, Any] = {"n0": 6, "n2": 6, "n4": 6, "n6": 6, "n1": 4, "n3": 4, "n5": 5, "n7": 4}
    assert set(tree([close(cpu=3, closeness=SOFT)], **scarce).run().placed.values()) == {"n5", "n7"}
    assert len(tree([close(pods=8, cpu=5, closeness=SOFT)]).run().placed) == 8
    assert len(tree([close(closeness=SOFT)], hyper_nodes=[]).run().placed) == 2


RULE = Parts(name="p", keys=("part",), size=2, minimum=2, closeness=HARD1)


def parted(parts: int = 2, *, rule: Parts = RULE, cpu: int = 3, **more: Any) -> JobLiteral:
    literal = close(pods=parts * 2, min_member=rule.minimum * 2, cpu=cpu, **{"parts": (rule,), **more})
    pods = tuple(
        msgspec.structs.replace(item, labels=(("part", str(at // 2)),)) for at, item in enumerate(literal.pods)
    )
    return JobLiteral(literal.group, pods)


def by_part(placed: dict[str, str]) -> list[set[str]]:
    found: dict[int, set[str]] = {}
    for name, on in placed.items():
        found.setdefault(int(name.rpartition("-")[2]) // 2, set()).add(on)
    return [found[part] for part in sorted(found)]


HALF: dict[str, Any] = {"n0": 4, "n2": 4, "n4": 6, "n5": 6, "n6": 6, "n7": 6}


@pytest.mark.parametrize("closeness", [HARD2, SOFT, None])
def test_each_part_is_in_one_hyper_node_within_that_of_the_job(closeness: Closeness | None) -> None:
    """s0 and s1 have room for three pods each: two parts of two pods go to one hyper node each."""
    parts = by_part(tree([parted(closeness=closeness)], **HALF).run().placed)
    assert len(parts) == 2
    assert parts[0] <= {"n0", "n1"}
    assert parts[1] <= {"n2", "n3"}


def test_parts_that_do_not_fit_into_the_hyper_node_of_the_job_start_nothing() -> None:
    assert tree([parted(closeness=HARD1)], **HALF).run().placed == {}


def test_a_part_without_room_waits_and_the_others_start() -> None:
    outcome = tree([parted(parts=4, closeness=HARD1)], n6=1, n7=1).run()
    assert set(outcome.placed.values()) == {"n6", "n7"}
    assert len(outcome.placed) == 4


def test_a_soft_part_is_spread_if_necessary() -> None:
    soft = msgspec.structs.replace(RULE, closeness=SOFT)
    full: dict[str, Any] = {"n0": 3, "n1": 3, "n2": 3, "n3": 5, "n4": 2, "n6": 2}
    placed = tree([parted(rule=soft, cpu=4, closeness=HARD2)], **full).run().placed
    assert len(placed) == 4
    assert set(placed.values()) <= {"n4", "n5", "n6", "n7"}


EVICT = """
actions: "allocate, {action}"
tiers:
- plugins: [{{name: priority}}, {{name: gang}}]
- plugins: [{{name: predicates}}, {{name: proportion}}, {{name: network-topology-aware}}]
"""


def test_preemption_makes_room_in_one_hyper_node_only() -> None:
    """One victim in s3 is enough; every other hyper node needs two."""
    low = [job(f"low-{at}", what=spec(cpu=8), on=[f"n{at}"], priority=1) for at in range(7)]
    outcome = tree([*low, close(cpu=8, priority=9)], conf=EVICT.format(action="preempt")).run()
    assert outcome.evicted == {"low-6-0"}
    assert set(outcome.nominated.values()) == {"n6", "n7"}


@pytest.mark.parametrize("action", ["preempt", "gangpreempt"])
def test_no_pod_is_evicted_for_a_gang_that_no_hyper_node_can_hold(action: str) -> None:
    low = [job(f"low-{at}", what=spec(cpu=8), on=[f"n{at}"], priority=1) for at in range(8)]
    outcome = tree([*low, close(pods=3, cpu=8, priority=9)], conf=EVICT.format(action=action)).run()
    assert outcome.evicted == set()


def test_whole_gangs_are_evicted_in_one_hyper_node() -> None:
    low = [
        gang(f"low-{at}", pods=2, what=spec(cpu=8), on=[f"n{2 * at}", f"n{2 * at + 1}"], priority=1) for at in range(4)
    ]
    outcome = tree([*low, close(cpu=8, priority=9)], conf=EVICT.format(action="gangpreempt")).run()
    assert len(outcome.evicted) == 2
    assert len({name.rpartition("-")[0] for name in outcome.evicted}) == 1


def test_pods_without_a_network_rule_fill_hyper_nodes_that_are_in_use() -> None:
    conf = CONF.replace("{name: nodeorder}, {name: binpack}, ", "")
    outcome = tree([job("single", what=spec(cpu=1))], conf=conf, n4=2).run()
    assert outcome.placed["single-0"] in ("n4", "n5")
    fresh = tree([job("single", what=spec(cpu=1))], conf=conf, hyper_nodes=TREE[:1] + TREE[2:4], n4=2).run()
    assert fresh.placed["single-0"] in ("n2", "n3"), "nodes outside all hyper nodes come first"


def test_best_effort_pods_of_a_hard_gang_stay_in_its_hyper_node() -> None:
    literal = close(pods=2)
    extra = pod("train-9", spec(cpu=0, memory_gib=0), group=literal.group.key, index=9)
    cluster = tree([JobLiteral(literal.group, (*literal.pods, extra))], n4=1)
    assert set(cluster.run().placed.values()) <= {"n4", "n5"}


def test_members_by_pattern_and_by_labels() -> None:
    members = (HyperNodeMember(pattern="^n[01]$"), HyperNodeMember(selector=LabelSelector((("rack", "a"),))))
    cluster = tree([], hyper_nodes=[HyperNode(name="a", tier=1, members=members)])
    cluster.apply(NodeChanged(node("m0", labels={"rack": "a"})), NodeChanged(node("m1")))
    cluster.run()
    assert cluster.engine.state.forest.counts == {"a": 3}
    cluster.apply(NodeChanged(node("m1", labels={"rack": "a"})), NodeChanged(node("m0")))
    cluster.run()
    rows = cluster.engine.state.forest.tiers[0].domains[0].rows
    assert [cluster.engine.state.table.name(int(row)) for row in rows] == ["m1", "n0", "n1"]


def test_no_pattern_takes_long() -> None:
    """With backtracking, this pattern would take hours."""
    cluster = tree([], hyper_nodes=[HyperNode(name="a", tier=1, members=(HyperNodeMember(pattern="^(a+)+$"),))])
    cluster.apply(NodeChanged(node("a" * 60 + "b")), NodeChanged(node("a" * 60)))
    cluster.run()
    assert cluster.engine.state.forest.counts == {"a": 1}


def test_problems_of_hyper_nodes_are_reported_and_stop_nothing() -> None:
    wrong = [
        hyper("a", 2, "b", "lost"),
        hyper("b", 2, "a"),
        hyper("c", 1, "n0", "gone"),
        hyper("d", 1, "n0"),
        HyperNode(name="e", tier=1, members=(HyperNodeMember(pattern="a("),)),
        hyper("self", 3, "self"),
    ]
    cluster = tree([close(cpu=2)], hyper_nodes=wrong)
    assert set(cluster.run().placed.values()) == {"n0"}
    problems = cluster.engine.state.forest.problems
    assert "lost does not exist" in problems["a"]
    assert "hyper node a is ignored because its tier 2 is not below 2" in problems["b"]
    assert problems["c"] == "node gone does not exist"
    assert problems["d"] == "it shares nodes with c, which has the same tier 1"
    assert "not a regular expression" in problems["e"]
    assert "is not below 3" in problems["self"]


def test_removing_a_hyper_node_removes_its_nodes_from_those_above() -> None:
    cluster = tree([close(pods=4, cpu=8, closeness=HARD2)])
    cluster.apply(HyperNodeRemoved("s0"), HyperNodeRemoved("s2"))
    assert cluster.run().placed == {}
    cluster.apply(HyperNodeChanged(TREE[2]))
    assert set(cluster.run().placed.values()) == {"n4", "n5", "n6", "n7"}


def test_the_room_of_a_gang_that_ends_is_used_again() -> None:
    cluster = tree([close("first", cpu=8), close("second", cpu=8)], n4=8, n5=8, n6=8, n7=8, n0=8)
    placed = cluster.run().placed
    assert set(placed) == {"first-0", "first-1"}
    cluster.apply(*(PodRemoved(PodKey(f"team/{name}")) for name in placed))
    assert set(cluster.run().placed) == {"second-0", "second-1"}


def test_a_blocked_gang_reserves_in_the_hyper_node_that_is_free_for_it_first() -> None:
    """Two nodes would be free at 100 s, but in different hyper nodes; n2 and n3 are free at 500 s."""
    conf = CONF.replace("[{name: priority}", "[{name: easy-backfill}, {name: priority}")
    ends_s = {"n0": 100, "n1": 900, "n2": 500, "n3": 400, "n4": 100, "n5": 900, "n6": 900, "n7": 900}
    busy = [
        job(f"on-{on}", what=spec(cpu=6), on=[on], expected_duration_s=float(end_s), pod_options={"started_s": 0.0})
        for on, end_s in ends_s.items()
    ]
    small = [job(f"small{at}", what=spec(cpu=2), created_s=2.0 + at) for at in range(8)]
    cluster = tree([*busy, close(cpu=8, created_s=1.0), *small], conf=conf)
    assert sorted(cluster.run(10.0).placed.values()) == ["n0", "n1", "n4", "n5", "n6", "n7"]
