"""The scheduler's choice and kubelet's choice: found, compared, recorded, and never more promised than exists."""

from typing import Any

import msgspec
import pytest

from baton.agent import config as configuration
from baton.agent.cluster import annotations as node_annotations
from baton.agent.cluster import assignments
from baton.agent.cluster.assignments import Container, NodePod, Quantities, Settlement, settle
from baton.agent.kubelet.records import Recorded
from baton.agent.offers.offers import Offer, plan
from baton.gpu.cards import Card
from baton.gpu.nvidia import NVIDIA
from baton.model import card_annotations
from baton.model.card_annotations import Share
from baton.model.ids import CardId, PodUid

A, B = CardId("GPU-a"), CardId("GPU-b")
NUMBER = "volcano.sh/vgpu-number"


def offer(text: str = "kind: vgpu", memory_mib: int = 8000, name: str = NUMBER) -> Offer:
    cards = tuple(
        Card(card, index, NVIDIA.name, "Tesla T4", memory_mib, (7, 5), "") for index, card in enumerate((A, B))
    )
    return plan(configuration.parse(f"resources: [{{name: {name}, {text}}}]"), cards)[0]


def pod(
    name: str, *counts: int, ids: str = "", ours: str = "", created: str = "2026-01-01T00:00:00Z", memory: int = 0
) -> NodePod:
    annotations = {card_annotations.ASSIGNED: ids} if ids else {}
    annotations |= {card_annotations.OUR_CARDS: ours} if ours else {}
    containers = tuple(
        Container(f"c{number}", Quantities({NUMBER: str(count), "volcano.sh/vgpu-memory": memory} if count else {}))
        for number, count in enumerate(counts)
    )
    return NodePod(PodUid(f"uid-{name}"), "ml", name, created, annotations, containers)


def test_the_node_annotation_has_six_fields_per_card_and_ends_in_a_colon() -> None:
    text = node_annotations.register_text(offer("kind: vgpu, replicas: 4, memory-unit-mib: 10"), frozenset({B}))
    assert text == "GPU-a,4,800,NVIDIA-Tesla T4,true,hami-core:GPU-b,4,800,NVIDIA-Tesla T4,false,hami-core:"


def test_each_offer_has_its_own_unhealthy_cards() -> None:
    """Also devices that a file describes: a scheduler must not choose one that kubelet will not give out."""
    mine = offer("replicas: 2", name="nvshare.com/gpu")
    text = node_annotations.offered_text([(mine, frozenset({B})), (offer("replicas: 3", name="a.b/c"), frozenset({A}))])
    assert [(card.resource, card.id, card.healthy) for card in card_annotations.offered_cards(text or "")] == [
        ("nvshare.com/gpu", A, True),
        ("nvshare.com/gpu", B, False),
        ("a.b/c", A, False),
        ("a.b/c", B, True),
    ]


def test_assigned_shares_are_read_as_the_scheduler_writes_them() -> None:
    text = "GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:;GPU-a,NVIDIA,2000,0:"
    shares = card_annotations.assigned_shares(text)
    assert shares == [[Share(A, 3000, 50), Share(B, 3000, 50)], [Share(A, 2000, 0)]]
    assert card_annotations.assigned_text(shares) == text
    assert card_annotations.assigned_shares("GPU-a[group2-3],NVIDIA,8,0:", 1024) == [[Share(A, 8192, 0)]]
    assert card_annotations.assigned_shares("garbage;GPU-a,NVIDIA,x,0:") == [[], []]


@pytest.mark.parametrize("amount", ["\u00b2", "\u0663", "9" * 9, "9" * 5000, "", "-1", "1.5", " 1"])
def test_an_invalid_amount_is_ignored(amount: str) -> None:
    """Every user who may create pods may write it; without this check no container of the node would start again."""
    assert card_annotations.assigned_shares(f"GPU-a,NVIDIA,{amount},0:;GPU-a,NVIDIA,0,{amount}:") == [[], []]
    assert card_annotations.registered_cards(f"GPU-a,{amount},8,NVIDIA-T4,true,hami-core:") == []
    assert card_annotations.registered_cards(f"GPU-a,10,{amount},NVIDIA-T4,true,hami-core:") == []
    odd = pod("odd", 1, ids=f"GPU-a,NVIDIA,{amount},0:")
    assert assignments.cards_for_next([odd], [], offer(), 1) == ()
    assert settle(odd, "c0", ["GPU-a__1"], offer()).shares == (Share(A, 0, 0),)


def test_batons_annotation_names_containers() -> None:
    assert card_annotations.our_cards("main=GPU-a,GPU-b;side=GPU-a") == {"main": [A, B], "side": [A]}
    assert card_annotations.our_cards_text({"main": [A]}) == "main=GPU-a"


def test_the_lists_are_matched_to_requesting_containers_only() -> None:
    """The first container requests nothing and has no entry."""
    found = pod("p", 0, 1, 1, ids="GPU-a,NVIDIA,1,0:;GPU-b,NVIDIA,2,0:")
    assert assignments.chosen_shares(found, "c1", offer()) == [Share(A, 1, 0)]
    assert assignments.chosen_shares(found, "c2", offer()) == [Share(B, 2, 0)]
    assert assignments.chosen_shares(found, "c0", offer()) is None


def test_a_container_that_requests_only_memory_has_an_entry_in_the_lists() -> None:
    """Schedulers give it a card; it must not get the cards of the next container."""
    memory = Quantities({"volcano.sh/vgpu-memory": "1k"})
    two = pod("p", 0, 1, ids="GPU-a,NVIDIA,1000,0:;GPU-b,NVIDIA,2000,0:")
    found = msgspec.structs.replace(two, containers=(Container("c0", memory), two.containers[1]))
    assert assignments.chosen_shares(found, "c1", offer()) == [Share(B, 2000, 0)]
    assert assignments.cards_for_next([found], [], offer(), 1) == (B,)


def test_a_preference_is_for_the_oldest_pod_that_still_needs_this_many_slots() -> None:
    young = pod("young", 1, ids="GPU-b,NVIDIA,1,0:", created="2026-01-01T00:00:09Z")
    old = pod("old", 1, ids="GPU-a,NVIDIA,1,0:", created="2026-01-01T00:00:05Z")
    larger = pod("larger", 2, ids="GPU-b,NVIDIA,1,0:GPU-b,NVIDIA,1,0:", created="2026-01-01T00:00:01Z")
    pods = [young, old, larger]
    assert assignments.cards_for_next(pods, [], offer(), 1) == (A,)
    record = Recorded(old.uid, "c0", NUMBER, frozenset({"GPU-a__1"}))
    assert assignments.cards_for_next(pods, [record], offer(), 1) == (B,)
    assert assignments.cards_for_next([pod("plain", 1)], [], offer(), 1) == ()
    assert assignments.cards_for_next([], [], offer(), 1) is None


@pytest.mark.parametrize(
    ("written", "memory_mib"), [("3k", 3000), ("3000", 3000), (3000, 3000), ("2Ki", 2048), ("much", 0), ("-1", 0)]
)
def test_limits_are_read_as_the_api_server_writes_quantities(written: str | int, memory_mib: int) -> None:
    """It stores them in canonical form: 3000 in a manifest comes back as `3k`."""
    asked = Quantities({NUMBER: "1", "volcano.sh/vgpu-memory": written})
    found = msgspec.structs.replace(pod("p", 1), containers=(Container("c0", asked),))
    assert settle(found, "c0", ["GPU-a__1"], offer()).shares == (Share(A, memory_mib, 0),)


def test_a_request_for_thousands_of_slots_is_understood() -> None:
    asked = Quantities({"nvshare.com/gpu": "1k"})
    found = NodePod(PodUid("u"), "ml", "p", "", {card_annotations.OUR_CARDS: "main=GPU-b"}, (Container("main", asked),))
    assert assignments.cards_for_next([found], [], offer("", name="nvshare.com/gpu"), 1000) == (B,)


def test_slots_of_other_resources_follow_batons_annotation() -> None:
    plain = offer("", name="nvshare.com/gpu")
    found = NodePod(
        PodUid("u"), "ml", "p", "", {card_annotations.OUR_CARDS: "main=GPU-b"},
        (Container("main", Quantities({"nvshare.com/gpu": "1"})),),
    )  # fmt: skip
    assert assignments.cards_for_next([found], [], plain, 1) == (B,)


def test_matching_choices_record_nothing() -> None:
    found = settle(pod("p", 1, ids="GPU-a,NVIDIA,3000,50:"), "c0", ["GPU-a__1"], offer())
    assert found.mismatch == ""
    assert found.shares == (Share(A, 3000, 50),)


class Node:
    """Pods with their slots, checked before each start of a container, as kubelet asks."""

    def __init__(self, text: str = "kind: vgpu") -> None:
        self.offer = offer(text)
        self.pods: dict[PodUid, NodePod] = {}
        self.records: list[Recorded] = []
        self.admitted: set[assignments.ContainerKey] = set()

    def add(self, name: str, memory_mib: int, *, chosen: CardId | None, given: CardId, **fields: Any) -> None:
        """A pod with one container, for which the scheduler chose one card and kubelet gave one."""
        ids = f"{chosen},NVIDIA,{memory_mib},50:" if chosen else ""
        one = msgspec.structs.replace(pod(name, 1, ids=ids, memory=memory_mib), **fields)
        self.pods[one.uid] = one
        self.records.append(Recorded(one.uid, "c0", NUMBER, frozenset({f"{given}__{len(self.records)}"})))

    def start(self, name: str) -> Settlement:
        owner = next(record for record in self.records if record.pod_uid == f"uid-{name}")
        found = assignments.decide(self.pods, self.records, owner, self.offer, self.admitted)
        if not found.refusal:
            self.admitted.add((owner.pod_uid, owner.container))
        return found

    def restart_agent(self) -> None:
        """What the agent remembers is gone; what the API server tells of the pods is not."""
        for uid, container in self.admitted:
            self.pods[uid] = msgspec.structs.replace(self.pods[uid], started=frozenset({container}))
        self.admitted.clear()


def test_a_swap_that_fits_is_recorded_and_the_limits_move_with_the_pod() -> None:
    node = Node()
    node.add("there", 5000, chosen=B, given=B)
    node.add("swapped", 3000, chosen=A, given=B)
    found = node.start("swapped")
    assert found.mismatch == "the scheduler chose GPU-a for container c0, kubelet gave GPU-b"
    assert found.shares == (Share(B, 3000, 50),)
    assert not found.refusal


def test_a_swap_that_promises_too_much_is_refused_on_every_attempt() -> None:
    node = Node()
    node.add("there", 5001, chosen=B, given=B)
    node.add("swapped", 3000, chosen=A, given=B)
    for _ in range(3):
        assert "3000 MiB more would promise 8001 MiB of 8000 MiB" in node.start("swapped").refusal
    node.restart_agent()
    assert node.start("swapped").refusal


def test_overcommit_allows_promising_more() -> None:
    node = Node("kind: vgpu, memory-overcommit: 1.5")
    node.add("there", 5001, chosen=B, given=B)
    node.add("swapped", 3000, chosen=A, given=B)
    assert not node.start("swapped").refusal


def test_a_refused_swap_does_not_block_the_pod_that_was_there() -> None:
    """The pod that has what the scheduler chose starts, although the swapped one holds a slot of its card."""
    node = Node()
    node.add("there", 5001, chosen=B, given=B)
    node.add("swapped", 3000, chosen=A, given=B)
    assert node.start("swapped").refusal
    assert not node.start("there").refusal
    node.restart_agent()
    assert not node.start("there").refusal, "its container starts again"


def test_a_refused_swap_starts_when_there_is_room() -> None:
    node = Node()
    node.add("there", 5001, chosen=B, given=B)
    node.add("swapped", 3000, chosen=A, given=B)
    assert node.start("swapped").refusal
    node.pods[PodUid("uid-there")] = msgspec.structs.replace(node.pods[PodUid("uid-there")], ended=True)
    assert not node.start("swapped").refusal


@pytest.mark.parametrize("chosen", [B, None])
@pytest.mark.parametrize("forget", [False, True])
def test_a_started_swap_counts_for_all_later_containers(chosen: CardId | None, forget: bool) -> None:
    """Also for a pod whose cards the scheduler chose before it knew of the swap, or did not choose at all."""
    node = Node()
    node.add("swapped", 5001, chosen=A, given=B)
    assert not node.start("swapped").refusal
    node.add("late", 3000, chosen=chosen, given=B)
    if forget:
        node.restart_agent()
    assert "would promise 8001 MiB" in node.start("late").refusal


def test_without_batons_scheduler_the_pods_own_limits_count() -> None:
    found = settle(pod("p", 1, memory=2000), "c0", ["GPU-b__1"], offer("kind: vgpu, memory-unit-mib: 2"))
    assert found.shares == (Share(B, 4000, 0),)


def test_shares_in_force_come_from_kubelets_records() -> None:
    one = pod("one", 1, ids="GPU-a,NVIDIA,3000,50:")
    records = [
        Recorded(one.uid, "c0", NUMBER, frozenset({"GPU-b__2"})),
        Recorded(one.uid, "c0", "other/resource", frozenset({"x"})),
        Recorded(PodUid("gone"), "c0", NUMBER, frozenset({"GPU-b__3"})),
    ]
    assert assignments.shares_in_force({one.uid: one}, records, offer()) == {(one.uid, "c0"): (Share(B, 3000, 50),)}


def test_limits_of_a_pod_that_the_api_server_has_not_reported_come_from_kubelets_records() -> None:
    uid, other = PodUid("early"), PodUid("other")
    records = [
        Recorded(uid, "c0", NUMBER, frozenset({"GPU-a__1", "GPU-b__1"})),
        Recorded(uid, "c0", "volcano.sh/vgpu-memory", frozenset({"GPU-b__1", "GPU-b__2", "GPU-a__7"})),
        Recorded(uid, "c0", "volcano.sh/vgpu-cores", frozenset({"GPU-a__1"})),
        Recorded(uid, "c1", "volcano.sh/vgpu-memory", frozenset({"GPU-a__8"})),
        Recorded(other, "c0", NUMBER, frozenset({"GPU-a__2"})),
    ]
    shares = assignments.shares_in_force({}, records, offer("kind: vgpu, memory-unit-mib: 2"))
    assert shares == {(uid, "c0"): (Share(A, 6, 1), Share(B, 6, 1))}


def test_limits_are_read_under_the_configured_names_of_memory_and_cores() -> None:
    named = offer("kind: vgpu, memory-name: example.com/mib, cores-name: example.com/percent", name="example.com/share")
    uid = PodUid("u")
    asked = Quantities({"example.com/share": "1", "example.com/mib": "700", "example.com/percent": "30"})
    wants = NodePod(uid, "ml", "p", "2026-01-01T00:00:00Z", {}, (Container("c0", asked),))
    assert settle(wants, "c0", {"GPU-a__1"}, named).shares == (Share(A, 700, 30),)
    records = [
        Recorded(uid, "c0", "example.com/share", frozenset({"GPU-a__1"})),
        Recorded(uid, "c0", "example.com/mib", frozenset({"GPU-b__1", "GPU-b__2"})),
        Recorded(uid, "c0", "example.com/percent", frozenset({"GPU-b__1"})),
    ]
    assert assignments.shares_in_force({}, records, named) == {(uid, "c0"): (Share(A, 2, 1),)}
