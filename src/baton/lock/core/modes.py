"""Whether the clients of a card run together or in turns.

In automatic mode a card is concurrent while the working sets of its active clients fit, and exclusive when they do
not. The two thresholds differ, and a client that has just paused still counts, so that the card does not flap. Sizes
can mislead, so behaviour has the last word: when several clients run, the link is busy paging and the clients are
slower than each was alone, the card becomes exclusive for a while, longer each time it happens again.
"""

from baton.lock.core.events import Mode
from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client


def demand_bytes(card: Card, now_s: float, settings: Settings) -> int | None:
    """Sum of the working sets that count; None when one of them is unknown."""
    total = 0
    recent_s = min(2 * card.quantum_s, settings.max_quantum_s) if card.exclusive else 0.0
    for client in card.clients.values():
        if client.parked:
            continue
        if client.id not in card.active and now_s - client.last_active_s >= recent_s:
            continue
        size = client.need_bytes
        if size is None:
            return None
        total += size
    return total


def wants_exclusive(card: Card, now_s: float, settings: Settings) -> bool:
    """Whether the card should be in exclusive mode now."""
    if card.mode is Mode.SERIAL:
        return True
    if card.mode is Mode.CONCURRENT:
        return False
    if card.ghosts:
        # Until the holders of an earlier daemon have resumed, too little is known to justify a change.
        return card.exclusive
    if now_s < card.thrash_until_s:
        return True
    demand = demand_bytes(card, now_s, settings)
    if demand is None or (demand > 0 and card.capacity_bytes == 0):
        return True
    return demand > card.capacity_bytes * (settings.fits_below if card.exclusive else settings.full_above)


def observe_report(card: Card, client: Client, launches: int, sync_s: float, settings: Settings) -> None:
    """Learn from one report: of a client alone it is the reference, beside others it may be a sign of thrashing."""
    if launches <= 0:
        return
    per_launch_s = sync_s / launches
    if len(card.holders) <= 1:
        turn = client.turn
        # Where the link's counters are known they say what a turn paged; a report may still concern the previous turn.
        if turn is not None and turn.paging and client.solo_sync_s is not None and card.pcie_bytes is None:
            excess_s = sync_s - launches * client.solo_sync_s
            if per_launch_s > 2 * client.solo_sync_s:
                turn.excess_sync_s += excess_s
            else:
                turn.paging = False
        if client.solo_sync_s is None or per_launch_s < client.solo_sync_s:
            client.solo_sync_s = per_launch_s
        client.slow_reports = 0
        return
    bound_s = (client.solo_sync_s or 0.0) * settings.thrash_slowdown * len(card.holders)
    slow = client.solo_sync_s is not None and per_launch_s > max(bound_s, 1e-6)
    client.slow_reports = client.slow_reports + 1 if slow else 0


def thrashes(card: Card, settings: Settings) -> bool:
    """Whether the measurements while several clients ran mean that they evict each other."""
    if card.exclusive or len(card.holders) < 2:
        return False
    slow = sum(client.slow_reports >= settings.thrash_samples for client in card.holders.values())
    if card.pcie_bytes is None:
        # One slow client may have reached heavier kernels. It is thrashing if most clients slow down at once, or if
        # all clients with a reference slow down beside a newcomer that has never run alone.
        known = sum(client.solo_sync_s is not None for client in card.holders.values())
        beside_newcomer = slow > 0 and slow == known < len(card.holders)
        return beside_newcomer or (slow >= 2 and slow * 2 > len(card.holders))
    judged = any(client.solo_sync_s is not None for client in card.holders.values())
    return card.thrash_count >= settings.thrash_samples and (slow > 0 or not judged)


def observe_link(card: Card, rate: float, link_rate: float, settings: Settings) -> None:
    """Count consecutive samples in which the link was busy while several clients ran."""
    busy = len(card.holders) >= 2 and rate > settings.thrash_rate * link_rate
    card.thrash_count = card.thrash_count + 1 if busy else 0


def penalise(card: Card, now_s: float, settings: Settings) -> float:
    """Make the card exclusive for a while; returns for how long."""
    # The current quantum was chosen for sizes that proved wrong.
    quantum_s = max(card.quantum_s, settings.default_quantum_s) if card.switch_cost_s is None else card.quantum_s
    penalty_s = settings.thrash_penalty_quanta * quantum_s * 2.0 ** min(card.thrash_spells, 6)
    card.thrash_spells += 1
    card.thrash_until_s = now_s + penalty_s
    card.thrash_count = 0
    for client in card.clients.values():
        client.slow_reports = 0
    return penalty_s
