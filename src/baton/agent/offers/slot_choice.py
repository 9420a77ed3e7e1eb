"""Which slots a container should get: the answer to kubelet's GetPreferredAllocation, as pure functions.

Kubelet names the available slots, the slots that it has already taken for this container (left over from the pod's
init containers), and how many the container needs in total. The answer has exactly that many: kubelet fills a short
answer at random and takes a random part of a long one, and both defeat the policy. Slots that kubelet has taken come
first. The same request always gets the same answer.

How full a card is follows from the request: kubelet offers all free slots of a card or none of them (an unhealthy card
and a card on another NUMA node have none), so the missing slots of an offered card are allocated.

A policy is a preference; if it cannot be met, the answer is the next best. `violation` refuses what must not happen at
all; Allocate asks it about the slots that kubelet chose.
"""

import enum
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import comb

import msgspec

from baton.agent.offers.slots import CardSlots, Pool, SlotId
from baton.model.ids import CardId

_MAX_COMBINATIONS = 300
"""Above this many sets of cards `aligned` builds its set card by card, because kubelet waits without a limit."""
_SAME_NUMA = 10
_NVLINK = 100


class Policy(enum.StrEnum):
    """How slots are chosen."""

    SPREAD = "spread"
    """The least allocated card first; one container's slots on different cards as far as possible."""
    STRICT_SPREAD = "strict-spread"
    """As spread, but a container that would get two slots of one card is refused."""
    PACKED = "packed"
    """The fullest card with room, so that other cards stay empty."""
    ALIGNED = "aligned"
    """Cards that are close to each other: NVLink first, then one NUMA node."""
    LOAD = "load"
    """The card with the least real work now, regardless of its slots in use; spread if the load is unknown."""


class CardLoad(msgspec.Struct, frozen=True):
    """The real load of a card, as the lock daemon sees it."""

    active_clients: int
    """Holders and waiters; registered clients that are idle do not count."""
    utilisation_percent: int = 0
    memory_percent: int = 0


class PreferenceRequest(msgspec.Struct, frozen=True):
    """Kubelet's request for a preference for one container."""

    available: bytes | bytearray
    """The slots that kubelet can give, as `Pool.marks`."""
    must_include: tuple[SlotId, ...]
    size: int


class _Card:
    """The state of a card while a request is being answered."""

    def __init__(self, card: CardSlots, first: int, left: int, taken: int) -> None:
        self.card = card
        self.first = first
        """The number of its first slot."""
        self.left = left
        self.taken = taken
        """Slots that this container already has on it."""
        self.allocated = len(card.slots) - left - taken

    @property
    def order(self) -> tuple[int, CardId]:
        return self.card.index, self.card.card


_Picker = Callable[[list[_Card], int, Mapping[CardId, CardLoad]], Sequence[tuple[_Card, int]]]


def prefer(
    policy: Policy,
    pool: Pool,
    request: PreferenceRequest,
    loads: Mapping[CardId, CardLoad] | None = None,
    chosen: Sequence[CardId] = (),
) -> list[SlotId]:
    """The slots to take, those of `must_include` first. Fewer than requested only if `available` has fewer.

    `chosen` are the scheduler's cards for this container, one per slot; they override the policy where they have room.
    """
    must = list(dict.fromkeys(request.must_include))[: request.size]
    free = bytearray(request.available)
    taken: dict[CardId, int] = {}
    for slot in must:
        if slot in pool.numbers:
            home = pool.slots[slot].card
            taken[home] = taken.get(home, 0) + 1
            free[pool.numbers[slot]] = 0
    # A card that this container already uses is a candidate only if it has more free slots.
    cards = []
    for entry in pool.cards:
        first = pool.first[entry.card]
        if left := free.count(1, first, first + len(entry.slots)):
            cards.append(_Card(entry, first, left, taken.get(entry.card, 0)))

    def take(card: _Card, count: int) -> list[SlotId]:
        """The lowest free ordinals."""
        slots = []
        for _ in range(min(count, card.left)):
            number = free.index(1, card.first)
            free[number] = 0
            slots.append(card.card.slots[number - card.first])
        card.left -= len(slots)
        card.taken += len(slots)
        return slots

    answer = must + _chosen_first(cards, chosen, taken, request.size - len(must), take)
    while (missing := request.size - len(answer)) > 0:
        candidates = [card for card in cards if card.left]
        if not candidates:
            break
        for card, count in _PICKERS[policy](candidates, missing, loads or {}):
            answer += take(card, count)
    return answer


def _chosen_first(
    cards: list[_Card],
    chosen: Sequence[CardId],
    taken: Mapping[CardId, int],
    size: int,
    take: Callable[[_Card, int], list[SlotId]],
) -> list[SlotId]:
    by_id = {card.card.card: card for card in cards}
    already = dict(taken)
    slots: list[SlotId] = []
    for card_id in chosen:
        if already.get(card_id, 0):
            already[card_id] -= 1
        elif len(slots) < size and card_id in by_id and by_id[card_id].left:
            slots += take(by_id[card_id], 1)
    return slots


def _spread(cards: list[_Card], size: int, _: Mapping[CardId, CardLoad]) -> Sequence[tuple[_Card, int]]:
    ranked = sorted(cards, key=lambda card: (card.taken, card.allocated, card.order))
    return [(card, 1) for card in _one_round(ranked, size)]


def _one_round(ranked: list[_Card], size: int) -> list[_Card]:
    """The first cards, limited to those that this container uses equally often; the next round covers the rest."""
    return [card for card in ranked[:size] if card.taken == ranked[0].taken]


def _packed(cards: list[_Card], size: int, _: Mapping[CardId, CardLoad]) -> Sequence[tuple[_Card, int]]:
    fitting = [card for card in cards if card.left >= size]
    if fitting:
        best = min(fitting, key=lambda card: (not card.taken, card.left, card.order))
        return [(best, size)]
    widest = max(cards, key=lambda card: (card.taken > 0, card.left, -card.card.index))
    return [(widest, widest.left)]


def _load(cards: list[_Card], size: int, loads: Mapping[CardId, CardLoad]) -> Sequence[tuple[_Card, int]]:
    if not loads:
        return _spread(cards, size, loads)

    def work(card: _Card) -> tuple[int, int, int]:
        load = loads.get(card.card.card)
        # In steps of ten, because smaller differences are noise, which must not outweigh the number of used slots.
        return (load.active_clients, load.utilisation_percent // 10, load.memory_percent // 10) if load else (0, 0, 0)

    ranked = sorted(cards, key=lambda card: (card.taken, work(card), card.allocated, card.order))
    return [(card, 1) for card in _one_round(ranked, size)]


def _aligned(cards: list[_Card], size: int, _: Mapping[CardId, CardLoad]) -> Sequence[tuple[_Card, int]]:
    near = [[0] * len(cards) for _ in cards]
    for a, b in itertools.combinations(range(len(cards)), 2):
        near[a][b] = near[b][a] = _nearness(cards[a], cards[b])
    fewest = min(card.taken for card in cards)
    fresh = [number for number, card in enumerate(cards) if card.taken == fewest]
    fixed = [number for number, card in enumerate(cards) if card.taken > 0]
    count = min(size, len(fresh))
    groups: Iterable[tuple[int, ...]]
    if comb(len(fresh), count) <= _MAX_COMBINATIONS:
        groups = itertools.combinations(fresh, count)
    else:
        groups = [_grown_group(seed, fresh, count, fixed, near) for seed in fresh]

    def rank(group: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
        """Less is better: close together, then few cut links that others could use, then least full."""
        inside = [*group, *(number for number in fixed if number not in group)]
        together = sum(near[a][b] for a in group for b in inside)
        cut = sum(sum(near[a]) for a in group) - together
        return -together, cut, sum(cards[a].allocated for a in group), group

    return [(cards[number], 1) for number in min(groups, key=rank)]


def _grown_group(seed: int, fresh: list[int], count: int, fixed: list[int], near: list[list[int]]) -> tuple[int, ...]:
    """The set that grows from one card by repeatedly adding the nearest card."""
    group = [seed]
    rest = {number: near[number][seed] + sum(near[number][other] for other in fixed) for number in fresh}
    del rest[seed]
    while len(group) < count:
        nearest = max(rest, key=lambda number: (rest[number], -number))
        group.append(nearest)
        del rest[nearest]
        for number in rest:
            rest[number] += near[number][nearest]
    return tuple(sorted(group))


def _nearness(a: _Card, b: _Card) -> int:
    linked = b.card.card in a.card.nvlink_peers or a.card.card in b.card.nvlink_peers
    same_node = a.card.numa_node is not None and a.card.numa_node == b.card.numa_node
    return _NVLINK * linked + _SAME_NUMA * same_node


_PICKERS: dict[Policy, _Picker] = {
    Policy.SPREAD: _spread,
    Policy.STRICT_SPREAD: _spread,
    Policy.PACKED: _packed,
    Policy.ALIGNED: _aligned,
    Policy.LOAD: _load,
}


def violation(policy: Policy, pool: Pool, slots: Sequence[str], max_per_container: int = 0) -> str:
    """Why a container must not get these slots; empty if it may."""
    known = pool.slots
    unknown = [slot for slot in slots if slot not in known]
    if unknown:
        return f"slot {unknown[0]!r} does not exist on this node; it has {_cards_text(pool)}"
    if max_per_container and len(slots) > max_per_container:
        return (
            f"{len(slots)} slots in one container, but max-per-container is {max_per_container}; "
            "request fewer, or split them over several containers"
        )
    if policy is Policy.STRICT_SPREAD:
        cards = [known[SlotId(slot)].card for slot in slots]
        twice = next((card for card in cards if cards.count(card) > 1), None)
        if twice is not None:
            return (
                f"policy strict-spread puts every slot of a container on a different card, but of {len(slots)} "
                f"requested slots two would be on {twice}; request at most {len(pool.cards)}, or wait for free cards"
            )
    return ""


def _cards_text(pool: Pool) -> str:
    return ", ".join(f"{card.card} ({len(card.slots)} slots)" for card in pool.cards) or "no cards"
