"""From configuration and cards to offers."""

import pytest

from baton.agent import config as configuration
from baton.agent.offers.offers import Offer, PlanError, Role, plan, unused_rules
from baton.gpu.cards import Card
from baton.gpu.nvidia import NVIDIA
from baton.model.ids import CardId


def card(index: int, memory_mib: int = 16384, model: str = "Tesla T4", uuid: str = "") -> Card:
    name = CardId(uuid or f"GPU-{index:08x}-0000-4000-8000-00000000000{index}")
    return Card(
        name,
        index,
        NVIDIA.name,
        model,
        memory_mib,
        (7, 5),
        f"0000:{index:02x}:00.0",
        device_nodes=(f"/dev/nvidia{index}",),
    )


CARDS = (card(0), card(1, model="NVIDIA A100-SXM4-80GB", memory_mib=81920))


def offers(text: str, cards: tuple[Card, ...] = CARDS) -> dict[str, Offer]:
    return {offer.name: offer for offer in plan(configuration.parse(text), cards)}


def test_each_card_has_its_own_number_of_slots() -> None:
    offer = offers("resources: [{name: nvshare.com/gpu, replicas: 4, cards: [{model: '*A100*', replicas: 20}]}]")[
        "nvshare.com/gpu"
    ]
    assert [len(entry.slots) for entry in offer.pool.cards] == [4, 20]
    assert offer.pool.cards[0].slots[0] == f"{CARDS[0].id}__1"


def test_a_card_offered_under_two_names_is_refused_with_a_remedy() -> None:
    with pytest.raises(PlanError) as caught:
        offers(
            "resources: [{name: nvshare.com/gpu}, {name: nvidia.com/gpu, kind: whole, cards: [{index: 0, use: false}]}]"
        )
    assert f"card {CARDS[1].id} is offered as nvshare.com/gpu and as nvidia.com/gpu" in str(caught.value)
    assert str(caught.value).count("is offered as") == 1


def test_cards_can_be_divided_between_resources() -> None:
    found = offers(
        """
resources:
  - {name: nvshare.com/gpu, only-listed-cards: true, cards: [{index: 0}]}
  - {name: nvidia.com/gpu, kind: whole, cards: [{index: 0, use: false}]}
"""
    )
    assert len(found["nvshare.com/gpu"].pool) == 10
    assert list(found["nvidia.com/gpu"].pool.slots) == [f"{CARDS[1].id}__1"]


def test_a_vgpu_is_three_resources_over_the_same_cards() -> None:
    found = offers(
        "resources: [{name: volcano.sh/vgpu-number, kind: vgpu, memory-unit-mib: 1024, memory-overcommit: 2}]"
    )
    assert {name: (len(offer.pool), offer.role) for name, offer in found.items()} == {
        "volcano.sh/vgpu-number": (20, Role.CARDS),
        "volcano.sh/vgpu-memory": (2 * (16 + 80), Role.COUNT),
        "volcano.sh/vgpu-cores": (200, Role.COUNT),
    }


def test_too_many_slots_for_kubelet_are_refused_with_a_number_that_works() -> None:
    cards = tuple(card(index, 81920) for index in range(8))
    with pytest.raises(PlanError) as caught:
        offers("resources: [{name: volcano.sh/vgpu-number, kind: vgpu}]", cards)
    assert "volcano.sh/vgpu-memory would have 655360 slots" in str(caught.value)
    assert "set memory-unit-mib to 17 or more" in str(caught.value)
    assert offers("resources: [{name: volcano.sh/vgpu-number, kind: vgpu, memory-unit-mib: 17}]", cards)


def test_a_device_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(PlanError, match="has 74 characters, more than 63"):
        offers("resources: [{name: nvshare.com/gpu}]", (card(0, uuid="G" * 70),))


def test_a_rule_that_matches_no_card_is_reported_but_no_error() -> None:
    config = configuration.parse("resources: [{name: nvshare.com/gpu, cards: [{model: '*H100*', replicas: 2}]}]")
    assert plan(config, CARDS)
    assert unused_rules(config, CARDS) == ["nvshare.com/gpu: cards[0] matches no card of this node"]
