"""Several cards at once, all or none.

A gang is due when its turn has come on every one of its cards: nobody who waits there has received less, and neither
has the holder. From then on its cards are kept free as they drain, and it is granted all of them in one step. A gang
never holds one card while it waits for another, and among gangs that want the same card only the one with the lowest
ticket may keep cards free; so there is no circle of waiting. Because being due is decided by what was received on each
card, single clients lose nothing to a gang that has few rivals elsewhere; because a gang that waits past its bound
is due in any case, they cannot keep it out either.
"""

from baton.lock.core import order
from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client, Gang, Phase


def complete(gang: Gang, now_s: float, settings: Settings) -> bool:
    """All members are connected, or the missing ones were given time enough."""
    return len(gang.members) >= gang.size or now_s - gang.formed_s >= settings.gang_grace_s


def comes_due(gang: Gang, now_s: float, settings: Settings) -> bool:
    """Whether the gang's turn has come."""
    if not gang.requested or not complete(gang, now_s, settings):
        return False
    if any(member.phase is Phase.DROPPING for member in gang.members.values()):
        return False
    waiting = [member for member in gang.members.values() if member.phase is Phase.WAITING and member.card.on]
    if not waiting or any(not order.eligible(member.card, member) for member in waiting):
        return False
    if any(order.overdue(member.card, member, now_s, settings) for member in waiting):
        return True
    opening = False
    for member in waiting:
        card = member.card
        if not card.exclusive:
            pace_s, least = order.pace(card, settings, member)
            if pace_s and member.vtime > least + 1e-9:
                return False
            opening = True
            continue
        for rival in card.waiters.values():
            if rival.gang is None and order.eligible(card, rival) and _precedes(rival, member):
                return False
        held = False
        for holder in card.holders.values():
            if holder.gang is gang or holder.phase is Phase.DROPPING:
                continue
            if not order.outranks(card, member, holder, now_s, settings):
                return False
            held = held or (holder.turn is not None and now_s < holder.turn.granted_s + card.quantum_s)
        opening = opening or not held
    return opening


def _precedes(rival: Client, member: Client) -> bool:
    if rival.terms.priority != member.terms.priority:
        return rival.terms.priority > member.terms.priority
    return rival.vtime < member.vtime


def leads(gang: Gang) -> bool:
    """No due gang with a lower ticket wants one of its cards."""
    for member in gang.members.values():
        for rival in member.card.waiters.values():
            other = rival.gang
            if other is not None and other is not gang and other.due and other.ticket < gang.ticket:
                return False
    return True


def reservation(card: Card) -> Client | None:
    """The gang member for which the card is kept free."""
    first: Client | None = None
    for client in card.waiters.values():
        gang = client.gang
        if gang is None or not gang.due:
            continue
        if first is None or first.gang is None or gang.ticket < first.gang.ticket:
            first = client
    return first if first is not None and first.gang is not None and leads(first.gang) else None


def grantable(gang: Gang) -> bool:
    """Whether every card that the gang waits for can be given to it in this instant."""
    for member in gang.members.values():
        if member.phase is Phase.DROPPING:
            return False
        if member.phase is not Phase.WAITING:
            continue
        card = member.card
        if not card.on:
            continue
        if card.exclusive and (card.holders or card.ghosts):
            return False
        if not order.eligible(card, member):
            return False
    return leads(gang)
