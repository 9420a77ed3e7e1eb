"""The lock's state machine: `handle(event, now_s)` in, instructions out, and `next_deadline()` for the one timer.

It uses no clock, socket, thread or file. `now_s` comes from a monotonic clock and may stand still between events. No
sequence of events raises: an event that makes no sense results in a log line or in a closed connection.

An event changes the state of one or a few cards and marks them. Then every marked card is scheduled (see
`scheduling`). Scheduling one card may mark another (gangs), but never the same card twice for the same reason, so it
ends.
"""

from collections.abc import Callable
from typing import Any

from baton.lock.core import events as ev
from baton.lock.core import modes, quantum, recovery
from baton.lock.core.departed import Departed
from baton.lock.core.effects import Effects
from baton.lock.core.events import ClientId, Event, Instruction
from baton.lock.core.registry import Registry
from baton.lock.core.scheduling import CardScheduler
from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client, Gang, Phase
from baton.lock.core.turns import Turns
from baton.model.ids import CardId

_QUIET_SAMPLES = 3


class LockCore:
    """Decides about all cards of one machine and all their clients."""

    def __init__(self, settings: Settings = Settings()) -> None:
        self.settings = settings
        self.departed = Departed()
        self._registry = Registry(settings)
        self._effects = Effects()
        self._turns = Turns(settings, self._registry, self.departed, self._effects)
        self._scheduler = CardScheduler(settings, self._registry, self._turns, self._effects)
        self.cards = self._registry.cards
        self.clients = self._registry.clients
        self._handlers: dict[type[Event], Callable[[Any, float], None]] = {
            ev.CardAdded: self._card_added,
            ev.Joined: self._joined,
            ev.Described: self._described,
            ev.Requested: self._requested,
            ev.Released: self._released,
            ev.Left: self._left,
            ev.Reported: self._reported,
            ev.Resumed: self._resumed,
            ev.Recalled: self._recalled,
            ev.Vanished: self._vanished,
            ev.Sampled: self._sampled,
            ev.Ticked: self._ticked,
            ev.QuantumSet: self._quantum_set,
            ev.ModeSet: self._mode_set,
            ev.SchedulingSet: self._scheduling_set,
            ev.TermsSet: self._terms_set,
            ev.Parked: self._parked,
        }

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Handle one event; returns the instructions that follow from it, in order."""
        effects, scheduler = self._effects, self._scheduler
        effects.instructions = []
        effects.recorded.clear()
        self._handlers[type(event)](event, now_s)
        marked = effects.marked
        for card in list(marked.values()):
            # All modes first: granting a gang depends on the modes of several cards.
            scheduler.review(card, now_s)
        while marked:
            _, card = marked.popitem()
            scheduler.schedule(card, now_s)
        if effects.recorded:
            return [*(ev.Record(card) for card in effects.recorded), *effects.instructions]
        return effects.instructions

    def advance(self, now_s: float) -> None:
        """Bring every ledger up to date, for a reader."""
        self._registry.advance(now_s)

    def next_deadline(self) -> float | None:
        """When to send the next `Ticked`; None if only other events can change anything."""
        deadlines = [card.deadline_s for card in self.cards.values() if card.deadline_s is not None]
        return min(deadlines) if deadlines else None

    def _known(self, client_id: ClientId, what: str, now_s: float) -> Client | None:
        client = self.clients.get(client_id)
        if client is None:
            self._effects.instructions.append(ev.Log("debug", "unknown client", client_id, None, what))
            return None
        self._effects.mark(client.card, now_s)
        return client

    def _card_added(self, event: ev.CardAdded, now_s: float) -> None:
        card = self._registry.card(event.card, now_s)
        if event.capacity_bytes:
            card.capacity_bytes = event.capacity_bytes
        if event.link_bytes_per_s:
            card.link_bytes_per_s = event.link_bytes_per_s
        self._effects.mark(card, now_s)

    def _joined(self, event: ev.Joined, now_s: float) -> None:
        if event.client in self.clients:
            self._effects.instructions.append(ev.Log("warning", "client id already in use", event.client, event.card))
            self._turns.remove(self.clients[event.client], now_s)
            self._effects.instructions.append(ev.Close(event.client, "registered twice"))
            return
        card = self._registry.card(event.card, now_s)
        self._effects.mark(card, now_s)
        client = Client(
            event.client, card, event.pid, event.uid, event.pod, event.namespace, event.tenant, event.extended,
            event.terms, now_s, pod_uid=event.pod_uid, vtime=card.vtime, due=card.vtime,
        )  # fmt: skip
        client.set_terms(event.terms)
        self._registry.add(client)

    def _described(self, event: ev.Described, now_s: float) -> None:
        client = self._known(event.client, "described", now_s)
        if client is None:
            return
        client.name, client.run = event.name, event.run
        client.tenant = event.tenant or client.tenant
        self._apply_terms(client, event.terms)
        if event.gang and event.gang_size > 1 and client.gang is None:
            key = (client.pid, event.gang)
            gang = self._registry.gangs.get(key)
            if gang is None:
                gang = self._registry.gangs[key] = Gang(key, event.gang_size, now_s)
            gang.members[client.id] = client
            client.gang = gang
            if gang.requested and client.phase is Phase.IDLE:
                self._turns.enqueue(client, now_s)
            elif client.phase is Phase.WAITING and not gang.requested:
                self._turns.request_gang(gang, now_s)

    def _apply_terms(self, client: Client, terms: ev.Terms) -> None:
        card = client.card
        card.bill(client)
        card.settle_entitlement(client)
        client.set_terms(terms)
        client.entitle_mark = card.entitled
        card.share_out()
        if client.extended:
            self._effects.instructions.append(
                ev.Limit(client.id, terms.memory_bytes, terms.cores_percent, terms.oversubscribe)
            )

    def _requested(self, event: ev.Requested, now_s: float) -> None:
        client = self._known(event.client, "requested", now_s)
        if client is None:
            return
        if not client.card.on:
            return
        recovery.give_up(client.card, client)
        if client.phase is not Phase.IDLE:
            self._effects.log("debug", "request repeated", client, detail=client.phase.value)
            return
        if client.gang is None:
            self._turns.enqueue(client, now_s)
            return
        if any(member.phase is Phase.HOLDING for member in client.gang.members.values()):
            self._turns.enqueue(client, now_s)
        else:
            self._turns.request_gang(client.gang, now_s)

    def _released(self, event: ev.Released, now_s: float) -> None:
        client = self._known(event.client, "released", now_s)
        if client is None:
            return
        recovery.give_up(client.card, client)
        gang = client.gang
        if client.phase is Phase.WAITING:
            if gang is not None:
                self._turns.withdraw_gang(gang, now_s)
            else:
                self._turns.dequeue(client, now_s)
        elif client.owns():
            early = client.phase is Phase.HOLDING
            client.ledger.early_releases += early
            self._turns.end(client, now_s)
            if gang is not None and gang.requested:
                self._turns.enqueue(client, now_s)
        else:
            self._effects.log("debug", "released without holding", client)

    def _left(self, event: ev.Left, now_s: float) -> None:
        client = self._known(event.client, "left", now_s)
        if client is not None:
            self._turns.remove(client, now_s)

    def _reported(self, event: ev.Reported, now_s: float) -> None:
        client = self._known(event.client, "reported", now_s)
        if client is None:
            return
        client.learn_memory(allocated_bytes=event.allocated_bytes)
        client.reported_wait_s = event.wait_s
        launches, sync_s = event.launches - client.launches, event.sync_s - client.sync_s
        client.launches, client.sync_s = event.launches, event.sync_s
        if client.turn is not None:
            modes.observe_report(client.card, client, launches, sync_s, self.settings)

    def _resumed(self, event: ev.Resumed, now_s: float) -> None:
        client = self._known(event.client, "resumed", now_s)
        if client is None:
            return
        card = client.card
        ledger = self.departed.recalled.pop(event.previous, None)
        if ledger is not None:
            client.ledger.add(ledger)
        lost = self.clients.get(event.previous)
        inherits = lost is not None and lost is not client and lost.pid == client.pid and lost.card is card
        if inherits and lost is not None:
            # The client noticed the lost connection before the daemon did; the old connection is dead.
            had_turn = lost.owns()
            self._turns.remove(lost, now_s)
            self._effects.instructions.append(ev.Close(lost.id, "resumed on another connection"))
        else:
            had_turn = recovery.claim(card, client, event.previous)
        if not card.on:
            return
        if event.holding and not client.owns():
            rightful = had_turn or recovery.room(card)
            if client.phase is Phase.WAITING:
                self._turns.dequeue(client, now_s)
            card.activate(client)
            self._turns.begin(client, now_s, now_s - max(0.0, event.held_s))
            if client.turn is not None:
                client.turn.paging = False
            recovery.adopted(card)
            if not rightful:
                self._effects.log("warning", "client claims a turn that it was not given", client)
                self._turns.drop(client, now_s)
        elif event.waiting and client.phase is Phase.IDLE:
            self._requested(ev.Requested(client.id), now_s)

    def _recalled(self, event: ev.Recalled, now_s: float) -> None:
        card = self._registry.card(event.card, now_s)
        self._effects.mark(card, now_s)
        recovery.expect(card, event, now_s)
        self._effects.recorded[card.id] = None

    def _vanished(self, event: ev.Vanished, now_s: float) -> None:
        card = self._registry.card(event.card, now_s)
        self._effects.mark(card, now_s)
        if card.ghosts.pop(event.client, None) is not None:
            self._effects.log("info", "recalled holder exited", card=card)
            self._effects.recorded[card.id] = None

    def _sampled(self, event: ev.Sampled, now_s: float) -> None:
        card = self._registry.card(event.card, now_s)
        self._effects.mark(card, now_s)
        if event.capacity_bytes is not None:
            card.capacity_bytes = event.capacity_bytes
        if event.memory_by_pid is not None:
            for client in card.clients.values():
                if client.pid in event.memory_by_pid:
                    client.learn_memory(measured_bytes=event.memory_by_pid[client.pid])
        if event.pcie_bytes is not None:
            self._observe_link(card, event.pcie_bytes, now_s)

    def _observe_link(self, card: Card, total_bytes: int, now_s: float) -> None:
        before, since_s = card.pcie_bytes, now_s - card.sampled_s
        card.pcie_bytes, card.sampled_s = total_bytes, now_s
        if before is None or since_s <= 0 or total_bytes < before:
            return
        moved = total_bytes - before
        card.pcie_rate = moved / since_s
        card.link_peak_bytes_per_s = max(card.link_peak_bytes_per_s, card.pcie_rate)
        link_rate = quantum.link_rate(card, self.settings)
        busy = card.pcie_rate > link_rate / 4
        for client in card.holders.values():
            turn = client.turn
            if turn is None or not turn.paging:
                continue
            part = moved // len(card.holders)
            # A page-in that is shorter than the sampling interval does not fill the link on average.
            if busy or part > (client.need_bytes or part) // 8:
                turn.paged_bytes += part
                client.ledger.paged_bytes += part
            else:
                # A turn may begin with work on the CPU; only several quiet samples mean that there is nothing to page.
                turn.quiet_samples += 1
                turn.paging = turn.paged_bytes == 0 and turn.quiet_samples < _QUIET_SAMPLES
        modes.observe_link(card, card.pcie_rate, link_rate, self.settings)

    def _ticked(self, _event: ev.Ticked, now_s: float) -> None:
        for card in self.cards.values():
            if card.deadline_s is not None and card.deadline_s <= now_s:
                self._effects.mark(card, now_s)

    def _selected(self, card: CardId | None, now_s: float) -> list[Card]:
        chosen = list(self.cards.values()) if card is None else [self._registry.card(card, now_s)]
        for one in chosen:
            self._effects.mark(one, now_s)
        return chosen

    def _quantum_set(self, event: ev.QuantumSet, now_s: float) -> None:
        if event.card is None:
            self._registry.quantum_s = event.quantum_s
        for card in self._selected(event.card, now_s):
            card.fixed_quantum_s = event.quantum_s
            for client in card.holders.values():
                if client.turn is not None and client.phase is Phase.HOLDING:
                    client.turn.granted_s = now_s

    def _mode_set(self, event: ev.ModeSet, now_s: float) -> None:
        if event.card is None:
            self._registry.mode = event.mode
        for card in self._selected(event.card, now_s):
            card.mode = event.mode
            card.thrash_until_s, card.thrash_spells = 0.0, 0

    def _scheduling_set(self, event: ev.SchedulingSet, now_s: float) -> None:
        if event.card is None:
            self._registry.on = event.on
        for card in self._selected(event.card, now_s):
            if card.on == event.on:
                continue
            card.on = event.on
            if not event.on:
                card.ghosts.clear()
                for client in list(card.holders.values()):
                    self._turns.end(client, now_s)
                for client in list(card.waiters.values()):
                    self._turns.dequeue(client, now_s)
                for client in card.clients.values():
                    if client.gang is not None:
                        self._turns.reconsider(client.gang, now_s)
            self._effects.instructions.extend(ev.Switch(client.id, event.on) for client in card.clients.values())
            for client in card.clients.values() if event.on else ():
                if client.gang is not None and client.gang.requested:
                    self._turns.enqueue(client, now_s)

    def _terms_set(self, event: ev.TermsSet, now_s: float) -> None:
        client = self._known(event.client, "terms", now_s)
        if client is not None:
            self._apply_terms(client, event.terms)

    def _parked(self, event: ev.Parked, now_s: float) -> None:
        client = self._known(event.client, "parked", now_s)
        if client is None or client.parked == event.parked:
            return
        client.parked = event.parked
        card = client.card
        if event.parked:
            if client.phase is Phase.WAITING:
                card.deactivate(client)
            self._effects.notice(
                client, "parked", "parked: the process keeps running and gets no turn until it is unparked"
            )
        else:
            if client.phase is Phase.WAITING:
                client.eligible_s = now_s
                card.activate(client)
            self._effects.notice(client, "unparked", "unparked: the process gets turns again")
