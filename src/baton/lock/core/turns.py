"""Turns and how they change hands: asking, granting, dropping, ending, and the gangs that do so together.

What every decision is made of. Each operation keeps the books (ledgers, virtual time, phases), tells the driver what to
send, and marks the cards that must be settled afterwards; none of them decides anything.
"""

from baton.lock.core import events as ev
from baton.lock.core import quantum
from baton.lock.core.events import ClientId, Instruction, Mode
from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client, Gang, Ledger, Phase, Turn
from baton.model.ids import CardId

_SMOOTHING = 0.3
_REMEMBERED_RUNS = 256
"""Runs whose accounts are kept after their last process has gone, for the summary of `baton run`."""
_REMEMBERED_TENANTS = 1024
OTHERS = "others"
"""The tenant of what was received by those who are not remembered one by one any more."""


class Turns:
    """All cards of one machine, everybody who wants them, and what the driver is to be told."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cards: dict[CardId, Card] = {}
        self.clients: dict[ClientId, Client] = {}
        self.gangs: dict[tuple[int, str], Gang] = {}
        self.departed: dict[str, Ledger] = {}
        self.runs: dict[str, Ledger] = {}
        self.recalled: dict[ClientId, Ledger] = {}
        self._on = True
        self._mode: Mode = settings.mode
        self._quantum_s = settings.quantum_s
        self._tickets = 0
        self._out: list[Instruction] = []
        self._marked: dict[CardId, Card] = {}
        self._recorded: dict[CardId, None] = {}

    def card(self, card_id: CardId, now_s: float) -> Card:
        """The card, made on demand."""
        card = self.cards.get(card_id)
        if card is None:
            card = Card(card_id, 0, self._mode, self._quantum_s, now_s, on=self._on)
            self.cards[card_id] = card
            quantum.refresh(card, self.settings)
        return card

    def advance(self, now_s: float) -> None:
        """Bring every ledger up to date, for a reader."""
        for card in self.cards.values():
            card.advance(now_s)
            for client in card.holders.values():
                card.bill(client)
            for client in card.active.values():
                card.settle_entitlement(client)

    def _mark(self, card: Card, now_s: float) -> None:
        card.advance(now_s)
        self._marked[card.id] = card

    def _say(
        self, level: str, event: str, client: Client | None = None, card: Card | None = None, detail: str = ""
    ) -> None:
        of = card or (client.card if client else None)
        self._out.append(ev.Say(level, event, client.id if client else None, of.id if of else None, detail))

    def _notice(self, client: Client, code: str, reason: str) -> None:
        self._say("info", code, client)
        if client.extended:
            self._out.append(ev.Notice(client.id, code, reason))

    def _enqueue(self, client: Client, now_s: float) -> None:
        card = client.card
        self._mark(card, now_s)
        client.phase = Phase.WAITING
        client.requested_s = client.eligible_s = now_s
        card.waiters[client.id] = client
        if not client.parked:
            card.activate(client)

    def _dequeue(self, client: Client, now_s: float) -> None:
        card = client.card
        if card.waiters.pop(client.id, None) is not None:
            waited_s = now_s - client.requested_s
            client.ledger.waited_s += waited_s
            client.ledger.longest_wait_s = max(client.ledger.longest_wait_s, waited_s)
        client.phase = Phase.IDLE
        card.deactivate(client)

    def _begin_turn(self, client: Client, now_s: float, granted_s: float) -> None:
        card = client.card
        card.advance(now_s)
        client.phase = Phase.HOLDING
        client.turn = Turn(granted_s, card.work_s, *card.plan(client), paging=card.last_holder != client.id)
        card.holders[client.id] = client
        client.ledger.grants += 1
        if card.last_holder != client.id:
            card.switches += 1
        self._recorded[card.id] = None

    def _end_turn(self, client: Client, now_s: float) -> None:
        card = client.card
        card.bill(client)
        card.settle_due(client)
        turn = client.turn
        assert turn is not None
        if turn.dropped_s is not None:
            card.release_s += _SMOOTHING * (now_s - turn.dropped_s - card.release_s)
        # A first turn finds nothing to bring back, and tells nothing about those to come.
        if card.exclusive and card.last_holder != client.id and client.ledger.grants > 1:
            paged_s = quantum.page_in_s(card, client, self.settings)
            if paged_s is not None:
                quantum.learn(card, paged_s, self.settings)
        card.last_holder = client.id
        client.turn = None
        client.phase = Phase.IDLE
        card.holders.pop(client.id, None)
        card.deactivate(client)
        self._recorded[card.id] = None

    def _grant(self, client: Client, now_s: float) -> None:
        card = client.card
        card.waiters.pop(client.id, None)
        waited_s = now_s - client.requested_s
        client.ledger.waited_s += waited_s
        client.ledger.longest_wait_s = max(client.ledger.longest_wait_s, waited_s)
        self._begin_turn(client, now_s, now_s)
        self._out.append(ev.Grant(client.id))
        if not card.exclusive:
            return
        for gang in self.gangs.values():
            if gang is not client.gang and any(m.card is card and m.phase is Phase.IDLE for m in gang.members.values()):
                for member in gang.members.values():
                    # Its card was lent and is taken now; a gang does not go on with a part.
                    if member.phase is Phase.HOLDING:
                        self._drop(member, now_s)

    def _drop(self, client: Client, now_s: float) -> None:
        members = client.gang.members.values() if client.gang is not None else (client,)
        for member in list(members):
            turn = member.turn
            if turn is None or member.phase is not Phase.HOLDING:
                continue
            turn.dropped_s = now_s
            member.phase = Phase.DROPPING
            member.ledger.drops += 1
            self._mark(member.card, now_s)
            self._out.append(ev.Drop(member.id))

    def _remove(self, client: Client, now_s: float) -> None:
        card = client.card
        self._mark(card, now_s)
        if client.owns():
            self._end_turn(client, now_s)
        elif client.phase is Phase.WAITING:
            self._dequeue(client, now_s)
        gang = client.gang
        if gang is not None:
            gang.members.pop(client.id, None)
            gang.formed_s = now_s
            self._reconsider(gang, now_s)
            if not gang.members:
                del self.gangs[gang.key]
        card.limited.pop(client.id, None)
        card.clients.pop(client.id, None)
        self.clients.pop(client.id, None)
        card.departed.add(client.ledger)
        self.depart(client.tenant, client.ledger)
        if client.run:
            self.runs.setdefault(client.run, Ledger()).add(client.ledger)
            if len(self.runs) > _REMEMBERED_RUNS:
                del self.runs[next(iter(self.runs))]

    def depart(self, tenant: str, ledger: Ledger) -> None:
        """Book for good what a client received. A pod names its tenant itself, so their number is bounded: whoever was
        here longest ago is counted among the others."""
        total = self.departed.pop(tenant, None) or Ledger()
        total.add(ledger)
        self.departed[tenant] = total
        while len(self.departed) > _REMEMBERED_TENANTS:
            eldest = next(name for name in self.departed if name != OTHERS)
            self.departed.setdefault(OTHERS, Ledger()).add(self.departed.pop(eldest))

    def _request_gang(self, gang: Gang, now_s: float) -> None:
        if not gang.requested:
            gang.requested = True
            self._tickets += 1
            gang.ticket = self._tickets
        for member in gang.members.values():
            self._mark(member.card, now_s)
            if member.phase is Phase.IDLE and member.card.on:
                self._enqueue(member, now_s)

    def _withdraw_gang(self, gang: Gang, now_s: float) -> None:
        for member in gang.members.values():
            if member.phase is Phase.WAITING:
                self._mark(member.card, now_s)
                self._dequeue(member, now_s)
        self._reconsider(gang, now_s)

    def _reconsider(self, gang: Gang, now_s: float) -> None:
        """Its members or their cards changed: whether it is due must be seen anew."""
        gang.requested = gang.requested and any(m.phase is Phase.WAITING for m in gang.members.values())
        self._set_due(gang, False, now_s)

    def _set_due(self, gang: Gang, due: bool, now_s: float) -> None:
        """Which cards are kept free depends on every gang that is due, so all their cards are looked at again."""
        if gang.due == due:
            return
        gang.due = due
        for other in self.gangs.values():
            for member in other.members.values():
                self._mark(member.card, now_s)
