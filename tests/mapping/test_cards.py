"""Cards of nodes, requests for cards, and the annotations of a binding."""

from typing import Any

import msgspec
import pytest

from baton.engine.objects import CardGrant, CardKind, CardRequest
from baton.mapping.cards import CardWords, binding_annotations
from baton.mapping.cluster import node_of
from baton.mapping.pods import PodWords
from baton.model import card_annotations
from baton.model.ids import CardId
from tests.mapping.objects import limited, node, pod


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        (
            {"vgpu_number": 2, "vgpu_memory": 3000, "vgpu_cores": 50},
            {"count": 2, "memory_mib": 3000, "share_milli": 500},
        ),
        ({"vgpu_memory": 3000}, {"count": 1, "memory_mib": 3000}),
        ({"vgpu_number": 1, "vgpu_memory_percentage": 40}, {"count": 1, "memory_percent": 40}),
        ({"vgpu_number": 1}, {"count": 1}),
    ],
)
def test_a_vgpu_request_is_read_as_volcano_reads_it(limits: dict[str, Any], request_: dict[str, int]) -> None:
    found = PodWords().translate(pod({"containers": [limited(**limits)]})).spec
    assert found.containers[0].cards == (CardRequest(kind=CardKind.VGPU, **request_),)


def test_percentage_alone_is_no_request() -> None:
    found = PodWords().translate(pod({"containers": [limited(vgpu_memory_percentage=40)]})).spec
    assert found.containers[0].cards == ()


def test_a_node_with_the_register_has_its_cards() -> None:
    text = "GPU-a,10,8000,NVIDIA-T4,true,hami-core:GPU-b,10,8000,NVIDIA-T4,false,hami-core:"
    counts = {"volcano.sh/vgpu-number": "20", "volcano.sh/vgpu-memory": "16000", "volcano.sh/vgpu-cores": "200"}
    cards = node_of(node(counts, {card_annotations.REGISTER: text}), CardWords()).cards
    assert [(card.id, card.slots, card.memory_mib, card.healthy) for card in cards] == [
        ("GPU-a", 10, 8000, True),
        ("GPU-b", 10, 8000, False),
    ]
    del counts["volcano.sh/vgpu-cores"]
    assert node_of(node(counts, {card_annotations.REGISTER: text}), CardWords()).cards == ()


def test_slots_have_the_cards_that_the_agent_names_or_anonymous_ones() -> None:
    offered = [card_annotations.OfferedCard(id="GPU-a", resource="nvshare.com/gpu", slots=10, memory_mib=8000)]  # type: ignore[arg-type]  # a plain string is a CardId here
    annotations = {card_annotations.OFFERED_CARDS: msgspec.json.encode(offered).decode()}
    assert [card.id for card in node_of(node({"nvshare.com/gpu": "10"}, annotations), CardWords()).cards] == ["GPU-a"]
    bare = node_of(node({"nvshare.com/gpu": "3"}), CardWords()).cards
    assert [card.slots for card in bare] == [1, 1, 1]
    assert binding_annotations("n", [CardGrant("main", bare[0].id, CardKind.SLOT, 0, 0)], ["main"], 7) == {}


def test_a_binding_and_the_reading_of_it_agree() -> None:
    grants = (
        CardGrant("main", CardId("GPU-a"), CardKind.VGPU, 3000, 500),
        CardGrant("main", CardId("GPU-b"), CardKind.VGPU, 3000, 500),
        CardGrant("side", CardId("GPU-a"), CardKind.VGPU, 2000, 0),
    )
    said = binding_annotations("n", grants, ["idle", "main", "side"], 1700000000)
    assert said == {
        "volcano.sh/vgpu-node": "n",
        "volcano.sh/vgpu-time": "1700000000",
        "volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:;GPU-a,NVIDIA,2000,0:",
        "volcano.sh/devices-to-allocate": "GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:;GPU-a,NVIDIA,2000,0:",
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/bind-time": "1700000000",
    }
    spec = {
        "nodeName": "n",
        "containers": [
            {"name": "idle"},
            limited("main", vgpu_number=2, vgpu_memory=3000, vgpu_cores=50),
            limited("side", vgpu_memory=2000),
        ],
    }
    assert PodWords().translate(pod(spec, annotations=said)).cards == grants


def test_slots_and_legacy_cards_come_back_from_their_annotations() -> None:
    slots = (CardGrant("main", CardId("GPU-a"), CardKind.SLOT, 0, 0),)
    said = binding_annotations("n", slots, ["main"], 1)
    assert said == {"baton.dev/cards": "main=GPU-a"}
    spec = {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {"nvshare.com/gpu": 1}}}]}
    assert PodWords().translate(pod(spec, annotations=said)).cards == slots
    cards = node_of(node({"volcano.sh/gpu-memory": "16000", "volcano.sh/gpu-number": "2"}), CardWords()).cards
    legacy = (CardGrant("main", cards[1].id, CardKind.MEMORY, 4000, 0),)
    said = binding_annotations("n", legacy, ["main"], 1)
    assert said == {"volcano.sh/gpu-index": "1", "volcano.sh/predicate-time": "1000000000"}
    spec = {"nodeName": "n", "containers": [limited(gpu_memory=4000)]}
    assert PodWords().translate(pod(spec, annotations=said)).cards == legacy


def test_card_rules_are_read_only_where_cards_are_asked_for() -> None:
    annotations = {"nvidia.com/use-gputype": "A100, H100", "volcano.sh/vgpu-podgroup-policy": "spread"}
    ruled = PodWords().translate(pod({"containers": [limited(vgpu_number=1)]}, annotations=annotations)).spec
    assert ruled.card_rules.models == ("A100", "H100")
    assert ruled.card_rules.spread_group
    plain = PodWords().translate(pod(annotations=annotations)).spec
    assert plain.card_rules.models == ()
