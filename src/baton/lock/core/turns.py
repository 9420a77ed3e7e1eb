"""Turns and how they change hands: asking, granting, dropping and ending, for single clients and for gangs.

Each operation keeps ledgers, virtual times and phases up to date, adds instructions to the effects, and marks the cards
that must be scheduled afterwards. `scheduling` decides which operations happen.
"""

from baton.lock.core import events as ev
from baton.lock.core import quantum
from baton.lock.core.departed import Departed
from baton.lock.core.effects import Effects
from baton.lock.core.registry import Registry
from baton.lock.core.settings import Settings
from baton.lock.core.state import Client, Gang, Phase, Turn

_SMOOTHING = 0.3


class Turns:
    """The operations that change who holds a card and who waits for it."""

    def __init__(self, settings: Settings, registry: Registry, departed: Departed, effects: Effects) -> None:
        self._settings = settings
        self._registry = registry
        self._departed = departed
        self._effects = effects
        self._tickets = 0

    def enqueue(self, client: Client, now_s: float) -> None:
        """The client waits for its card."""
        card = client.card
        self._effects.mark(card, now_s)
        client.phase = Phase.WAITING
        client.requested_s = client.eligible_s = now_s
        card.waiters[client.id] = client
        if not client.parked:
            card.activate(client)

    def dequeue(self, client: Client, now_s: float) -> None:
        """The client no longer waits."""
        card = client.card
        if card.waiters.pop(client.id, None) is not None:
            waited_s = now_s - client.requested_s
            client.ledger.waited_s += waited_s
            client.ledger.longest_wait_s = max(client.ledger.longest_wait_s, waited_s)
        client.phase = Phase.IDLE
        card.deactivate(client)

    def begin(self, client: Client, now_s: float, granted_s: float) -> None:
        """The client holds its card from now on; its turn counts from `granted_s`."""
        card = client.card
        card.advance(now_s)
        client.phase = Phase.HOLDING
        client.turn = Turn(granted_s, card.work_s, *card.plan(client), paging=card.last_holder != client.id)
        card.holders[client.id] = client
        client.ledger.grants += 1
        if card.last_holder != client.id:
            card.switches += 1
        self._effects.recorded[card.id] = None

    def end(self, client: Client, now_s: float) -> None:
        """The client no longer holds its card: bill its turn and learn what it cost."""
        card = client.card
        card.bill(client)
        card.settle_due(client)
        turn = client.turn
        assert turn is not None
        if turn.dropped_s is not None:
            card.release_s += _SMOOTHING * (now_s - turn.dropped_s - card.release_s)
        # A first turn has nothing to page in, so it says nothing about the cost of later turns.
        if card.exclusive and card.last_holder != client.id and client.ledger.grants > 1:
            paged_s = quantum.page_in_s(card, client, self._settings)
            if paged_s is not None:
                quantum.learn(card, paged_s, self._settings)
        card.last_holder = client.id
        client.turn = None
        client.phase = Phase.IDLE
        card.holders.pop(client.id, None)
        card.deactivate(client)
        self._effects.recorded[card.id] = None

    def grant(self, client: Client, now_s: float) -> None:
        """Give a waiter its card."""
        card = client.card
        card.waiters.pop(client.id, None)
        waited_s = now_s - client.requested_s
        client.ledger.waited_s += waited_s
        client.ledger.longest_wait_s = max(client.ledger.longest_wait_s, waited_s)
        self.begin(client, now_s, now_s)
        self._effects.instructions.append(ev.Grant(client.id))
        if not card.exclusive:
            return
        for gang in self._registry.gangs.values():
            if gang is not client.gang and any(m.card is card and m.phase is Phase.IDLE for m in gang.members.values()):
                for member in gang.members.values():
                    # One of its cards now belongs to another client; a gang does not run on the remaining ones.
                    if member.phase is Phase.HOLDING:
                        self.drop(member, now_s)

    def drop(self, client: Client, now_s: float) -> None:
        """Ask a holder, and the other holders of its gang, to release."""
        members = client.gang.members.values() if client.gang is not None else (client,)
        for member in list(members):
            turn = member.turn
            if turn is None or member.phase is not Phase.HOLDING:
                continue
            turn.dropped_s = now_s
            member.phase = Phase.DROPPING
            member.ledger.drops += 1
            self._effects.mark(member.card, now_s)
            self._effects.instructions.append(ev.Drop(member.id))

    def remove(self, client: Client, now_s: float) -> None:
        """The client is gone: end its turn or its wait, and keep its ledger."""
        card = client.card
        self._effects.mark(card, now_s)
        if client.owns():
            self.end(client, now_s)
        elif client.phase is Phase.WAITING:
            self.dequeue(client, now_s)
        gang = client.gang
        if gang is not None:
            gang.members.pop(client.id, None)
            gang.formed_s = now_s
            self.reconsider(gang, now_s)
        self._registry.remove(client)
        self._departed.add(client)

    def request_gang(self, gang: Gang, now_s: float) -> None:
        """All members of a gang wait for their cards."""
        if not gang.requested:
            gang.requested = True
            self._tickets += 1
            gang.ticket = self._tickets
        for member in gang.members.values():
            self._effects.mark(member.card, now_s)
            if member.phase is Phase.IDLE and member.card.on:
                self.enqueue(member, now_s)

    def withdraw_gang(self, gang: Gang, now_s: float) -> None:
        """No member of a gang waits any longer."""
        for member in gang.members.values():
            if member.phase is Phase.WAITING:
                self._effects.mark(member.card, now_s)
                self.dequeue(member, now_s)
        self.reconsider(gang, now_s)

    def reconsider(self, gang: Gang, now_s: float) -> None:
        """Its members or their cards have changed: check again whether the gang still waits, and whether it is due."""
        gang.requested = gang.requested and any(m.phase is Phase.WAITING for m in gang.members.values())
        self.set_due(gang, False, now_s)

    def set_due(self, gang: Gang, due: bool, now_s: float) -> None:
        """Which cards are kept free depends on all due gangs, so the cards of all gangs are scheduled again."""
        if gang.due == due:
            return
        gang.due = due
        for other in self._registry.gangs.values():
            for member in other.members.values():
                self._effects.mark(member.card, now_s)
