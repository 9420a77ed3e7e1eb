"""A machine of well-behaved workers in virtual time, with separate accounts of when each ran and how long it waited.

A worker asks, runs when granted, releases some time after DROP_LOCK, and asks again at once; or it runs in bursts with
pauses between them. The time it received is integrated here, from its point of view: a second on a card on which `n`
workers run counts as `1/n`.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.lock.core import events as ev
from baton.lock.core.events import ClientId, Terms
from baton.lock.core.machine import LockCore
from baton.lock.core.settings import Settings
from baton.model.ids import CardId

GIB = 2**30


@dataclass(eq=False)
class Worker:
    """One process on one card, or, with a gang, one of its connections."""

    id: ClientId
    card: CardId
    terms: Terms
    release_s: float
    burst_s: float | None = None
    pause_s: float = 0.0
    gang: str = ""
    owns: bool = False
    asked_s: float | None = None
    turn: int = 0
    received_s: float = 0.0
    waits: list[float] = field(default_factory=list)
    grants: int = 0


class Machine:
    """A core and its workers; `run` lets virtual time pass."""

    def __init__(self, settings: Settings, cards: int = 1, capacity_bytes: int = 16 * GIB) -> None:
        self.core = LockCore(settings)
        self.now_s = 0.0
        self.events = 0
        self.workers: dict[ClientId, Worker] = {}
        self.cards = [CardId(f"GPU-{n}") for n in range(cards)]
        self.on_grant: Callable[[Worker], None] = lambda _: None
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = itertools.count()
        self._ids = itertools.count(1)
        for card in self.cards:
            self.feed(ev.CardAdded(card, capacity_bytes))

    def add(
        self,
        terms: Terms = Terms(),
        card: int = 0,
        memory_bytes: int = 12 * GIB,
        release_s: float = 0.001,
        burst_s: float | None = None,
        pause_s: float = 0.0,
    ) -> Worker:
        """A worker that starts at once."""
        worker = Worker(ClientId(next(self._ids)), self.cards[card], terms, release_s, burst_s, pause_s)
        self.workers[worker.id] = worker
        self.feed(ev.Joined(worker.id, worker.card, worker.id, extended=True, terms=terms))
        self.feed(ev.Reported(worker.id, memory_bytes))
        self.ask(worker)
        return worker

    def add_gang(self, cards: list[int], terms: Terms = Terms(), release_s: float = 0.001) -> list[Worker]:
        """A process that needs several cards at once."""
        key = next(self._ids)
        members = []
        for card in cards:
            worker = Worker(ClientId(next(self._ids)), self.cards[card], terms, release_s, gang=str(key))
            self.workers[worker.id] = worker
            self.feed(ev.Joined(worker.id, worker.card, key, extended=True))
            self.feed(ev.Described(worker.id, terms=terms, gang="g", gang_size=len(cards)))
            self.feed(ev.Reported(worker.id, 12 * GIB))
            members.append(worker)
        self.ask(members[0])
        return members

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when_s, next(self._ties), what))

    def ask(self, worker: Worker) -> None:
        if worker.id not in self.workers or worker.owns or worker.asked_s is not None:
            return
        for mate in self.mates(worker):
            if mate.asked_s is None and not mate.owns:
                mate.asked_s = self.now_s
        self.feed(ev.Requested(worker.id))

    def mates(self, worker: Worker) -> list[Worker]:
        return [w for w in self.workers.values() if w is worker or (worker.gang and w.gang == worker.gang)]

    def feed(self, event: ev.Event) -> None:
        self.events += 1
        for instruction in self.core.handle(event, self.now_s):
            if isinstance(instruction, ev.Grant):
                self._granted(self.workers[instruction.client])
            elif isinstance(instruction, ev.Drop):
                worker = self.workers[instruction.client]
                turn = worker.turn
                self.at(self.now_s + worker.release_s, lambda w=worker, t=turn: self._let_go(w, t, 0.0))  # type: ignore[misc]  # mypy cannot infer a lambda with a default

    def _granted(self, worker: Worker) -> None:
        if self.core.cards[worker.card].exclusive:
            others = [w.id for w in self.workers.values() if w.owns and w.card == worker.card]
            assert not others, f"{worker.id} was granted {worker.card} while {others} hold it"
        worker.owns = True
        worker.turn += 1
        worker.grants += 1
        if worker.asked_s is not None:
            worker.waits.append(self.now_s - worker.asked_s)
        worker.asked_s = None
        self.on_grant(worker)
        if worker.burst_s is not None:
            turn, pause_s = worker.turn, worker.pause_s
            self.at(self.now_s + worker.burst_s, lambda: self._let_go(worker, turn, pause_s))

    def _let_go(self, worker: Worker, turn: int, pause_s: float) -> None:
        if not worker.owns or worker.turn != turn or worker.id not in self.workers:
            return
        worker.owns = False
        self.feed(ev.Released(worker.id))
        if pause_s:
            self.at(self.now_s + pause_s, lambda: self.ask(worker))
        else:
            self.ask(worker)

    def leave(self, worker: Worker) -> None:
        del self.workers[worker.id]
        self.feed(ev.Left(worker.id))

    def run(self, for_s: float) -> None:
        """Let time pass, event by event."""
        end_s = self.now_s + for_s
        still = 0
        while True:
            deadline_s = self.core.next_deadline()
            next_s = self._agenda[0][0] if self._agenda else end_s
            target_s = min(end_s, next_s, end_s if deadline_s is None else max(deadline_s, self.now_s))
            still = still + 1 if target_s == self.now_s else 0
            assert still < 1000, "virtual time stands still"
            self._pass(target_s)
            if target_s >= end_s:
                return
            if self._agenda and self._agenda[0][0] <= self.now_s:
                heapq.heappop(self._agenda)[2]()
            else:
                self.feed(ev.Ticked())

    def _pass(self, until_s: float) -> None:
        elapsed_s = until_s - self.now_s
        self.now_s = until_s
        if elapsed_s <= 0:
            return
        running: dict[CardId, list[Worker]] = {}
        for worker in self.workers.values():
            if worker.owns:
                running.setdefault(worker.card, []).append(worker)
        for owners in running.values():
            for worker in owners:
                worker.received_s += elapsed_s / len(owners)

    def shares(self) -> list[float]:
        """The time that each worker received, in percent."""
        return [100 * worker.received_s / self.now_s for worker in self.workers.values()]
