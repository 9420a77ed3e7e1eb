"""Who goes next: start-time fair queuing by weighted GPU time, priority classes, and a bound for everybody.

Each client has a virtual time that grows with what it received, divided by its weight; the one with the least goes
next. A higher priority class goes before a lower one. Neither can starve anyone: a waiter whose wait exceeds its
bound is *overdue* and goes before all that are not, the longest waiting first. The bound grows with the number
of turns that others are due to have before it, so that in ordinary service nobody is ever overdue and the weights
alone decide.
"""

from baton.lock.settings import Settings
from baton.lock.state import Card, Client, Phase

Rank = tuple[int, float, float, int]


def patience_s(card: Card, client: Client, settings: Settings) -> float:
    """How long a waiter waits, while it could be served, before it is overdue."""
    total = sum(other.weight for other in card.active.values())
    return settings.patience_quanta * card.quantum_s * (1 + total / client.weight)


def rank(card: Card, client: Client, now_s: float, unit_s: float, total_weight: float) -> Rank:
    """The less the sooner. `unit_s` is the patience of a client per expected turn of the others."""
    if client.phase is Phase.WAITING and now_s - client.eligible_s > unit_s * (1 + total_weight / client.weight):
        return (0, client.eligible_s, 0.0, client.id)
    return (1, -int(client.terms.priority), card.vtime_of(client), client.id)


def eligible(card: Card, client: Client) -> bool:
    """Whether a waiter may be served now, were the card free."""
    return not client.parked and (client.quota is None or not card.throttled(client))


def best_waiter(card: Card, now_s: float, settings: Settings) -> Client | None:
    """The single waiter to serve next; gangs have their own way (see `gangs`)."""
    best: Client | None = None
    best_rank: Rank | None = None
    unit_s = settings.patience_quanta * card.quantum_s
    total = -1.0
    for client in card.waiters.values():
        if client.parked or client.gang is not None or (client.quota is not None and card.throttled(client)):
            continue
        if total < 0:
            total = sum(other.weight for other in card.active.values())
        mine = rank(card, client, now_s, unit_s, total)
        if best_rank is None or mine < best_rank:
            best, best_rank = client, mine
    return best


def overdue(card: Card, client: Client, now_s: float, settings: Settings) -> bool:
    """Whether a waiter's bound has passed."""
    return client.phase is Phase.WAITING and now_s - client.eligible_s > patience_s(card, client, settings)


def outranks(card: Card, waiter: Client, holder: Client, now_s: float, settings: Settings) -> bool:
    """Whether a waiter should have the card rather than a holder whose quantum is over."""
    if overdue(card, waiter, now_s, settings):
        return True
    if waiter.terms.priority != holder.terms.priority:
        return waiter.terms.priority > holder.terms.priority
    return waiter.vtime <= card.vtime_of(holder)


def outranked_at(card: Card, waiter: Client, holder: Client, now_s: float, settings: Settings) -> float:
    """When a waiter that does not outrank the holder yet will, if nothing else happens."""
    late_s = waiter.eligible_s + patience_s(card, waiter, settings)
    if waiter.terms.priority == holder.terms.priority:
        ahead = (waiter.vtime - card.vtime_of(holder)) * holder.weight * max(1, len(card.holders))
        late_s = min(late_s, now_s + ahead)
    return max(late_s, now_s) + 1e-6


def pace(card: Card, settings: Settings, joining: Client | None = None) -> tuple[float, float]:
    """How far a client may run ahead of its weight on a concurrent card, and the virtual time of the least served.

    Where all weights are alike everybody simply runs: the pace is 0. `joining` asks as if that client ran too.
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
