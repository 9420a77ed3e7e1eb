"""kube-scheduler's filters and scores, as scenarios."""

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


def test_unready_and_unschedulable_nodes_are_left_alone() -> None:
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


def test_a_prefer_no_schedule_taint_is_only_a_wish() -> None:
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


def test_affinity_looks_into_selected_namespaces() -> None:
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
