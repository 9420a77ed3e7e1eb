"""Who goes next: rounds in which weights decide how long turns are, priority classes, and a bound on every wait.

Each client has a virtual time, which grows with the time it received divided by its weight, and a virtual time at
which its next turn is due, one round after the last. Among the clients that are due in this round the first to ask goes
next, so the order of the round stays the same. An overrun makes the client's next turn shorter (see `quantum`) instead
of changing the order. A higher priority class goes before a lower one. Neither can starve a client: a waiter whose
wait exceeds its bound is *overdue* and goes before all waiters that are not, the longest wait first. The bound grows
with the number of turns that other clients are due to have before it, so in ordinary service no client is overdue and
the weights alone decide.
"""

from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client, Phase


def patience_s(card: Card, client: Client, settings: Settings) -> float:
    """How long an eligible waiter waits before it is overdue."""
    return settings.patience_quanta * (card.quantum_s + card.release_s) * (1 + card.active_weight / client.weight)


def eligible(card: Card, client: Client) -> bool:
    """Whether a waiter could be served now if the card were free."""
    return not client.parked and (client.quota is None or not card.throttled(client))


def best_waiter(card: Card, now_s: float, settings: Settings) -> Client | None:
    """The single waiter to serve next; gangs are served separately (see `gangs`).

    With many waiters this loop is most of the cost of a switch, so it is kept plain.
    """
    best_rank, least = -1, 0.0
    latest: Client | None = None
    unit_s = settings.patience_quanta * (card.quantum_s + card.release_s)
    weight = card.active_weight
    # No client is overdue before this time, so most need no further check.
    surely_fine_s = now_s - 2 * unit_s
    fine: list[Client] = []
    for client in card.waiters.values():
        if client.parked or client.gang is not None:
            continue
        if client.quota is not None and card.throttled(client):
            continue
        since_s = client.eligible_s
        if since_s < surely_fine_s and now_s - since_s > unit_s * (1 + weight / client.weight):
            if latest is None or since_s < latest.eligible_s:
                latest = client
            continue
        fine.append(client)
        rank, due = client.terms.priority, client.due
        if rank > best_rank or (rank == best_rank and due < least):
            best_rank, least = rank, due
    if latest is not None or not fine:
        return latest
    # Within half a round, the first to ask goes first. With compute limits, turns are only parts of a round.
    alike = least + (0.0 if card.limited else card.round() / 2)
    return next(client for client in fine if client.terms.priority == best_rank and client.due <= alike)


def has_eligible_waiter(card: Card) -> bool:
    """Whether any waiter could be served now if the card were free."""
    return any(eligible(card, client) for client in card.waiters.values())


def overdue(card: Card, client: Client, now_s: float, settings: Settings) -> bool:
    """Whether a waiter has waited longer than its bound."""
    return client.phase is Phase.WAITING and now_s - client.eligible_s > patience_s(card, client, settings)


def outranks(card: Card, waiter: Client, holder: Client, now_s: float, settings: Settings) -> bool:
    """Whether a waiter should get the card from a holder whose quantum is over."""
    if overdue(card, waiter, now_s, settings):
        return True
    if waiter.terms.priority != holder.terms.priority:
        return waiter.terms.priority > holder.terms.priority
    return waiter.vtime <= card.vtime_of(holder)


def outranked_at(card: Card, waiter: Client, holder: Client, now_s: float, settings: Settings) -> float:
    """When a waiter that does not outrank the holder yet will do so if no other event happens."""
    late_s = waiter.eligible_s + patience_s(card, waiter, settings)
    if waiter.terms.priority == holder.terms.priority:
        ahead = (waiter.vtime - card.vtime_of(holder)) * holder.weight * max(1, len(card.holders))
        late_s = min(late_s, now_s + ahead)
    return max(late_s, now_s) + 1e-6


def pace(card: Card, settings: Settings, joining: Client | None = None) -> tuple[float, float]:
    """How far a client may run ahead of its weight on a concurrent card, and the virtual time of the least served.

    If all weights are equal, all clients run and the pace is 0. `joining` is counted as if it ran, too.
    """
    runnable = [
        client
        for client in card.active.values()
        if client is joining
        or client.phase is Phase.HOLDING
        or (client.phase is Phase.WAITING and client.gang is None and eligible(card, client))
    ]
    if len({client.weight for client in runnable}) < 2:
        return 0.0, 0.0
    least = min(card.vtime_of(client) for client in runnable)
    return max(settings.min_quantum_s, card.quantum_s / 10), least
