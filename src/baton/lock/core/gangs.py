"""Gangs: several cards at once, all or none.

A gang is due when its turn has come on all of its cards: on none of them has a waiter or the holder received less. From
then on each of its cards is kept free once it is released, and all are granted in one step. A gang never holds one card
while it waits for another, and among gangs that want the same card only the one with the lowest ticket may keep cards
free, so gangs cannot deadlock. Whether a gang is due depends on the time received on each card, so single clients lose
nothing to a gang that has few rivals elsewhere. A gang that waits past its bound is due in any case, so single clients
cannot starve it.
"""

from baton.lock.core import precedence
from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client, Gang, Phase


def complete(gang: Gang, now_s: float, settings: Settings) -> bool:
    """Whether all members are connected, or the missing ones have had enough time."""
    return len(gang.members) >= gang.size or now_s - gang.formed_s >= settings.gang_grace_s


def comes_due(gang: Gang, now_s: float, settings: Settings) -> bool:
    """Whether the gang's turn has come."""
    if not gang.requested or not complete(gang, now_s, settings):
        return False
    if any(member.phase is Phase.DROPPING for member in gang.members.values()):
        return False
    waiting = [member for member in gang.members.values() if member.phase is Phase.WAITING and member.card.on]
    if not waiting or any(not precedence.eligible(member.card, member) for member in waiting):
        return False
    if any(precedence.overdue(member.card, member, now_s, settings) for member in waiting):
        return True
    opening = False
    for member in waiting:
        card = member.card
        if not card.exclusive:
            pace_s, least = precedence.pace(card, settings, member)
            if pace_s and member.vtime > least + 1e-9:
                return False
            opening = True
            continue
        for rival in card.waiters.values():
            if rival.gang is None and precedence.eligible(card, rival) and _precedes(rival, member):
                return False
        held = False
        for holder in card.holders.values():
            if holder.gang is gang or holder.phase is Phase.DROPPING:
                continue
            if not precedence.outranks(card, member, holder, now_s, settings):
                return False
            held = held or (holder.turn is not None and now_s < holder.turn.granted_s + card.quantum_s)
        opening = opening or not held
    return opening


def _precedes(rival: Client, member: Client) -> bool:
    if rival.terms.priority != member.terms.priority:
        return rival.terms.priority > member.terms.priority
    return rival.vtime < member.vtime


def leads(gang: Gang) -> bool:
    """Whether no due gang with a lower ticket wants one of its cards."""
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
    """Whether every card that the gang waits for can be granted to it now."""
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
        if not precedence.eligible(card, member):
            return False
    return leads(gang)
