"""The scheduler's choice and kubelet's choice: found, compared, recorded, and never more promised than there is."""

from baton.agent import assignments, volcano
from baton.agent import config as configuration
from baton.agent.assignments import Container, NodePod, Quantities, settle
from baton.agent.podresources import PodUid, Recorded
from baton.agent.resources import Offer, plan
from baton.gpu.cards import Card, CardId, Vendor
from baton.kube import card_annotations
from baton.kube.card_annotations import Share

A, B = CardId("GPU-a"), CardId("GPU-b")
NUMBER = "volcano.sh/vgpu-number"


def offer(text: str = "kind: vgpu", memory_mib: int = 8000, name: str = NUMBER) -> Offer:
    cards = tuple(
        Card(card, index, Vendor.NVIDIA, "Tesla T4", memory_mib, (7, 5), "") for index, card in enumerate((A, B))
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
    text = volcano.register_text(offer("kind: vgpu, replicas: 4, memory-unit-mib: 10"), frozenset({B}))
    assert text == "GPU-a,4,800,NVIDIA-Tesla T4,true,hami-core:GPU-b,4,800,NVIDIA-Tesla T4,false,hami-core:"


def test_assigned_shares_are_read_as_the_scheduler_writes_them() -> None:
    text = "GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:;GPU-a,NVIDIA,2000,0:"
    shares = card_annotations.assigned_shares(text)
    assert shares == [[Share(A, 3000, 50), Share(B, 3000, 50)], [Share(A, 2000, 0)]]
    assert card_annotations.assigned_text(shares) == text
    assert card_annotations.assigned_shares("GPU-a[group2-3],NVIDIA,8,0:", 1024) == [[Share(A, 8192, 0)]]
    assert card_annotations.assigned_shares("garbage;GPU-a,NVIDIA,x,0:") == [[], []]


def test_our_own_annotation_names_containers() -> None:
    assert card_annotations.our_cards("main=GPU-a,GPU-b;side=GPU-a") == {"main": [A, B], "side": [A]}
    assert card_annotations.our_cards_text({"main": [A]}) == "main=GPU-a"


def test_the_lists_are_matched_to_requesting_containers_only() -> None:
    """The first container asks for nothing and has no entry."""
    found = pod("p", 0, 1, 1, ids="GPU-a,NVIDIA,1,0:;GPU-b,NVIDIA,2,0:")
    assert assignments.chosen_shares(found, "c1", offer()) == [Share(A, 1, 0)]
    assert assignments.chosen_shares(found, "c2", offer()) == [Share(B, 2, 0)]
    assert assignments.chosen_shares(found, "c0", offer()) is None


def test_the_oldest_pod_without_slots_that_wants_this_many_is_answered_for() -> None:
    young = pod("young", 1, ids="GPU-b,NVIDIA,1,0:", created="2026-01-01T00:00:09Z")
    old = pod("old", 1, ids="GPU-a,NVIDIA,1,0:", created="2026-01-01T00:00:05Z")
    larger = pod("larger", 2, ids="GPU-b,NVIDIA,1,0:GPU-b,NVIDIA,1,0:", created="2026-01-01T00:00:01Z")
    pods = [young, old, larger]
    assert assignments.cards_for_next(pods, [], offer(), 1) == (A,)
    record = Recorded(old.uid, "c0", NUMBER, frozenset({"GPU-a__1"}))
    assert assignments.cards_for_next(pods, [record], offer(), 1) == (B,)
    assert assignments.cards_for_next([pod("plain", 1)], [], offer(), 1) == ()
    assert assignments.cards_for_next([], [], offer(), 1) is None


def test_slots_of_other_resources_follow_our_own_annotation() -> None:
    plain = offer("", name="nvshare.com/gpu")
    found = NodePod(
        PodUid("u"), "ml", "p", "", {card_annotations.OUR_CARDS: "main=GPU-b"},
        (Container("main", Quantities({"nvshare.com/gpu": "1"})),),
    )  # fmt: skip
    assert assignments.cards_for_next([found], [], plain, 1) == (B,)


def test_agreement_is_quiet() -> None:
    found = settle(pod("p", 1, ids="GPU-a,NVIDIA,3000,50:"), "c0", ["GPU-a__1"], offer(), [])
    assert (found.mismatch, found.refusal) == ("", "")
    assert found.shares == (Share(A, 3000, 50),)


def test_a_swap_that_fits_is_recorded_and_the_limits_move_with_the_pod() -> None:
    found = settle(pod("p", 1, ids="GPU-a,NVIDIA,3000,50:"), "c0", ["GPU-b__1"], offer(), [Share(B, 5000)])
    assert found.mismatch == "the scheduler chose GPU-a for container c0, kubelet gave GPU-b"
    assert found.shares == (Share(B, 3000, 50),)
    assert not found.refusal


def test_a_swap_that_would_promise_too_much_is_refused() -> None:
    found = settle(pod("p", 1, ids="GPU-a,NVIDIA,3000,50:"), "c0", ["GPU-b__1"], offer(), [Share(B, 5001)])
    assert "3000 MiB more would promise 8001 MiB of 8000 MiB" in found.refusal
    more = offer("kind: vgpu, memory-overcommit: 1.5")
    assert not settle(pod("p", 1, ids="GPU-a,NVIDIA,3000,50:"), "c0", ["GPU-b__1"], more, [Share(B, 5001)]).refusal


def test_without_a_scheduler_of_ours_the_pods_own_limits_count() -> None:
    found = settle(pod("p", 1, memory=2000), "c0", ["GPU-b__1"], offer("kind: vgpu, memory-unit-mib: 2"), [])
    assert found.shares == (Share(B, 4000, 0),)


def test_shares_in_force_come_from_kubelets_records() -> None:
    one = pod("one", 1, ids="GPU-a,NVIDIA,3000,50:")
    records = [
        Recorded(one.uid, "c0", NUMBER, frozenset({"GPU-b__2"})),
        Recorded(one.uid, "c0", "other/resource", frozenset({"x"})),
        Recorded(PodUid("gone"), "c0", NUMBER, frozenset({"GPU-b__3"})),
    ]
    assert assignments.shares_in_force({one.uid: one}, records, offer()) == {(one.uid, "c0"): (Share(B, 3000, 50),)}
