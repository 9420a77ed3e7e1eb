"""Every way to request a card, and how two requests share one card."""

from baton.engine.objects import CardKind, CardRequest
from baton.model.ids import QueueName
from tests.engine.clusters import Cluster, milli, node, pod, slot, spec, vgpu, whole


def test_slots_of_one_container_are_on_distinct_cards() -> None:
    outcome = Cluster(nodes=[node("a", cards=2)], pods=[pod("p", spec(ask=[slot(2)]))]).run()
    assert sorted(outcome.cards["p"]) == ["a/0", "a/1"]


def test_a_card_never_gives_more_slots_than_it_has() -> None:
    outcome = Cluster(
        nodes=[node("a", cards=1, slots=2)], pods=[pod(f"p{i}", spec(ask=[slot()])) for i in range(3)]
    ).run()
    assert len(outcome.placed) == 2


def test_vgpu_memory_adds_up_to_the_card() -> None:
    outcome = Cluster(
        nodes=[node("a", cards=1, memory_mib=24_000)],
        pods=[pod(f"p{i}", spec(ask=[vgpu(memory_mib=10_000)])) for i in range(3)],
    ).run()
    assert len(outcome.placed) == 2


def test_plain_memory_requests_share_a_card_up_to_its_memory() -> None:
    """The legacy request has no slot and no share of the cores."""
    ask = CardRequest(kind=CardKind.MEMORY, memory_mib=5_000)
    outcome = Cluster(
        nodes=[node("a", cards=2, memory_mib=16_000, slots=1)], pods=[pod(f"p{i}", spec(ask=[ask])) for i in range(7)]
    ).run()
    assert sorted(card for cards in outcome.cards.values() for card in cards) == ["a/0"] * 3 + ["a/1"] * 3


def test_vgpu_percentage_refers_to_the_granted_card() -> None:
    outcome = Cluster(
        nodes=[node("a", cards=1, memory_mib=10_001)],
        pods=[pod(f"p{i}", spec(ask=[vgpu(percent=50)])) for i in range(2)],
    ).run()
    assert len(outcome.placed) == 1, "two rounded-up halves are more than the whole"
    assert outcome.plan.bindings[0].cards[0].memory_mib == 5_001


def test_vgpu_without_memory_takes_the_whole_memory() -> None:
    outcome = Cluster(
        nodes=[node("a", cards=1)], pods=[pod(f"p{i}", spec(ask=[vgpu(cores=10)])) for i in range(2)]
    ).run()
    assert len(outcome.placed) == 1


def test_cores_add_up_to_a_hundred() -> None:
    outcome = Cluster(
        nodes=[node("a", cards=1)], pods=[pod(f"p{i}", spec(ask=[vgpu(memory_mib=10, cores=40)])) for i in range(3)]
    ).run()
    assert len(outcome.placed) == 2


def test_a_card_without_free_cores_refuses_even_a_pod_without_cores() -> None:
    full = pod("a-full", spec(ask=[vgpu(memory_mib=10, cores=100)]))
    none = pod("b-none", spec(ask=[vgpu(memory_mib=10)]))
    assert set(Cluster(nodes=[node("a", cards=1)], pods=[full, none]).run().placed) == {"a-full"}


def test_a_whole_card_is_never_shared() -> None:
    outcome = Cluster(
        nodes=[node("a", cards=1)],
        pods=[pod("a-whole", spec(ask=[whole()])), pod("b-slot", spec(ask=[slot()])), pod("c", spec(ask=[milli(1)]))],
    ).run()
    assert set(outcome.placed) == {"a-whole"}


def test_fractions_share_a_card_up_to_a_thousand() -> None:
    outcome = Cluster(nodes=[node("a", cards=2)], pods=[pod(f"p{i}", spec(ask=[milli(500)])) for i in range(5)]).run()
    assert len(outcome.placed) == 4


def test_a_queue_is_charged_for_the_memory_of_every_card() -> None:
    """A container's memory limit is per card and appears once in its requests, however many cards it requests."""
    counted = (("volcano.sh/vgpu-number", 2), ("volcano.sh/vgpu-memory", 3_000))
    cluster = Cluster(
        nodes=[node("a", cards=2, also=(("volcano.sh/vgpu-number", 20), ("volcano.sh/vgpu-memory", 32_000)))],
        pods=[pod("p", spec(ask=[vgpu(2, memory_mib=3_000)], also=counted))],
    )
    assert cluster.run().placed == {"p": "a"}
    state = cluster.engine.state
    used = dict(state.resources.amounts(state.queues[QueueName("default")].allocated))
    assert (used["volcano.sh/vgpu-number"], used["volcano.sh/vgpu-memory"]) == (2, 6_000)
