"""Placement: with a kubelet that chooses at random, every policy holds for any sequence of requests."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from baton.agent.offers.slot_choice import CardLoad, Policy, PreferenceRequest, prefer, violation
from baton.agent.offers.slots import CardSlots, Pool, SlotId, card_of, slot_id
from baton.model.ids import CardId
from tests.agent.fake_kubelet import Chooser, NotEnoughError

SEQUENCES = 1000


def pool_of(cards: int, slots: int) -> Pool:
    return Pool(CardSlots.of(CardId(f"GPU-{index}"), index, slots) for index in range(cards))


def ask(policy: Policy, pool: Pool, loads: dict[CardId, CardLoad] | None = None) -> Callable[..., list[SlotId]]:
    def answer(available: list[SlotId], must: list[SlotId], size: int) -> list[SlotId]:
        slots = prefer(policy, pool, PreferenceRequest(pool.marks(available), tuple(must), size), loads)
        assert len(slots) == len(set(slots)) == size, "exactly as many as requested"
        assert slots[: len(must)] == must, "the slots that kubelet has taken come first"
        assert set(slots) <= set(available), "only available slots"
        return slots

    return answer


def cards_of(slots: list[SlotId]) -> Counter[CardId]:
    return Counter(card_of(slot) for slot in slots)


def counts(pool: Pool, kubelet: Chooser) -> list[int]:
    used = cards_of(sorted(kubelet.allocated))
    return [used[card.card] for card in pool.cards]


@pytest.mark.parametrize("policy", list(Policy))
def test_the_answer_is_exact_and_kubelet_never_has_to_choose(policy: Policy) -> None:
    """Kubelet takes exactly the answer, in whatever order it lists the slots."""
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        pool = pool_of(chance.randint(1, 6), chance.randint(1, 5))
        kubelet = Chooser(pool.slots, chance)
        pods: list[list[SlotId]] = []
        for _ in range(12):
            if pods and chance.random() < 0.35:
                kubelet.release(pods.pop(chance.randrange(len(pods))))
                continue
            size = chance.randint(1, 4)
            free = pool.marks(kubelet.healthy - kubelet.allocated)
            try:
                got = kubelet.admit(size, ask(policy, pool))
            except NotEnoughError:
                continue
            assert set(got) == set(prefer(policy, pool, PreferenceRequest(free, (), size)))
            pods.append(got)


def test_spread_keeps_cards_within_one_slot_of_each_other() -> None:
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        cards = chance.randint(1, 8)
        pool = pool_of(cards, chance.randint(2, 10))
        kubelet = Chooser(pool.slots, chance)
        while len(kubelet.allocated) < len(pool):
            size = min(chance.randint(1, cards), len(pool) - len(kubelet.allocated))
            got = kubelet.admit(size, ask(Policy.SPREAD, pool))
            assert max(cards_of(got).values()) == 1
            assert max(counts(pool, kubelet)) - min(counts(pool, kubelet)) <= 1


def test_spread_takes_the_emptiest_cards_after_any_releases() -> None:
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        pool = pool_of(chance.randint(2, 6), 4)
        kubelet = Chooser(pool.slots, chance)
        pods: list[list[SlotId]] = []
        for _ in range(15):
            if pods and chance.random() < 0.4:
                kubelet.release(pods.pop(chance.randrange(len(pods))))
                continue
            before = dict(zip((card.card for card in pool.cards), counts(pool, kubelet), strict=True))
            size = chance.randint(1, 3)
            try:
                got = kubelet.admit(size, ask(Policy.SPREAD, pool))
            except NotEnoughError:
                continue
            pods.append(got)
            with_room = [card for card, used in before.items() if used < 4]
            used = cards_of(got)
            assert len(used) == min(size, len(with_room)), "different cards where possible"
            for chosen in used:
                passed_over = [card for card in with_room if card not in used]
                assert all(before[chosen] <= before[card] for card in passed_over)


def test_strict_spread_gives_distinct_cards_always_or_refuses() -> None:
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        pool = pool_of(chance.randint(1, 6), chance.randint(1, 4))
        kubelet = Chooser(pool.slots, chance)
        pods: list[list[SlotId]] = []
        for _ in range(15):
            if pods and chance.random() < 0.3:
                kubelet.release(pods.pop(chance.randrange(len(pods))))
                continue
            size = chance.randint(1, 4)
            with_room = len(cards_of(sorted(kubelet.healthy - kubelet.allocated)))
            try:
                got = kubelet.admit(size, ask(Policy.STRICT_SPREAD, pool))
            except NotEnoughError:
                continue
            refused = violation(Policy.STRICT_SPREAD, pool, got)
            if refused:
                assert size > with_room, "refused although there were enough cards"
                kubelet.release(got)
            else:
                assert max(cards_of(got).values()) == 1
                pods.append(got)


def test_packed_touches_an_empty_card_only_when_no_used_one_has_room() -> None:
    for seed in range(SEQUENCES):
        chance = random.Random(seed)
        pool = pool_of(chance.randint(2, 6), 4)
        kubelet = Chooser(pool.slots, chance)
        while len(kubelet.allocated) < len(pool):
            before = counts(pool, kubelet)
            kubelet.admit(1, ask(Policy.PACKED, pool))
            opened = sum(1 for was, now in zip(before, counts(pool, kubelet), strict=True) if not was and now)
            assert not opened or all(used in (0, 4) for used in before)


def test_packed_keeps_a_container_on_one_card_when_one_can_hold_it() -> None:
    pool = pool_of(2, 4)
    full = frozenset(pool.slots) - {slot_id(CardId("GPU-0"), n) for n in (1, 2)}
    assert cards_of(prefer(Policy.PACKED, pool, PreferenceRequest(pool.marks(full), (), 3))) == {"GPU-1": 3}
    assert cards_of(prefer(Policy.PACKED, pool, PreferenceRequest(pool.marks(full), (), 2))) == {"GPU-0": 2}


def nvlink_pairs() -> Pool:
    """Eight cards: NVLink pairs (0,5), (1,4), (2,7), (3,6); NUMA nodes 0 for the first four, 1 for the others."""
    peer = {0: 5, 5: 0, 1: 4, 4: 1, 2: 7, 7: 2, 3: 6, 6: 3}
    return Pool(CardSlots.of(CardId(f"GPU-{n}"), n, 2, n // 4, [CardId(f"GPU-{peer[n]}")]) for n in range(8))


def test_aligned_prefers_nvlink_then_the_numa_node() -> None:
    pool = nvlink_pairs()
    everything = frozenset(pool.slots)
    assert set(cards_of(prefer(Policy.ALIGNED, pool, PreferenceRequest(pool.marks(everything), (), 2)))) == {
        "GPU-0",
        "GPU-5",
    }
    without_links = frozenset(slot for slot in everything if card_of(slot) in ("GPU-0", "GPU-6", "GPU-7"))
    assert set(cards_of(prefer(Policy.ALIGNED, pool, PreferenceRequest(pool.marks(without_links), (), 2)))) == {
        "GPU-6",
        "GPU-7",
    }


def test_aligned_does_not_break_a_pair_for_a_single_card() -> None:
    pool = nvlink_pairs()
    available = frozenset(slot for slot in pool.slots if card_of(slot) in ("GPU-0", "GPU-1", "GPU-5"))
    assert set(cards_of(prefer(Policy.ALIGNED, pool, PreferenceRequest(pool.marks(available), (), 1)))) == {"GPU-1"}


def test_aligned_joins_what_kubelet_has_already_taken() -> None:
    pool = nvlink_pairs()
    must = (slot_id(CardId("GPU-3"), 1),)
    answer = prefer(Policy.ALIGNED, pool, PreferenceRequest(pool.marks(pool.slots), must, 2))
    assert answer[0] == must[0]
    assert card_of(answer[1]) == "GPU-6"


def test_aligned_on_many_cards_finds_the_linked_island_without_trying_every_set() -> None:
    """Sixteen cards in two islands of eight: 12,870 sets of eight are too many to try."""
    islands = [[CardId(f"GPU-{n}") for n in range(16) if n % 2 == side] for side in (0, 1)]
    pool = Pool(CardSlots.of(CardId(f"GPU-{n}"), n, 1, 0, islands[n % 2]) for n in range(16))
    assert set(cards_of(prefer(Policy.ALIGNED, pool, PreferenceRequest(pool.marks(pool.slots), (), 8)))) == set(
        islands[0]
    )


def test_load_follows_real_work_and_not_the_number_of_slots() -> None:
    """Five idle pods on the first card, one busy pod on the second: the next pod goes to the first."""
    pool = pool_of(2, 10)
    used = {slot_id(CardId("GPU-0"), n) for n in range(1, 6)} | {slot_id(CardId("GPU-1"), 1)}
    request = PreferenceRequest(pool.marks(pool.slots.keys() - used), (), 1)
    loads = {CardId("GPU-0"): CardLoad(0, 0, 5), CardId("GPU-1"): CardLoad(1, 98, 40)}
    assert card_of(prefer(Policy.LOAD, pool, request, loads)[0]) == "GPU-0"
    assert card_of(prefer(Policy.LOAD, pool, request, None)[0]) == "GPU-1", "without an answer: as spread"


def test_the_schedulers_cards_win_where_they_have_room() -> None:
    pool = pool_of(4, 2)
    chosen = [CardId("GPU-3"), CardId("GPU-3")]
    answer = prefer(Policy.SPREAD, pool, PreferenceRequest(pool.marks(pool.slots), (), 2), chosen=chosen)
    assert cards_of(answer) == {"GPU-3": 2}
    full = frozenset(slot for slot in pool.slots if card_of(slot) != "GPU-3")
    assert cards_of(prefer(Policy.SPREAD, pool, PreferenceRequest(pool.marks(full), (), 2), chosen=chosen)) == {
        "GPU-0": 1,
        "GPU-1": 1,
    }


def test_init_containers_slots_are_kept_and_the_rest_goes_elsewhere() -> None:
    pool = pool_of(2, 3)
    must = (slot_id(CardId("GPU-1"), 3),)
    answer = prefer(Policy.STRICT_SPREAD, pool, PreferenceRequest(pool.marks(pool.slots), must, 2))
    assert answer == [must[0], slot_id(CardId("GPU-0"), 1)]


@pytest.mark.parametrize(
    ("policy", "slots", "limit", "expected"),
    [
        (Policy.SPREAD, ["GPU-9__1"], 0, "slot 'GPU-9__1' does not exist on this node; it has GPU-0 (2 slots)"),
        (Policy.SPREAD, ["GPU-0__1", "GPU-0__2"], 1, "2 slots in one container, but max-per-container is 1"),
        (Policy.STRICT_SPREAD, ["GPU-0__1", "GPU-0__2"], 0, "two would be on GPU-0; request at most 2"),
        (Policy.SPREAD, ["GPU-0__1", "GPU-0__2"], 0, ""),
    ],
)
def test_an_invalid_choice_is_refused_in_one_sentence(
    policy: Policy, slots: list[str], limit: int, expected: str
) -> None:
    sentence = violation(policy, pool_of(2, 2), slots, limit)
    assert expected in sentence if expected else not sentence
