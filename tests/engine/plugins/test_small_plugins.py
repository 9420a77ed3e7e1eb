"""Small plugins: load, node groups, task topology, cooldown."""

from collections.abc import Mapping

import msgspec
import pytest

from baton.engine.events import QueueChanged
from baton.engine.objects import Card, CardGrant, CardKind
from baton.engine.presets import configured
from baton.model.ids import CardId, NodeName
from tests.engine.clusters import Cluster, JobLiteral, gang, job, node, pod, queue, running, spec, vgpu, whole


def conf(plugin: str, arguments: str = "", actions: str = "allocate") -> str:
    return f"""
actions: "{actions}"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: {plugin}
    arguments: {{{arguments}}}
  - name: predicates
"""


def test_usage_skips_loaded_nodes_and_prefers_idle_ones() -> None:
    nodes = [node("hot", cpu_used_percent=95.0), node("warm", cpu_used_percent=50.0), node("idle")]
    assert Cluster(nodes=nodes, pods=[pod("p")], conf=conf("usage")).run().placed == {"p": "idle"}
    assert Cluster(nodes=nodes[:1], pods=[pod("p")], conf=conf("usage")).run().placed == {}
    relaxed = conf("usage", "thresholds: {cpu: 99}")
    assert Cluster(nodes=nodes[:1], pods=[pod("p")], conf=relaxed).run().placed == {"p": "hot"}


def card(name: str, **load: float) -> Card:
    return Card(id=CardId(name), memory_mib=16_000, slots=10, **load)  # type: ignore[arg-type]  # fields by name


def test_usage_chooses_the_idle_card_and_refuses_hot_ones() -> None:
    nodes = [node("a", card_list=(card("busy", utilisation_percent=90.0), card("calm", utilisation_percent=10.0)))]
    ask = spec(ask=[vgpu(memory_mib=100)])
    assert Cluster(nodes=nodes, pods=[pod("p", ask)], conf=conf("usage")).run().cards == {"p": ["calm"]}
    hot = [node("a", card_list=(card("x", temperature_c=95.0),))]
    assert Cluster(nodes=hot, pods=[pod("p", ask)], conf=conf("usage")).run().placed == {}


@pytest.mark.parametrize(
    ("measure", "name"),
    [
        ("utilisation_percent", "gpu"),
        ("memory_used_percent", "gpu-memory"),
        ("temperature_c", "gpu-temperature"),
        ("power_percent", "gpu-power"),
    ],
)
def test_every_measure_of_a_card_has_a_threshold_and_a_weight(measure: str, name: str) -> None:
    nodes = [node("a", card_list=(card("more", **{measure: 60.0}), card("less", **{measure: 40.0})))]
    pods = [pod("p", spec(ask=[vgpu(memory_mib=100)]))]
    weights = {"gpu": 0, "gpu-memory": 0, name: 1}
    weighed = conf("usage", ", ".join(f"{key}.weight: {weight}" for key, weight in weights.items()))
    assert Cluster(nodes=nodes, pods=pods, conf=weighed).run().cards == {"p": ["less"]}
    below = conf("usage", f"{name}.threshold: 30")
    assert Cluster(nodes=nodes, pods=pods, conf=below).run().placed == {}


def test_a_card_above_a_threshold_is_not_chosen_however_idle_it_is() -> None:
    idle_and_hot, busy = card("hot", temperature_c=95.0), card("busy", utilisation_percent=70.0)
    ask = spec(ask=[vgpu(memory_mib=10_000)])
    cluster = Cluster(
        nodes=[node("a", card_list=(idle_and_hot, busy))], pods=[pod("p0", ask), pod("p1", ask)], conf=conf("usage")
    )
    outcome = cluster.run()
    assert outcome.cards == {"p0": ["busy"]}
    assert "below the load thresholds" in outcome.verdicts["p1"].paragraph()


@pytest.mark.parametrize("plugins", [("fragmentation", "usage"), ("usage", "fragmentation")])
def test_a_hot_card_is_not_chosen_even_if_it_would_leave_the_fewest_fragments(plugins: tuple[str, str]) -> None:
    ask = spec(ask=[vgpu(memory_mib=8_000, cores=50)])
    grant = [CardGrant("main", CardId("begun"), CardKind.VGPU, 8_000, 500)]
    text = 'actions: "allocate"\ntiers:\n- plugins:\n' + "".join(
        f"  - name: {name}\n" for name in ("predicates", "deviceshare", *plugins)
    )

    def chosen(temperature_c: float) -> list[str]:
        cards = (card("begun", temperature_c=temperature_c), card("empty"))
        begun = running("r", "a", ask, cards=grant)
        cluster = Cluster(nodes=[node("a", card_list=cards)], pods=[begun, pod("p", ask)], conf=text)
        return cluster.run().cards["p"]

    assert chosen(40.0) == ["begun"]
    assert chosen(95.0) == ["empty"]


def test_node_groups_belong_to_queues() -> None:
    label = "volcano.sh/nodegroup-name"
    nodes = [node("a"), node("g1", labels={label: "one"}), node("g2", labels={label: "two"})]
    queues = [
        queue("free"),
        queue("one", node_groups=("one",)),
        queue("not", node_groups=("one", "two"), excluded_node_groups=("one",)),
    ]
    jobs = [job(name, queue=name) for name in ("free", "one", "not")]
    outcome = Cluster(nodes=nodes, jobs=jobs, queues=queues, conf=conf("nodegroup")).run()
    assert outcome.placed == {"free-0": "a", "one-0": "g1", "not-0": "g2"}


def test_a_queue_that_gets_a_node_group_uses_it_at_once() -> None:
    nodes = [node("g", labels={"volcano.sh/nodegroup-name": "one"})]
    cluster = Cluster(nodes=nodes, jobs=[job("j")], queues=[queue("default")], conf=conf("nodegroup"))
    assert cluster.run().placed == {}
    cluster.apply(QueueChanged(queue("default", node_groups=("one",))))
    assert cluster.run(1.0).placed == {"j-0": "g"}


def roles(name: str, counts: Mapping[str, int], **group: object) -> JobLiteral:
    base = job(name, pods=0, min_member=1)
    members = [
        pod(f"{name}-{role}-{at}", spec(cpu=4), group=base.group.key, role=role, index=at)
        for role, count in counts.items()
        for at in range(count)
    ]
    return JobLiteral(msgspec.structs.replace(base.group, **group), tuple(members))


def test_task_topology_applies_affinity_and_anti_affinity_between_roles() -> None:
    tensor = roles(
        "t", {"ps": 2, "worker": 2}, topology_anti_affinity=(("ps",),), topology_affinity=(("ps", "worker"),)
    )
    outcome = Cluster(nodes=[node("a", cpu=8), node("b", cpu=8)], jobs=[tensor], conf=conf("task-topology")).run()
    assert outcome.placed["t-ps-0"] != outcome.placed["t-ps-1"]
    assert len(outcome.placed) == 4


def test_task_topology_distinguishes_roles_with_equal_requests() -> None:
    """The last pod belongs next to the first one, although the second did not."""
    wishes = {"topology_affinity": (("x", "z"),), "topology_anti_affinity": (("x", "y"),)}
    trio = roles("t", {"x": 1, "y": 1, "z": 1}, topology_order=("x", "y", "z"), **wishes)
    nodes = [node(name, cpu=8) for name in "abc"]
    outcome = Cluster(nodes=nodes, jobs=[trio], conf=conf("task-topology")).run()
    assert outcome.placed["t-z-0"] == outcome.placed["t-x-0"]


def test_cooldown_protects_a_pod_that_has_just_started() -> None:
    low = job(
        "low", what=spec(ask=[whole()]), on=["a"], priority=1, pod_options={"started_s": 100.0, "cooldown_s": 60.0}
    )
    high = job("high", what=spec(ask=[whole()]), priority=9)
    cluster = Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf=conf("cdp", actions="allocate, preempt"))
    assert cluster.run(150.0).evicted == set()
    assert cluster.run(160.0).evicted == {"low-0"}


def test_the_extender_plugin_is_skipped_with_one_sentence() -> None:
    warning, *others = configured(conf("extender")).warnings
    assert "tiers[0].plugins[2].name 'extender' is not supported and skipped: Baton calls no HTTP extenders" in warning
    assert not others
    assert Cluster(nodes=[node("a")], pods=[pod("p")], conf=conf("extender")).run().placed == {"p": "a"}


def test_roles_have_their_own_minimum() -> None:
    job_literal = roles("r", {"ps": 1, "worker": 3}, min_member=3, min_role_members=(("ps", 1), ("worker", 2)))
    tight = Cluster(nodes=[node("a", cpu=8)], jobs=[job_literal]).run()
    assert tight.placed == {}
    assert len(Cluster(nodes=[node("a", cpu=12)], jobs=[job_literal]).run().placed) == 3
    lacking = roles("r", {"worker": 3}, min_member=3, min_role_members=(("ps", 1), ("worker", 2)))
    assert "lacks pods by role" in Cluster(nodes=[node("a")], jobs=[lacking]).run().verdicts["r"].detail


def test_best_effort_pods_are_placed_by_backfill_and_count_for_their_gang() -> None:
    empty = spec(cpu=0, memory_gib=0)
    assert set(Cluster(nodes=[node("a")], jobs=[gang("b", pods=2, what=empty)]).run().placed) == {"b-0", "b-1"}


def test_pods_of_a_failed_node_get_their_cards_back_when_it_returns() -> None:
    from baton.engine.events import NodeChanged, NodeRemoved
    from tests.engine.clusters import running

    home = node("a", cards=1)
    cluster = Cluster(nodes=[home], pods=[running("r", "a", spec(ask=[whole()])), pod("p", spec(ask=[whole()]))])
    cluster.apply(NodeRemoved(NodeName("a")))
    assert cluster.run().placed == {}
    cluster.apply(NodeChanged(home))
    assert cluster.run(1.0).placed == {}, "the pod is still bound to the node, so its card is taken"
