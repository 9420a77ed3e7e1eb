"""Which cards a pod may use, and with which pods; several containers; init containers and sidecars; MIG; health."""

from typing import Any

import pytest

from baton.engine.objects import Card, CardRequest, CardRules, Container, ContainerRole, LabelSelector, PodSpec
from baton.model.ids import CardId
from tests.engine.clusters import Cluster, gang, node, pod, running, spec, vgpu, whole

A100: dict[str, Any] = {"model": "NVIDIA-NVIDIA A100-SXM4-80GB", "memory_mib": 80_000, "compute_capability": 80}
T4: dict[str, Any] = {"model": "NVIDIA-Tesla T4", "memory_mib": 16_000, "compute_capability": 75}
NODES = [node("a", cards=1, **T4), node("b", cards=1, **A100)]


def ruled(**rules: Any) -> PodSpec:
    return spec(ask=[vgpu(memory_mib=100)], card_rules=CardRules(**rules))


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ({"models": ("a100",)}, "b"),
        ({"not_models": ("t4",)}, "b"),
        ({"models": ("t4",), "not_models": ("t4",)}, "a"),
        ({"ids": (CardId("b/0"),)}, "b"),
        ({"not_ids": (CardId("a/0"),)}, "b"),
        ({"min_memory_mib": 40_000}, "b"),
        ({"min_compute_capability": 80}, "b"),
        ({"models": ("h100",)}, None),
    ],
)
def test_selection_of_cards(rules: dict[str, Any], wanted: str | None) -> None:
    placed = Cluster(nodes=NODES, pods=[pod("p", ruled(**rules))]).run().placed
    assert placed == ({} if wanted is None else {"p": wanted})


def test_an_unhealthy_card_is_skipped() -> None:
    cards = (Card(id=CardId("x"), memory_mib=1000, healthy=False), Card(id=CardId("y"), memory_mib=1000))
    outcome = Cluster(
        nodes=[node("a", card_list=cards)], pods=[pod("p", spec(ask=[whole()])), pod("q", spec(ask=[whole()]))]
    ).run()
    assert list(outcome.cards.values()) == [["y"]]


def test_two_containers_share_the_charge_of_one_card() -> None:
    def what(mib: int) -> PodSpec:
        return PodSpec(containers=tuple(Container(name=name, cards=(vgpu(memory_mib=mib),)) for name in ("one", "two")))

    assert Cluster(nodes=[node("a", cards=1, memory_mib=10_000)], pods=[pod("p", what(6000))]).run().placed == {}
    cluster = Cluster(nodes=[node("a", cards=1, memory_mib=10_000)], pods=[pod("p", what(4000)), pod("q", what(1500))])
    assert set(cluster.run().placed) == {"p"}, "2 x 4000 and 2 x 1500 are more than 10000"


def test_containers_that_exclude_each_other_go_to_different_cards() -> None:
    both = PodSpec(
        containers=(Container(name="big", cards=(whole(),)), Container(name="small", cards=(vgpu(memory_mib=100),)))
    )
    outcome = Cluster(nodes=[node("a", cards=2)], pods=[pod("p", both)]).run()
    assert sorted(outcome.cards["p"]) == ["a/0", "a/1"]


def container(role: ContainerRole, *asks: CardRequest, name: str = "", cpu: int = 0) -> Container:
    return Container(name=name or role.value, role=role, cards=asks, requests=(("cpu", cpu * 1000),) if cpu else ())


def test_an_init_container_reuses_the_cards_of_the_app() -> None:
    what = PodSpec(containers=(container(ContainerRole.INIT, whole(2)), container(ContainerRole.APP, whole(2))))
    outcome = Cluster(nodes=[node("a", cards=2)], pods=[pod("p", what)]).run()
    assert sorted(set(outcome.cards["p"])) == ["a/0", "a/1"]


def test_a_sidecar_keeps_its_card_while_an_init_container_runs() -> None:
    def what(init: int) -> PodSpec:
        return PodSpec(
            containers=(
                container(ContainerRole.SIDECAR, whole()),
                container(ContainerRole.INIT, whole(init)),
                container(ContainerRole.APP, whole()),
            )
        )

    assert set(Cluster(nodes=[node("a", cards=2)], pods=[pod("p", what(1))]).run().placed) == {"p"}
    assert Cluster(nodes=[node("a", cards=2)], pods=[pod("p", what(2))]).run().placed == {}


def test_the_effective_request_is_the_largest_phase() -> None:
    what = PodSpec(
        containers=(
            container(ContainerRole.SIDECAR, cpu=1),
            container(ContainerRole.INIT, cpu=6),
            container(ContainerRole.APP, cpu=2, name="x"),
            container(ContainerRole.APP, cpu=3, name="y"),
        )
    )
    assert set(Cluster(nodes=[node("a", cpu=7)], pods=[pod("p", what)]).run().placed) == {"p"}
    assert Cluster(nodes=[node("a", cpu=6)], pods=[pod("p", what)]).run().placed == {}


def test_each_mig_instance_goes_to_one_pod_smallest_first() -> None:
    slices = tuple(
        Card(id=CardId(f"gpu[{size}-{at}]"), memory_mib=size, slots=1, fixed=True, mode="mig", parent=CardId("gpu"))
        for size, number in ((20_000, 1), (10_000, 2))
        for at in range(number)
    )
    pods = [pod(f"p{i}", spec(ask=[vgpu(memory_mib=8000)])) for i in range(4)]
    outcome = Cluster(nodes=[node("a", card_list=slices)], pods=pods).run()
    assert outcome.cards == {"p0": ["gpu[10000-0]"], "p1": ["gpu[10000-1]"], "p2": ["gpu[20000-0]"]}


def test_card_anti_affinity_and_affinity_by_label() -> None:
    noisy = LabelSelector((("noise", "loud"),))
    quiet = spec(ask=[vgpu(memory_mib=100)], card_rules=CardRules(without_pods=(noisy,)))
    beside = spec(ask=[vgpu(memory_mib=100)], card_rules=CardRules(with_pods=(noisy,)))
    loud = running("loud", "a", spec(ask=[vgpu(memory_mib=100)]), labels={"noise": "loud"})
    outcome = Cluster(nodes=[node("a", cards=2)], pods=[loud, pod("q", quiet), pod("b", beside)]).run()
    assert outcome.cards["q"] != outcome.cards["b"]
    assert outcome.cards["b"] == ["a/0"], "the running pod got the first card"


def test_a_group_may_ask_to_be_spread_over_cards() -> None:
    apart = spec(ask=[vgpu(memory_mib=100)], card_rules=CardRules(spread_group=True))
    outcome = Cluster(nodes=[node("a", cards=3)], jobs=[gang("g", pods=3, what=apart)]).run()
    assert len({card for cards in outcome.cards.values() for card in cards}) == 3
    assert Cluster(nodes=[node("a", cards=2)], jobs=[gang("g", pods=3, what=apart)]).run().placed == {}


def test_memory_may_be_overcommitted_by_configuration() -> None:
    pods = [pod(f"p{i}", spec(ask=[vgpu(memory_mib=10_000)])) for i in range(4)]
    assert len(Cluster(nodes=[node("a", cards=1)], pods=pods).run().placed) == 1
    assert len(Cluster(nodes=[node("a", cards=1)], pods=pods, memory_overcommit=2.0).run().placed) == 3


def test_cards_of_one_pod_are_on_one_numa_node_where_possible() -> None:
    sides = (0, 1, 0, 1, 1, 1)
    cards = tuple(Card(id=CardId(f"{at}@{side}"), memory_mib=1000, numa=side) for at, side in enumerate(sides))
    pods = [pod(f"p{at}", spec(ask=[whole(2)])) for at in range(3)]
    outcome = Cluster(nodes=[node("a", card_list=cards)], pods=pods).run()
    assert outcome.cards == {"p0": ["0@0", "2@0"], "p1": ["1@1", "3@1"], "p2": ["4@1", "5@1"]}
    wide = Cluster(nodes=[node("a", card_list=cards)], pods=[pod("w", spec(ask=[whole(6)]))]).run()
    assert len(wide.cards["w"]) == 6, "a request larger than one NUMA node is served from both"


def test_cards_of_one_pod_have_the_fastest_links_between_them() -> None:
    """Four cards, paired by NVLink as 0-3 and 1-2; each card has slots for several pods."""
    pairs = {0: 3, 3: 0, 1: 2, 2: 1}
    cards = tuple(
        Card(id=CardId(str(at)), memory_mib=1000, links=((CardId(str(mate)), 2),)) for at, mate in pairs.items()
    )
    nodes = [node("a", card_list=tuple(sorted(cards, key=lambda card: card.id)))]
    outcome = Cluster(nodes=nodes, pods=[pod(f"p{at}", spec(ask=[whole(2)])) for at in range(2)]).run()
    assert sorted(sorted(granted) for granted in outcome.cards.values()) == [["0", "3"], ["1", "2"]]


def test_links_decide_inside_a_numa_node() -> None:
    sides = {"0": 0, "1": 0, "2": 0, "3": 1}
    cards = tuple(
        Card(id=CardId(name), memory_mib=1000, numa=side, links=((CardId("2"), 3),) if name == "1" else ())
        for name, side in sides.items()
    )
    outcome = Cluster(nodes=[node("a", card_list=cards)], pods=[pod("p", spec(ask=[whole(2)]))]).run()
    assert sorted(outcome.cards["p"]) == ["1", "2"]
