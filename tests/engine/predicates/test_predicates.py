"""kube-scheduler's filters and scores, as scenarios."""

from typing import Any

import pytest

from baton.engine.objects import (
    AffinityTerm,
    LabelSelector,
    Namespace,
    NodeTerm,
    PreferredAffinityTerm,
    PreferredNodeTerm,
    Requirement,
    SpreadConstraint,
    Taint,
    Toleration,
)
from tests.engine.clusters import Cluster, job, node, pod, running, spec

HOST, ZONE = "kubernetes.io/hostname", "zone"
WEB = LabelSelector((("app", "web"),))


def test_unready_and_unschedulable_nodes_are_skipped() -> None:
    nodes = [node("a", ready=False), node("b", unschedulable=True), node("c")]
    assert Cluster(nodes=nodes, pods=[pod("p")]).run().placed == {"p": "c"}


def test_node_selector() -> None:
    nodes = [node("a"), node("b", labels={"disk": "ssd"})]
    assert Cluster(nodes=nodes, pods=[pod("p", spec(node_selector=(("disk", "ssd"),)))]).run().placed == {"p": "b"}


@pytest.mark.parametrize(
    ("requirement", "wanted"),
    [
        (Requirement("gen", "In", ("2", "3")), {"b", "c"}),
        (Requirement("gen", "NotIn", ("2", "3")), {"a", "d"}),
        (Requirement("gen", "Exists"), {"a", "b", "c"}),
        (Requirement("gen", "DoesNotExist"), {"d"}),
        (Requirement("gen", "Gt", ("1",)), {"b", "c"}),
        (Requirement("gen", "Lt", ("2",)), {"a"}),
    ],
)
def test_node_affinity_operators(requirement: Requirement, wanted: set[str]) -> None:
    nodes = [node("a", labels={"gen": "1"}), node("b", labels={"gen": "2"}), node("c", labels={"gen": "3"}), node("d")]
    what = spec(cpu=40, node_terms=(NodeTerm((requirement,)),))
    outcome = Cluster(nodes=nodes, pods=[pod(f"p{i}", what) for i in range(4)]).run()
    assert set(outcome.placed.values()) == wanted


def test_a_pod_with_device_claims_waits_with_a_reason() -> None:
    """This scheduler does not allocate them; a pod bound without them would never start, but hold its place."""
    outcome = Cluster(nodes=[node("a")], pods=[pod("p", spec(device_claims=True)), pod("q")]).run()
    assert outcome.placed == {"q": "a"}
    assert "cannot give the pod its resourceClaims" in outcome.verdicts["p"].paragraph()


def test_node_affinity_by_name_and_volumes() -> None:
    by_name = spec(node_terms=(NodeTerm(names=("b",)),))
    by_volume = spec(volume_terms=((NodeTerm((Requirement("zone", "In", ("z2",)),)),),))
    nodes = [node("a"), node("b"), node("c", labels={"zone": "z2"})]
    outcome = Cluster(nodes=nodes, pods=[pod("p", by_name), pod("q", by_volume)]).run()
    assert outcome.placed == {"p": "b", "q": "c"}


def test_preferred_node_affinity_decides_between_equals() -> None:
    what = spec(preferred_node_terms=(PreferredNodeTerm(10, NodeTerm((Requirement("disk", "In", ("ssd",)),))),))
    nodes = [node("a"), node("b", labels={"disk": "ssd"})]
    assert Cluster(nodes=nodes, pods=[pod("p", what)]).run().placed == {"p": "b"}


def test_taints_and_tolerations() -> None:
    taint = Taint("team", "red", "NoSchedule")
    bears = spec(tolerations=(Toleration(key="team", value="red"),), node_selector=((HOST, "a"),))
    nodes = [node("a", taints=(taint,)), node("b")]
    outcome = Cluster(nodes=nodes, pods=[pod("p"), pod("q", bears)]).run()
    assert outcome.placed == {"p": "b", "q": "a"}


def test_a_prefer_no_schedule_taint_is_only_a_preference() -> None:
    nodes = [node("a", taints=(Taint("x", "", "PreferNoSchedule"),)), node("b")]
    assert Cluster(nodes=nodes, pods=[pod("p")]).run().placed == {"p": "b"}
    assert Cluster(nodes=nodes[:1], pods=[pod("p")]).run().placed == {"p": "a"}


def test_host_ports_clash_on_one_node_only() -> None:
    web = spec(host_ports=(("", "TCP", 80),))
    outcome = Cluster(nodes=[node("a"), node("b")], jobs=[job("w", pods=3, what=web)]).run()
    assert sorted(outcome.placed.values()) == ["a", "b"]
    udp = spec(host_ports=(("", "UDP", 80),))
    assert len(Cluster(nodes=[node("a")], pods=[pod("t", web), pod("u", udp)]).run().placed) == 2


def test_pod_anti_affinity_spreads_over_hosts() -> None:
    apart = spec(anti_affinity=(AffinityTerm(selector=WEB, topology_key=HOST),))
    outcome = Cluster(nodes=[node("a"), node("b")], jobs=[job("w", pods=3, what=apart, labels={"app": "web"})]).run()
    assert sorted(outcome.placed.values()) == ["a", "b"]


def test_anti_affinity_of_a_running_pod_keeps_others_away() -> None:
    apart = spec(anti_affinity=(AffinityTerm(selector=WEB, topology_key=ZONE),))
    nodes = [node("a", labels={ZONE: "z1"}), node("b", labels={ZONE: "z1"}), node("c", labels={ZONE: "z2"})]
    pods = [running("old", "a", apart), pod("new", labels={"app": "web"})]
    assert Cluster(nodes=nodes, pods=pods).run().placed == {"new": "c"}


def test_pod_affinity_follows_and_the_first_pod_may_go_anywhere() -> None:
    near = spec(cpu=8, affinity=(AffinityTerm(selector=WEB, topology_key=ZONE),))
    nodes = [
        node("a", cpu=8, labels={ZONE: "z1"}),
        node("b", cpu=32, labels={ZONE: "z2"}),
        node("c", cpu=8, labels={ZONE: "z1"}),
    ]
    outcome = Cluster(nodes=nodes, jobs=[job("w", pods=2, what=near, labels={"app": "web"})]).run()
    zones = {"a": "z1", "b": "z2", "c": "z1"}
    assert len(outcome.placed) == 2
    assert len({zones[name] for name in outcome.placed.values()}) == 1
    lonely = spec(affinity=(AffinityTerm(selector=LabelSelector((("app", "db"),)), topology_key=ZONE),))
    assert Cluster(nodes=nodes, pods=[pod("p", lonely)]).run().placed == {}


def test_affinity_applies_to_selected_namespaces() -> None:
    term = AffinityTerm(selector=WEB, topology_key=HOST, namespace_selector=LabelSelector((("env", "prod"),)))
    pods = [running("prod/web", "b", labels={"app": "web"}), running("dev/web", "c", labels={"app": "web"})]
    pods.append(pod("p", spec(affinity=(term,))))
    namespaces = [Namespace(name="prod", labels=(("env", "prod"),)), Namespace(name="dev")]
    outcome = Cluster(nodes=[node("a"), node("b"), node("c")], pods=pods, namespaces=namespaces).run()
    assert outcome.placed == {"p": "b"}


def test_preferred_pod_affinity() -> None:
    near = spec(preferred_affinity=(PreferredAffinityTerm(100, AffinityTerm(selector=WEB, topology_key=HOST)),))
    pods = [running("web", "b", labels={"app": "web"}), pod("p", near)]
    assert Cluster(nodes=[node("a"), node("b"), node("c")], pods=pods).run().placed == {"p": "b"}


def test_topology_spread_keeps_zones_level() -> None:
    level = spec(spread=(SpreadConstraint(selector=WEB, topology_key=ZONE),))
    nodes = [node("a", labels={ZONE: "z1"}), node("b", labels={ZONE: "z1"}), node("c", labels={ZONE: "z2"}, cpu=2)]
    outcome = Cluster(nodes=nodes, jobs=[job("w", pods=6, what=level, labels={"app": "web"})]).run()
    zones = ["z2" if name == "c" else "z1" for name in outcome.placed.values()]
    assert (zones.count("z1"), zones.count("z2")) == (3, 2)


def test_scheduling_gates_keep_a_pod_out() -> None:
    outcome = Cluster(nodes=[node("a")], jobs=[job("g", pods=1, pod_options={"gated": True})]).run()
    assert outcome.placed == {}


def test_image_locality_breaks_a_tie() -> None:
    image = ("big:1", 900 << 20)
    outcome = Cluster(nodes=[node("a"), node("b", images=(image,))], pods=[pod("p", spec(images=("big:1",)))]).run()
    assert outcome.placed == {"p": "b"}


def test_a_cordoned_node_takes_pods_that_tolerate_it() -> None:
    tolerant = spec(tolerations=(Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),))
    patient = spec(tolerations=(Toleration(key="node.kubernetes.io/not-ready", operator="Exists"),))
    cordoned = [node("a", unschedulable=True)]
    assert Cluster(nodes=cordoned, pods=[pod("p", tolerant), pod("q")]).run().placed == {"p": "a"}
    assert Cluster(nodes=cordoned, pods=[pod("p", patient)]).run().placed == {}
    assert Cluster(nodes=[node("a", ready=False)], pods=[pod("p", patient)]).run().placed == {"p": "a"}


def test_a_node_with_a_pod_limit_of_zero_takes_no_pods() -> None:
    assert Cluster(nodes=[node("a", pods=0), node("b", pods=1)], pods=[pod("p")]).run().placed == {"p": "b"}


@pytest.mark.parametrize(("value", "is_number"), [("10", True), ("1_0", False), ("ten", False)])
def test_labels_are_compared_as_kubernetes_reads_numbers(value: str, is_number: bool) -> None:
    what = spec(node_terms=(NodeTerm((Requirement("gen", "Gt", ("1",)),)),))
    placed = Cluster(nodes=[node("a", labels={"gen": value})], pods=[pod("p", what)]).run().placed
    assert placed == ({"p": "a"} if is_number else {})


def test_a_node_can_be_excluded_by_name() -> None:
    what = spec(node_terms=(NodeTerm(not_names=("a",)),))
    assert Cluster(nodes=[node("a"), node("b")], pods=[pod("p", what)]).run().placed == {"p": "b"}


def test_all_affinity_terms_must_match_the_same_pod() -> None:
    """A web pod and a blue pod do not add up to the required blue web pod."""
    blue = LabelSelector((("colour", "blue"),))
    terms = (AffinityTerm(selector=WEB, topology_key=HOST), AffinityTerm(selector=blue, topology_key=ZONE))
    nodes = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "1"})]
    apart = [running("w", "a", labels={"app": "web"}), running("x", "b", labels={"colour": "blue"})]
    seeker = pod("p", spec(affinity=terms))
    assert Cluster(nodes=nodes, pods=[*apart, seeker]).run().placed == {}
    both = running("y", "b", labels={"app": "web", "colour": "blue"})
    assert Cluster(nodes=nodes, pods=[*apart, both, seeker]).run().placed == {"p": "b"}


def _spread(**more: Any) -> SpreadConstraint:
    return SpreadConstraint(selector=WEB, topology_key=ZONE, max_skew=1, **more)


@pytest.mark.parametrize(("honour", "placed"), [(True, {"p": "b"}), (False, {})])
def test_spread_counts_only_nodes_that_the_pod_may_use(honour: bool, placed: dict[str, str]) -> None:
    """Zone 2 is empty, but the pod may not use its only node: the constraint decides whether it counts."""
    nodes = [
        node("a", labels={ZONE: "1"}),
        node("b", labels={ZONE: "1", "disk": "ssd"}),
        node("c", labels={ZONE: "2"}),
    ]
    web = {"app": "web"}
    what = spec(node_selector=(("disk", "ssd"),), spread=(_spread(honour_node_affinity=honour),))
    pods = [running("w", "a", labels=web), running("x", "a", labels=web), pod("p", what, labels=web)]
    assert Cluster(nodes=nodes, pods=pods).run().placed == placed


@pytest.mark.parametrize(("honour", "placed"), [(True, {"p": "a"}), (False, {})])
def test_spread_may_ignore_tainted_nodes(honour: bool, placed: dict[str, str]) -> None:
    nodes = [node("a", labels={ZONE: "1"}), node("c", labels={ZONE: "2"}, taints=(Taint("repair"),))]
    web = {"app": "web"}
    what = spec(spread=(_spread(honour_taints=honour),))
    pods = [running("w", "a", labels=web), pod("p", what, labels=web)]
    assert Cluster(nodes=nodes, pods=pods).run().placed == placed


def test_spread_does_not_count_pods_that_are_leaving() -> None:
    nodes = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "2"}, unschedulable=True)]
    web = {"app": "web"}
    what = spec(spread=(_spread(),))
    for leaving, placed in ((True, {"p": "a"}), (False, {})):
        pods = [running("w", "a", labels=web, deleting=leaving), pod("p", what, labels=web)]
        assert Cluster(nodes=nodes, pods=pods).run().placed == placed


def test_spread_over_two_keys_needs_both_labels() -> None:
    rack = SpreadConstraint(selector=WEB, topology_key="rack")
    nodes = [node("a", labels={ZONE: "1"}), node("b", labels={ZONE: "1", "rack": "r"})]
    what = spec(spread=(_spread(), rack))
    outcome = Cluster(nodes=nodes, pods=[pod("p", what, labels={"app": "web"})]).run()
    assert outcome.placed == {"p": "b"}
