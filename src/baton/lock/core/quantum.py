"""How long a turn lasts.

The cost of a switch is the time in which the next client pages its working set back in, plus a little for the switch
itself. The time in which the previous client finishes its work is not a cost: the GPU is busy, and that client is
billed for it. The quantum is the cost divided by the share of time that switching may take, so it is long where
gigabytes must move and short where nothing must; with many clients it is shorter. A turn is a client's part of a round
of such quanta. The cost comes from the best source available: bytes measured on the link at the beginning of turns,
excess synchronisation time in the clients' reports, or, before anything was measured, the size of the working sets.
"""

import math

from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client

_SMOOTHING = 0.3


def learn(card: Card, paged_s: float, settings: Settings) -> None:
    """Take in the paging time of one more switch."""
    cost_s, known_s = settings.handover_s + paged_s, card.switch_cost_s
    card.switch_cost_s = cost_s if known_s is None else known_s + _SMOOTHING * (cost_s - known_s)


def page_in_s(card: Card, client: Client, settings: Settings) -> float | None:
    """How long the client paged at the beginning of its turn; None if that could not be measured."""
    turn = client.turn
    if turn is None:
        return None
    if card.pcie_bytes is not None:
        return turn.paged_bytes / link_rate(card, settings)
    if client.extended and client.solo_sync_s is not None:
        return turn.excess_sync_s
    return None


def link_rate(card: Card, settings: Settings) -> float:
    """Bytes per second that paging moves: the given value, or the fastest measured, or the default."""
    return card.link_bytes_per_s or card.link_peak_bytes_per_s or settings.link_bytes_per_s


def expected_cost_s(card: Card, settings: Settings) -> float | None:
    """The cost of a switch expected from the sizes alone; None when a working set is unknown."""
    total = largest = 0
    for client in card.active.values():
        size = client.need_bytes
        if size is None:
            return None
        total += size
        if size > largest:
            largest = size
    if card.capacity_bytes and total <= card.capacity_bytes * settings.full_above:
        return settings.handover_s
    # The same amount moves out and in, and both share the link.
    return settings.handover_s + 2 * largest / link_rate(card, settings)


def refresh(card: Card, settings: Settings) -> None:
    """Set the card's quantum and idle time from what is known now."""
    if card.active:
        cost_s = card.switch_cost_s
        # While the card thrashes although everything should fit, the sizes are not reliable.
        expected_s = expected_cost_s(card, settings) if card.clock_s >= card.thrash_until_s else None
        if cost_s is None or (expected_s is not None and expected_s <= settings.handover_s):
            cost_s = expected_s
        card.cost_s = cost_s
    else:
        # Between two turns there may be no active client for a moment; the cost stays the same.
        cost_s = card.cost_s
    if card.fixed_quantum_s is not None:
        card.quantum_s = card.fixed_quantum_s
    elif cost_s is None:
        card.quantum_s = settings.default_quantum_s
    else:
        shared_s = max(cost_s / settings.switch_share / _crowd(card), settings.slice_switches * cost_s)
        card.quantum_s = min(max(shared_s, settings.min_quantum_s), settings.max_quantum_s)
    if settings.idle_s is not None:
        card.idle_s = settings.idle_s
    elif cost_s is None:
        card.idle_s = settings.max_idle_s
    else:
        card.idle_s = min(max(cost_s, settings.min_idle_s), settings.max_idle_s)


def _crowd(card: Card) -> float:
    """How much shorter the quantum is than with two clients, because each waits for the turns of all others.

    The square root is a compromise between a constant share of switching and a constant wait.
    """
    return math.sqrt(max(1, len(card.active) - 1))


def shortest_turn_s(card: Card, holder: Client, settings: Settings) -> float:
    """The shortest turn, given when a higher priority, a due gang or a compute window wants the card."""
    least_s = max(card.quantum_s / 10, min(settings.min_quantum_s, card.quantum_s))
    return min(least_s, turn_s(card, holder, settings))


def turn_s(card: Card, holder: Client, settings: Settings) -> float:
    """How long a turn lasts while other clients wait."""
    length_s = _part_of_round_s(card, holder, settings)
    if not card.limited or card.window_s <= 0:
        return length_s
    smallest = min((c.quota.share for c in card.limited.values() if c.quota and c.id in card.active), default=1.0)
    return max(min(length_s, smallest * card.window_s), min(settings.min_quantum_s, length_s) / 10)


def _part_of_round_s(card: Card, holder: Client, settings: Settings) -> float:
    """A round has one quantum per client and gives each client one turn, in proportion to its weight.

    The client's earlier overrun is deducted from the turn instead of changing the order: a regular round keeps every
    share to within a quarter of the round's length over any period. No turn is too short to be worth its switch.
    """
    part_s = card.round() * holder.weight if card.active else card.quantum_s
    if holder.turn is not None:
        part_s -= min(holder.turn.debt_s, part_s / 2)
    worth_s = settings.slice_switches * (card.cost_s or settings.handover_s)
    return max(part_s, min(card.quantum_s / 10 if card.fixed_quantum_s else card.quantum_s, worth_s))
