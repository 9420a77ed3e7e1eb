"""How many volumes a node attaches, and claims that only one pod may use."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from baton.engine.events import BindFailed, GroupChanged, NodeChanged, NodeRemoved, PodChanged, PodRemoved
from baton.engine.objects import Node, Pod, PodSpec
from baton.engine.state.jobs import Status
from baton.model.ids import NodeName, PodKey
from baton.model.names import PodPhase
from tests.engine.clusters import Cluster, gang, job, node, pod, queue, running, spec

EBS, NFS = "ebs.csi.aws.com", "nfs.csi.k8s.io"
PREEMPT = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""
NOT_COUNTED = """
actions: "allocate"
tiers:
- plugins: [{name: predicates, arguments: {predicate.NodeVolumeLimitsEnable: false}}]
"""
DATA = "team/data"
SOLE = spec(sole_claims=(DATA,))


def limited(name: str, limit: int, **more: Any) -> Node:
    return node(name, volume_limits=((EBS, limit),), **more)


def using(*volumes: str, driver: str = EBS, **more: Any) -> PodSpec:
    return spec(attachments=tuple((driver, volume) for volume in volumes), **more)


def test_a_node_takes_no_more_volumes_than_it_can_attach() -> None:
    pods = [pod(f"p{at}", using(f"v{at}")) for at in range(4)]
    outcome = Cluster(nodes=[limited("a", 2), limited("b", 1)], pods=pods).run()
    assert sorted(outcome.placed.values()) == ["a", "a", "b"]
    (verdict,) = outcome.verdicts.values()
    assert "Of 2 nodes: 2 had no room for another volume of ebs.csi.aws.com (limits 1 to 2)." in verdict.paragraph()


def test_the_reason_names_the_driver_and_its_limit() -> None:
    pods = [running("r", "a", using("v")), pod("p", using("w"))]
    outcome = Cluster(nodes=[limited("a", 1), node("b", cpu=0)], pods=pods).run()
    assert [(item.reason, item.nodes) for item in outcome.verdicts["p"].reasons] == [
        ("had no room for another volume of ebs.csi.aws.com (limit 1)", 1),
        ("insufficient cpu", 1),
    ]


def test_a_volume_that_several_pods_of_a_node_use_counts_once() -> None:
    shared = [pod(f"p{at}", using("shared")) for at in range(3)]
    cluster = Cluster(nodes=[limited("a", 1)], pods=shared)
    assert set(cluster.run().placed) == {"p0", "p1", "p2"}
    cluster.apply(PodRemoved(PodKey("team/p0")), PodRemoved(PodKey("team/p1")), PodChanged(pod("q", using("own"))))
    assert cluster.run(1.0).placed == {}, "one user is left"
    cluster.apply(PodRemoved(PodKey("team/p2")))
    assert cluster.run(2.0).placed == {"q": "a"}


def test_a_pod_with_several_volumes_needs_room_for_those_not_yet_attached() -> None:
    held = [running("r", "a", using("v", "w")), running("s", "b", using("x"))]
    nodes = [limited("a", 3), limited("b", 2)]
    assert Cluster(nodes=nodes, pods=[*held, pod("p", using("v", "w", "y"))]).run().placed == {"p": "a"}
    assert Cluster(nodes=nodes, pods=[*held, pod("p", using("x", "y", "z"))]).run().placed == {}


def test_a_node_above_its_limit_still_takes_pods_whose_volumes_are_attached() -> None:
    held = [running(f"r{at}", "a", using(f"v{at}")) for at in range(3)]
    outcome = Cluster(nodes=[limited("a", 2)], pods=[*held, pod("p", using("v1")), pod("q", using("w"))]).run()
    assert outcome.placed == {"p": "a"}


def test_drivers_are_counted_separately_and_only_if_they_have_a_limit() -> None:
    nodes = [limited("a", 1)]
    pods = [pod("e", using("v")), *(pod(f"n{at}", using(f"v{at}", driver=NFS)) for at in range(3))]
    assert set(Cluster(nodes=nodes, pods=pods).run().placed) == {"e", "n0", "n1", "n2"}
    many = [pod(f"p{at}", using(f"v{at}")) for at in range(5)]
    assert len(Cluster(nodes=[node("b")], pods=many).run().placed) == 5, "no node says how much it can attach"
    assert set(Cluster(nodes=[limited("a", 0), node("b")], pods=many).run().placed.values()) == {"b"}


def test_counting_can_be_disabled() -> None:
    pods = [pod(f"p{at}", using(f"v{at}")) for at in range(3)]
    assert len(Cluster(nodes=[limited("a", 1)], pods=pods, conf=NOT_COUNTED).run().placed) == 3


def test_a_gang_does_not_overrun_the_limit_in_one_plan() -> None:
    pods = [pod(f"p{at}", using(f"v{at}")) for at in range(4)]
    whole = gang("g", pods=4)
    members = tuple(replace(item, spec=of.spec) for item, of in zip(whole.pods, pods, strict=True))
    few = Cluster(nodes=[limited("a", 1), limited("b", 2)], jobs=[replace(whole, pods=members)]).run()
    assert few.placed == {}
    assert "4 pods at once; 0 run already and 3 more could start" in few.verdicts["g"].paragraph()
    enough = Cluster(nodes=[limited("a", 2), limited("b", 2)], jobs=[replace(whole, pods=members)]).run()
    assert sorted(enough.placed.values()) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("ended", [{"phase": PodPhase.SUCCEEDED}, {"phase": PodPhase.FAILED}])
def test_volumes_of_finished_pods_do_not_count_and_those_of_foreign_pods_do(ended: dict[str, Any]) -> None:
    other = running("other", "a", using("v"), ours=False)
    cluster = Cluster(nodes=[limited("a", 1)], pods=[other, pod("p", using("w"))])
    assert cluster.run().placed == {}
    cluster.apply(PodChanged(replace(other, **ended)))
    assert cluster.run(1.0).placed == {"p": "a"}


def test_limits_may_appear_later_change_and_disappear() -> None:
    pods = [running("r", "a", using("v")), pod("p", using("w"))]
    cluster = Cluster(nodes=[limited("a", 1)], pods=pods)
    assert cluster.run().placed == {}
    cluster.apply(NodeChanged(limited("a", 2)))
    assert cluster.run(1.0).placed == {"p": "a"}
    cluster.apply(NodeChanged(limited("a", 1)), PodChanged(pod("q", using("x"))))
    assert cluster.run(2.0).placed == {}
    cluster.apply(NodeChanged(node("a")))
    assert cluster.run(3.0).placed == {"q": "a"}


def test_a_volume_of_a_failed_bind_is_free_again() -> None:
    cluster = Cluster(nodes=[limited("a", 1)], pods=[pod("p", using("v"), priority=1), pod("q", using("w"))])
    assert cluster.run().placed == {"p": "a"}
    cluster.apply(BindFailed(PodKey("team/p")), PodRemoved(PodKey("team/p")))
    assert cluster.run(1.0).placed == {"q": "a"}


def test_only_the_victim_that_holds_the_attachment_is_evicted() -> None:
    low = [job("low", what=using("v"), on=["a"], priority=2), job("other", on=["a"], priority=1)]
    high = job("high", what=using("w"), priority=9)
    cluster = Cluster(nodes=[limited("a", 1)], jobs=[*low, high], conf=PREEMPT)
    for cycle in range(3):
        outcome = cluster.run(float(cycle))
        assert outcome.evicted == ({"low-0"} if cycle == 0 else set())
        assert outcome.placed == {}, "the volume is still attached"
    cluster.apply(PodRemoved(PodKey("team/low-0")))
    assert cluster.run(3.0).placed == {"high-0": "a"}


def test_all_users_of_a_volume_have_to_leave_before_it_does() -> None:
    low = job("low", pods=2, what=using("v"), on=["a", "a"], min_member=0)
    high = job("high", what=using("w"), priority=9)
    outcome = Cluster(nodes=[limited("a", 1)], jobs=[low, high], conf=PREEMPT).run()
    assert outcome.evicted == {"low-0", "low-1"}


def test_no_other_pod_takes_an_attachment_freed_by_an_eviction() -> None:
    """Not even a job of a queue that comes first in order."""
    low = job("low", what=using("v"), on=["a"], priority=2)
    high = job("high", what=using("w"), priority=9)
    queues = [queue("a"), queue("default")]
    cluster = Cluster(nodes=[limited("a", 1)], jobs=[low, high], queues=queues, conf=PREEMPT)
    assert cluster.run().evicted == {"low-0"}
    late = job("late", what=using("x"), queue="a")
    cluster.apply(PodRemoved(PodKey("team/low-0")), GroupChanged(late.group), PodChanged(late.pods[0]))
    assert cluster.run(1.0).placed == {"high-0": "a"}


def test_a_claim_for_one_pod_is_used_by_only_one_pod() -> None:
    pods = [pod("p", SOLE), pod("q", SOLE)]
    cluster = Cluster(nodes=[node("a"), node("b")], pods=pods)
    first = cluster.run()
    assert set(first.placed) == {"p"}
    reason = "2 cannot give the pod the claim team/data, which is for one pod (ReadWriteOncePod) and used by team/p."
    assert reason in first.verdicts["q"].paragraph()
    cluster.apply(PodChanged(running("p", "a", SOLE)))
    assert cluster.run(1.0).placed == {}
    cluster.apply(PodChanged(replace(running("p", "a", SOLE), deleting=True)))
    assert cluster.run(2.0).placed == {}, "it may still write"
    cluster.apply(PodChanged(replace(running("p", "a", SOLE), phase=PodPhase.SUCCEEDED)))
    assert set(cluster.run(3.0).placed) == {"q"}


def test_a_gang_that_shares_a_claim_for_one_pod_does_not_start() -> None:
    assert Cluster(nodes=[node("a")], jobs=[gang("g", pods=2, what=SOLE)]).run().placed == {}


@pytest.mark.parametrize("user", [{"ours": False}, {"phase": PodPhase.UNKNOWN}], ids=["another scheduler's", "lost"])
def test_a_pod_waits_while_any_pod_uses_its_claim(user: dict[str, Any]) -> None:
    other = replace(running("other", "a", SOLE), **user)
    assert Cluster(nodes=[node("a"), node("b")], pods=[other, pod("p", SOLE)]).run().placed == {}


def test_a_pod_on_a_removed_node_may_still_use_its_claim() -> None:
    cluster = Cluster(nodes=[node("a"), node("b")], pods=[running("other", "a", SOLE), pod("p", SOLE)])
    cluster.apply(NodeRemoved(NodeName("a")))
    assert cluster.run().placed == {}
    cluster.apply(PodRemoved(PodKey("team/other")))
    assert cluster.run(1.0).placed == {"p": "b"}


def test_a_pod_that_stopped_using_a_claim_for_one_pod_does_not_block_it() -> None:
    cluster = Cluster(nodes=[node("a")], pods=[running("other", "a", SOLE), pod("p", SOLE)])
    cluster.apply(PodChanged(running("other", "a", spec())))
    assert cluster.run().placed == {"p": "a"}


def test_the_user_of_a_claim_for_one_pod_is_preempted_for_it() -> None:
    low = job("low", what=SOLE, on=["b"], priority=2)
    rest = job("rest", on=["a"], priority=1)
    high = job("high", what=SOLE, priority=9)
    cluster = Cluster(nodes=[node("a"), node("b")], jobs=[low, rest, high], conf=PREEMPT)
    outcome = cluster.run()
    assert (outcome.evicted, outcome.nominated, outcome.placed) == ({"low-0"}, {"high-0": "b"}, {})
    assert cluster.run(1.0).placed == {}, "it is still there"
    cluster.apply(PodRemoved(PodKey("team/low-0")))
    assert set(cluster.run(2.0).placed) == {"high-0"}


def attached(cluster: Cluster) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for task in cluster.engine.state.tasks.values():
        if task.row >= 0:
            name = str(cluster.engine.state.table.name(task.row))
            found.setdefault(name, set()).update(volume for _, volume in task.needs.spec.attachments)
    return found


VOLUMES = st.sets(st.sampled_from("uvwxyz"), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("comes"), VOLUMES, st.integers(0, 3)),
        st.tuples(st.sampled_from(["goes", "fails", "leaves", "ends", "changes"]), st.integers(0, 30), VOLUMES),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, limits=st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_no_node_ever_has_more_distinct_volumes_than_its_limit(
    steps: list[tuple[str, Any, Any]], limits: list[int]
) -> None:
    """Whatever pods come, go, fail to bind, are evicted or change while they wait."""
    nodes = {f"n{at}": limit for at, limit in enumerate(limits)}
    cluster = Cluster(nodes=[limited(name, limit, cpu=8) for name, limit in nodes.items()], conf=PREEMPT)
    pods: dict[str, Pod] = {}
    for at, (what, one, other) in enumerate(steps):
        key = sorted(pods)[one % len(pods)] if what != "comes" and pods else ""
        if what == "comes":
            made = pod(f"p{at:02}", using(*sorted(one)), priority=other)
            pods[made.key] = made
            cluster.apply(PodChanged(made))
        elif key:
            _happen(cluster, pods, key, what, other)
        _carry_out(cluster, pods, float(at))
        for name, volumes in attached(cluster).items():
            assert len(volumes) <= nodes[name]
    _is_as_told(cluster)


def _happen(cluster: Cluster, pods: dict[str, Pod], key: str, what: str, volumes: Iterable[str]) -> None:
    known = pods[key]
    if what == "changes" and cluster.engine.state.tasks[known.key].status is Status.PENDING:
        pods[key] = replace(known, spec=using(*sorted(volumes)))
    elif what in ("leaves", "ends") and known.node is not None:
        pods[key] = replace(known, **({"deleting": True} if what == "leaves" else {"phase": PodPhase.FAILED}))
    elif what == "fails":
        cluster.apply(BindFailed(known.key))
        return
    elif what == "goes":
        del pods[key]
        cluster.apply(PodRemoved(known.key))
        return
    cluster.apply(PodChanged(pods[key]))


def _carry_out(cluster: Cluster, pods: dict[str, Pod], now_s: float) -> None:
    """Every second binding is confirmed; the others stay assumed."""
    plan = cluster.run(now_s).plan
    for binding in plan.bindings[::2]:
        pods[binding.pod] = replace(pods[binding.pod], node=binding.node, phase=PodPhase.RUNNING)
        cluster.apply(PodChanged(pods[binding.pod]))
    for eviction in plan.evictions:
        pods.pop(eviction.pod, None)
        cluster.apply(PodRemoved(eviction.pod))


def _is_as_told(cluster: Cluster) -> None:
    """The counts kept move by move equal a fresh count."""
    state = cluster.engine.state
    counted = {state.table.name(row): planes for (_, row), planes in state.attachments.distinct().items()}
    now = {name: len(volumes) for name, volumes in attached(cluster).items() if volumes}
    assert {name: planes[0] for name, planes in counted.items()} == now
