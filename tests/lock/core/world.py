"""A random world around the lock's core: clients that obey, delay, die, lie and resume; cards that fill up.

The driver keeps track of what every client *believes* (a client owns the card from LOCK_OK until it sends
LOCK_RELEASED). It checks the core's promises against that, and never against the core's state, except when it checks
that this state is well-formed. Everything follows from one seed.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from baton.lock.core import events as ev
from baton.lock.core import gangs, precedence
from baton.lock.core.events import ClientId, Event, Mode, Priority, Terms
from baton.lock.core.machine import LockCore
from baton.lock.core.settings import Settings
from baton.lock.core.state import Phase
from baton.model.ids import CardId
from tests.effort import scaled

EVENTS = scaled(1_000_000)
"""How many random events the property tests feed to the core in total."""

GIB = 2**30
IMPATIENT = Settings(quantum_s=1.0, drop_grace_s=3.0, revoke_s=2.0, measure=ev.Measure.DISCONNECT)


@dataclass
class Believer:
    """What a client knows of itself."""

    id: ClientId
    card: CardId
    pid: int
    owns: bool = False
    asked: bool = False
    dropped_s: float | None = None
    obeys: bool = True
    gang: str = ""
    extended: bool = False


@dataclass
class World:
    """One core, its clients, and the story so far."""

    seed: int
    cards: int = 2
    settings: Settings = IMPATIENT
    now_s: float = 1000.0
    clients: dict[ClientId, Believer] = field(default_factory=dict)
    gone: set[ClientId] = field(default_factory=set)
    """Connections that are broken without the core's knowledge: frames sent to them are lost."""
    story: deque[tuple[float, Event]] = field(default_factory=lambda: deque(maxlen=40))
    events: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.core = LockCore(self.settings)
        self.ids = 0
        self.gang_ids = 0
        self.names = [CardId(f"GPU-{n}") for n in range(self.cards)]
        self.still = 0
        for name in self.names:
            self.feed(ev.CardAdded(name, 16 * GIB))

    def fail(self, why: str) -> None:
        story = "\n".join(f"  {at:.6f} {event}" for at, event in self.story)
        raise AssertionError(f"seed {self.seed}, event {self.events}: {why}\n{story}")

    def feed(self, event: Event) -> None:
        """Give one event to the core; carry out and check its instructions."""
        self.story.append((self.now_s, event))
        self.events += 1
        try:
            instructions = self.core.handle(event, self.now_s)
        except Exception as error:
            self.fail(f"raised {error!r}")
            raise
        granted: list[Believer] = []
        recorded: set[CardId] = set()
        for instruction in instructions:
            kind = type(instruction)
            if kind is ev.Record:
                recorded.add(instruction.card)  # type: ignore[attr-defined]  # every instruction here has a card
                continue
            client = getattr(instruction, "client", None)
            believer = self.clients.get(client) if client is not None else None
            if kind is ev.Grant:
                if client in self.gone:
                    continue
                if believer is None:
                    self.fail(f"granted to {client}, which does not exist")
                    continue
                if believer.card not in recorded:
                    self.fail("granted before the journal was written")
                granted.append(believer)
                self.check_grant(believer)
                believer.owns, believer.asked, believer.dropped_s = True, False, None
            elif kind is ev.Drop and believer is not None:
                if not believer.owns:
                    self.fail(f"dropped {client}, which holds nothing")
                believer.dropped_s = self.now_s
            elif kind is ev.Close:
                self.clients.pop(ClientId(client or 0), None)
            elif kind is ev.Switch and believer is not None:
                believer.owns = believer.asked = False
                believer.dropped_s = None
        self.check_gangs(granted)

    def check_grant(self, believer: Believer) -> None:
        """When an exclusive card is granted, no other client may believe that it owns the card."""
        card = self.core.cards[believer.card]
        if believer.owns:
            self.fail(f"{believer.id} was granted twice")
        if not card.exclusive:
            return
        for other in self.clients.values():
            if other.card == believer.card and other.owns and other is not believer:
                self.fail(f"{believer.id} and {other.id} hold {believer.card} together")

    def check_gangs(self, granted: list[Believer]) -> None:
        """A gang is granted as a whole, in one answer."""
        for believer in granted:
            if not believer.gang:
                continue
            if any(b.gang == believer.gang and b.owns and b not in granted for b in self.clients.values()):
                continue  # it had released one card for a while and takes it again
            missing = [
                other.id
                for other in self.clients.values()
                if other.gang == believer.gang and not other.owns and self.core.cards[other.card].on
            ]
            if missing:
                self.fail(f"gang {believer.gang} was granted without {missing}")

    def check_state(self) -> None:
        """The core's state is well-formed, and no card is idle while a client could run."""
        for card in self.core.cards.values():
            for client in card.clients.values():
                owns = client.id in card.holders
                waits = client.id in card.waiters
                right = {
                    Phase.IDLE: not owns and not waits,
                    Phase.WAITING: waits and not owns,
                    Phase.HOLDING: owns and not waits,
                    Phase.DROPPING: owns and not waits,
                }[client.phase]
                if not right or owns != (client.turn is not None):
                    self.fail(f"{client.id} is {client.phase} but holder={owns} waiter={waits}")
                if client.ledger.received_s < -1e-6 or client.ledger.waited_s < -1e-6:
                    self.fail(f"{client.id} has a negative account")
            strangers = (set(card.holders) | set(card.waiters) | set(card.active) | set(card.limited)) - set(
                card.clients
            )
            if strangers:
                self.fail(f"{card.id} remembers {strangers}")
            if card.on and card.exclusive and not card.holders and not card.ghosts and gangs.reservation(card) is None:
                idle = [c for c in card.waiters.values() if c.gang is None and precedence.eligible(card, c)]
                if idle:
                    self.fail(f"{card.id} idles while {[c.id for c in idle]} wait")

    def join(self, card: CardId | None = None, gang: str = "", gang_size: int = 1, terms: Terms = Terms()) -> Believer:
        self.ids += 1
        client = ClientId(self.ids)
        extended = self.random.random() < 0.8
        pid = 1000 + self.ids if not gang else int(gang)
        believer = Believer(client, card or self.random.choice(self.names), pid, extended=extended)
        believer.obeys = self.random.random() < 0.95
        self.clients[client] = believer
        self.feed(ev.Joined(client, believer.card, pid, tenant=f"t{self.ids % 3}", extended=extended, terms=terms))
        if gang:
            believer.gang = gang
            self.feed(ev.Described(client, terms=terms, gang=gang, gang_size=gang_size))
        return believer

    def join_gang(self) -> None:
        self.gang_ids += 1
        size = self.random.randint(2, max(2, len(self.names)))
        for card in self.random.sample(self.names, min(size, len(self.names))):
            self.join(card, str(1_000_000 + self.gang_ids), min(size, len(self.names)))

    def random_terms(self) -> Terms:
        pick = self.random
        return Terms(
            pick.choice([0.5, 1, 1, 2, 7]),
            pick.choice(list(Priority)),
            pick.choice([0, 0, 0, 10, 30, 70]),
            pick.choice([0, 4 * GIB]),
        )

    def tick(self, most_s: float = 5.0) -> None:
        """Let time pass until the core's next deadline, but not longer than `most_s`."""
        deadline_s = self.core.next_deadline()
        until_s = self.now_s + most_s
        if deadline_s is not None and deadline_s <= until_s:
            self.still = self.still + 1 if deadline_s <= self.now_s else 0
            if self.still > 20:
                self.fail("the timer spins")
            self.now_s = max(self.now_s, deadline_s)
            self.feed(ev.Ticked())
        else:
            self.now_s = until_s

    def obey(self, believer: Believer) -> None:
        """Answer DROP_LOCK, and ask again at once, as a busy client does."""
        believer.owns = False
        believer.dropped_s = None
        self.feed(ev.Released(believer.id))
        if believer.id in self.clients and self.random.random() < 0.8:
            self.ask(believer)

    def ask(self, believer: Believer) -> None:
        if self.core.cards[believer.card].on:
            believer.asked = True
            self.feed(ev.Requested(believer.id))

    def step(self) -> None:
        """Let one random thing happen."""
        pick = self.random
        roll = pick.random()
        if not self.clients or (roll < 0.02 and len(self.clients) < 12):
            self.join()
            return
        if roll < 0.025 and len(self.clients) < 12 and len(self.names) > 1:
            self.join_gang()
            return
        believer = self.clients[pick.choice(list(self.clients))]
        if roll < 0.30:
            self.tick(pick.choice([0.01, 0.2, 1.0, 5.0]))
        elif roll < 0.55:
            if believer.dropped_s is not None and believer.obeys:
                self.obey(believer)
            elif not believer.owns and not believer.asked:
                self.ask(believer)
            else:
                self.tick(0.05)
        elif roll < 0.70:
            dropped = [b for b in self.clients.values() if b.dropped_s is not None and b.obeys]
            if dropped:
                self.obey(pick.choice(dropped))
        elif roll < 0.78 and believer.owns:
            believer.owns, believer.dropped_s = False, None
            self.feed(ev.Released(believer.id))
        elif roll < 0.84:
            size = pick.choice([GIB, 4 * GIB, 12 * GIB])
            self.feed(ev.Reported(believer.id, size, pick.randint(0, 10**6), pick.random() * 1000))
        elif roll < 0.86:
            self.feed(ev.Sampled(believer.card, None, pick.randint(0, 10**13), {believer.pid: 2 * GIB}))
        elif roll < 0.875:
            self.clients.pop(believer.id)
            self.feed(ev.Left(believer.id))
        elif roll < 0.89:
            self.feed(ev.Parked(believer.id, pick.random() < 0.4))
        elif roll < 0.91:
            self.feed(ev.TermsSet(believer.id, self.random_terms()))
        else:
            self.odd(believer, pick.random())

    def odd(self, believer: Believer, roll: float) -> None:
        """Do something that is rare, wrong, or both."""
        pick = self.random
        card = pick.choice([None, believer.card])
        if roll < 0.1:
            self.feed(ev.ModeSet(pick.choice(list(Mode)), card))
        elif roll < 0.2:
            self.feed(ev.QuantumSet(pick.choice([None, 0.05, 1.0, 30.0]), card))
        elif roll < 0.24:
            self.feed(ev.SchedulingSet(pick.random() < 0.8, card))
        elif roll < 0.5:
            # A frame that makes no sense now: asking twice, releasing nothing, an unknown client.
            stranger = ClientId(pick.choice([0, 10**9, believer.id]))
            if stranger != believer.id or (not believer.owns and not believer.asked):
                self.feed(pick.choice([ev.Released(stranger), ev.Left(ClientId(10**9)), ev.Parked(ClientId(0), True)]))
            else:
                self.feed(ev.Requested(stranger))
        elif roll < 0.7:
            self.reconnect(believer)
        elif roll < 0.8:
            self.feed(ev.Described(believer.id, terms=self.random_terms()))
        elif roll < 0.9:
            self.feed(ev.Vanished(ClientId(10**9), believer.card))
        else:
            self.tick(100.0)

    def reconnect(self, believer: Believer) -> None:
        """Break the connection and resume under another id, sometimes before the core has noticed the loss."""
        if believer.gang:
            return
        noticed = self.random.random() < 0.5 or not self.core.cards[believer.card].on
        self.clients.pop(believer.id)
        if noticed:
            self.feed(ev.Left(believer.id))
        else:
            self.gone.add(believer.id)
        self.ids += 1
        again = Believer(ClientId(self.ids), believer.card, believer.pid, obeys=believer.obeys, extended=True)
        held, asked = believer.owns, believer.asked
        self.clients[again.id] = again
        self.feed(ev.Joined(again.id, again.card, again.pid, extended=True))
        if again.id not in self.clients or not self.core.cards[again.card].on:
            return
        # The client claims its turn only if no other client was granted the card, or there would be two holders.
        taken = any(b.owns and b.card == again.card for b in self.clients.values())
        again.owns = held and not taken
        again.asked = asked and not again.owns
        self.feed(ev.Resumed(again.id, believer.id, again.owns, again.asked, 0.1))
