"""The lock's state machine: `handle(event, now_s)` in, instructions out, and `next_deadline()` for the one timer.

It knows no clock, socket, thread or file. `now_s` comes from a monotonic clock and may stand still between events. No
sequence of events raises: what makes no sense is answered with a log line or by closing the connection.

An event changes the state of one or a few cards and marks them; then every marked card is *settled*: its mode is
chosen, holders whose time is over are dropped, free places are granted, and the moment is computed at which to look
again. Settling one card may mark another (gangs), never the same one twice for the same reason, so it ends.
"""

from collections.abc import Callable
from typing import Any

from baton.lock.core import events as ev
from baton.lock.core import modes, quantum, recovery
from baton.lock.core.events import ClientId, Event, Instruction
from baton.lock.core.settings import Settings
from baton.lock.core.settling import Settling
from baton.lock.core.state import Card, Client, Gang, Phase
from baton.model.ids import CardId

_QUIET_SAMPLES = 3


class LockCore(Settling):
    """All cards of one machine and everybody who wants them."""

    def __init__(self, settings: Settings = Settings()) -> None:
        super().__init__(settings)
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
        """Let one thing happen; returns what must be done about it, in order."""
        self._out = []
        self._recorded.clear()
        self._handlers[type(event)](event, now_s)
        for card in list(self._marked.values()):
            # All modes first: a gang is granted by looking at several cards.
            self._review(card, now_s)
        while self._marked:
            _, card = self._marked.popitem()
            self._settle(card, now_s)
        if self._recorded:
            return [*(ev.Record(card) for card in self._recorded), *self._out]
        return self._out

    def next_deadline(self) -> float | None:
        """When to send the next `Ticked`; None while only events can change anything."""
        deadlines = [card.deadline_s for card in self.cards.values() if card.deadline_s is not None]
        return min(deadlines) if deadlines else None

    def _known(self, client_id: ClientId, what: str, now_s: float) -> Client | None:
        client = self.clients.get(client_id)
        if client is None:
            self._out.append(ev.Say("debug", "unknown client", client_id, None, what))
            return None
        self._mark(client.card, now_s)
        return client

    def _card_added(self, event: ev.CardAdded, now_s: float) -> None:
        card = self.card(event.card, now_s)
        if event.capacity_bytes:
            card.capacity_bytes = event.capacity_bytes
        if event.link_bytes_per_s:
            card.link_bytes_per_s = event.link_bytes_per_s
        self._mark(card, now_s)

    def _joined(self, event: ev.Joined, now_s: float) -> None:
        if event.client in self.clients:
            self._out.append(ev.Say("warning", "client id in use", event.client, event.card))
            self._remove(self.clients[event.client], now_s)
            self._out.append(ev.Close(event.client, "registered twice"))
            return
        card = self.card(event.card, now_s)
        self._mark(card, now_s)
        client = Client(
            event.client, card, event.pid, event.uid, event.pod, event.namespace, event.tenant, event.extended,
            event.terms, now_s, pod_uid=event.pod_uid, vtime=card.vtime, due=card.vtime,
        )  # fmt: skip
        client.set_terms(event.terms)
        self.clients[client.id] = client
        card.clients[client.id] = client

    def _described(self, event: ev.Described, now_s: float) -> None:
        client = self._known(event.client, "described", now_s)
        if client is None:
            return
        client.name, client.run = event.name, event.run
        client.tenant = event.tenant or client.tenant
        self._apply_terms(client, event.terms)
        if event.gang and event.gang_size > 1 and client.gang is None:
            key = (client.pid, event.gang)
            gang = self.gangs.get(key)
            if gang is None:
                gang = self.gangs[key] = Gang(key, event.gang_size, now_s)
            gang.members[client.id] = client
            client.gang = gang
            if gang.requested and client.phase is Phase.IDLE:
                self._enqueue(client, now_s)
            elif client.phase is Phase.WAITING and not gang.requested:
                self._request_gang(gang, now_s)

    def _apply_terms(self, client: Client, terms: ev.Terms) -> None:
        card = client.card
        card.bill(client)
        card.settle_entitlement(client)
        client.set_terms(terms)
        client.entitle_mark = card.entitled
        card.share_out()
        if client.extended:
            self._out.append(ev.Limit(client.id, terms.memory_bytes, terms.cores_percent, terms.oversubscribe))

    def _requested(self, event: ev.Requested, now_s: float) -> None:
        client = self._known(event.client, "requested", now_s)
        if client is None:
            return
        if not client.card.on:
            return
        recovery.give_up(client.card, client)
        if client.phase is not Phase.IDLE:
            self._say("debug", "request repeated", client, detail=client.phase.value)
            return
        if client.gang is None:
            self._enqueue(client, now_s)
            return
        if any(member.phase is Phase.HOLDING for member in client.gang.members.values()):
            self._enqueue(client, now_s)
        else:
            self._request_gang(client.gang, now_s)

    def _released(self, event: ev.Released, now_s: float) -> None:
        client = self._known(event.client, "released", now_s)
        if client is None:
            return
        recovery.give_up(client.card, client)
        gang = client.gang
        if client.phase is Phase.WAITING:
            if gang is not None:
                self._withdraw_gang(gang, now_s)
            else:
                self._dequeue(client, now_s)
        elif client.owns():
            early = client.phase is Phase.HOLDING
            client.ledger.early_releases += early
            self._end_turn(client, now_s)
            if gang is not None and gang.requested:
                self._enqueue(client, now_s)
        else:
            self._say("debug", "release without a turn", client)

    def _left(self, event: ev.Left, now_s: float) -> None:
        client = self._known(event.client, "left", now_s)
        if client is not None:
            self._remove(client, now_s)

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
        ledger = self.recalled.pop(event.previous, None)
        if ledger is not None:
            client.ledger.add(ledger)
        lost = self.clients.get(event.previous)
        inherits = lost is not None and lost is not client and lost.pid == client.pid and lost.card is card
        if inherits and lost is not None:
            # The client noticed the loss before we did; its old connection is dead.
            had_turn = lost.owns()
            self._remove(lost, now_s)
            self._out.append(ev.Close(lost.id, "resumed on another connection"))
        else:
            had_turn = recovery.claim(card, client, event.previous)
        if not card.on:
            return
        if event.holding and not client.owns():
            rightful = had_turn or recovery.room(card)
            if client.phase is Phase.WAITING:
                self._dequeue(client, now_s)
            card.activate(client)
            self._begin_turn(client, now_s, now_s - max(0.0, event.held_s))
            if client.turn is not None:
                client.turn.paging = False
            recovery.adopted(card)
            if not rightful:
                self._say("warning", "turn claimed that is not known", client)
                self._drop(client, now_s)
        elif event.waiting and client.phase is Phase.IDLE:
            self._requested(ev.Requested(client.id), now_s)

    def _recalled(self, event: ev.Recalled, now_s: float) -> None:
        card = self.card(event.card, now_s)
        self._mark(card, now_s)
        recovery.expect(card, event, now_s)
        self._recorded[card.id] = None

    def _vanished(self, event: ev.Vanished, now_s: float) -> None:
        card = self.card(event.card, now_s)
        self._mark(card, now_s)
        if card.ghosts.pop(event.client, None) is not None:
            self._say("info", "recalled holder ended", card=card)
            self._recorded[card.id] = None

    def _sampled(self, event: ev.Sampled, now_s: float) -> None:
        card = self.card(event.card, now_s)
        self._mark(card, now_s)
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
            # A page-in shorter than the time between two looks does not fill the link on average.
            if busy or part > (client.need_bytes or part) // 8:
                turn.paged_bytes += part
                client.ledger.paged_bytes += part
            else:
                # A turn may begin with work on the CPU; only a few quiet samples say that there is nothing to page.
                turn.quiet_samples += 1
                turn.paging = turn.paged_bytes == 0 and turn.quiet_samples < _QUIET_SAMPLES
        modes.observe_link(card, card.pcie_rate, link_rate, self.settings)

    def _ticked(self, _event: ev.Ticked, now_s: float) -> None:
        for card in self.cards.values():
            if card.deadline_s is not None and card.deadline_s <= now_s:
                self._mark(card, now_s)

    def _selected(self, card: CardId | None, now_s: float) -> list[Card]:
        chosen = list(self.cards.values()) if card is None else [self.card(card, now_s)]
        for one in chosen:
            self._mark(one, now_s)
        return chosen

    def _quantum_set(self, event: ev.QuantumSet, now_s: float) -> None:
        if event.card is None:
            self._quantum_s = event.quantum_s
        for card in self._selected(event.card, now_s):
            card.fixed_quantum_s = event.quantum_s
            for client in card.holders.values():
                if client.turn is not None and client.phase is Phase.HOLDING:
                    client.turn.granted_s = now_s

    def _mode_set(self, event: ev.ModeSet, now_s: float) -> None:
        if event.card is None:
            self._mode = event.mode
        for card in self._selected(event.card, now_s):
            card.mode = event.mode
            card.thrash_until_s, card.thrash_spells = 0.0, 0

    def _scheduling_set(self, event: ev.SchedulingSet, now_s: float) -> None:
        if event.card is None:
            self._on = event.on
        for card in self._selected(event.card, now_s):
            if card.on == event.on:
                continue
            card.on = event.on
            if not event.on:
                card.ghosts.clear()
                for client in list(card.holders.values()):
                    self._end_turn(client, now_s)
                for client in list(card.waiters.values()):
                    self._dequeue(client, now_s)
                for client in card.clients.values():
                    if client.gang is not None:
                        self._reconsider(client.gang, now_s)
            self._out.extend(ev.Switch(client.id, event.on) for client in card.clients.values())
            for client in card.clients.values() if event.on else ():
                if client.gang is not None and client.gang.requested:
                    self._enqueue(client, now_s)

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
            self._notice(client, "parked", "parked: it keeps its process and gets no turn until it is unparked")
        else:
            if client.phase is Phase.WAITING:
                client.eligible_s = now_s
                card.activate(client)
            self._notice(client, "unparked", "unparked: it takes part again")
