"""The lock's state machine: `handle(event, now_s)` in, instructions out, and `next_deadline()` for the one timer.

It knows no clock, socket, thread or file. `now_s` comes from a monotonic clock and may stand still between events. No
sequence of events raises: what makes no sense is answered with a log line or by closing the connection.

An event changes the state of one or a few cards and marks them; then every marked card is *settled*: its mode is
chosen, holders whose time is over are dropped, free places are granted, and the moment is computed at which to look
again. Settling one card may mark another (gangs), never the same one twice for the same reason, so it ends.
"""

from collections.abc import Callable
from typing import Any

from baton.lock import events as ev
from baton.lock import gangs, modes, policy, quantum, quotas, recall
from baton.lock.events import CardId, ClientId, Event, Instruction
from baton.lock.settings import Settings
from baton.lock.state import Card, Client, Gang, Ledger, Phase, Turn


class LockCore:
    """All cards of one machine and everybody who wants them."""

    def __init__(self, settings: Settings = Settings()) -> None:
        self.settings = settings
        self.cards: dict[CardId, Card] = {}
        self.clients: dict[ClientId, Client] = {}
        self.gangs: dict[tuple[int, str], Gang] = {}
        self.departed: dict[str, Ledger] = {}
        self.recalled: dict[ClientId, Ledger] = {}
        self._on = True
        self._mode = settings.mode
        self._quantum_s = settings.quantum_s
        self._tickets = 0
        self._out: list[Instruction] = []
        self._marked: dict[CardId, Card] = {}
        self._recorded: dict[CardId, None] = {}
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

    def advance(self, now_s: float) -> None:
        """Bring every ledger up to date, for a reader."""
        for card in self.cards.values():
            card.advance(now_s)
            for client in card.holders.values():
                card.bill(client)
            for client in card.active.values():
                card.settle_entitlement(client)

    def card(self, card_id: CardId, now_s: float) -> Card:
        """The card, made on demand."""
        card = self.cards.get(card_id)
        if card is None:
            card = Card(card_id, 0, self._mode, self._quantum_s, now_s, on=self._on)
            self.cards[card_id] = card
            quantum.refresh(card, self.settings)
        return card

    def _mark(self, card: Card, now_s: float) -> None:
        card.advance(now_s)
        self._marked[card.id] = card

    def _say(
        self, level: str, event: str, client: Client | None = None, card: Card | None = None, detail: str = ""
    ) -> None:
        of = card or (client.card if client else None)
        self._out.append(ev.Say(level, event, client.id if client else None, of.id if of else None, detail))

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
            event.terms, now_s, pod_uid=event.pod_uid, vtime=card.vtime,
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
        recall.give_up(client.card, client)
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

    def _rejoin_gang(self, card: Card, now_s: float) -> None:
        """A member whose gang goes on elsewhere wants the card back that it had lent: at once, or all start again."""
        for client in list(card.waiters.values()):
            gang = client.gang
            if gang is None or gang.requested:
                continue
            if not (card.exclusive and card.holders) and not card.ghosts and gangs.reservation(card) is None:
                if policy.eligible(card, client):
                    self._grant(client, now_s)
                continue
            self._request_gang(gang, now_s)
            for member in gang.members.values():
                self._drop(member, now_s)

    def _request_gang(self, gang: Gang, now_s: float) -> None:
        if not gang.requested:
            gang.requested = True
            self._tickets += 1
            gang.ticket = self._tickets
        for member in gang.members.values():
            self._mark(member.card, now_s)
            if member.phase is Phase.IDLE and member.card.on:
                self._enqueue(member, now_s)

    def _enqueue(self, client: Client, now_s: float) -> None:
        card = client.card
        self._mark(card, now_s)
        client.phase = Phase.WAITING
        client.requested_s = client.eligible_s = now_s
        card.waiters[client.id] = client
        if not client.parked:
            card.activate(client)

    def _released(self, event: ev.Released, now_s: float) -> None:
        client = self._known(event.client, "released", now_s)
        if client is None:
            return
        recall.give_up(client.card, client)
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

    def _dequeue(self, client: Client, now_s: float) -> None:
        card = client.card
        if card.waiters.pop(client.id, None) is not None:
            waited_s = now_s - client.requested_s
            client.ledger.waited_s += waited_s
            client.ledger.longest_wait_s = max(client.ledger.longest_wait_s, waited_s)
        client.phase = Phase.IDLE
        card.deactivate(client)

    def _end_turn(self, client: Client, now_s: float) -> None:
        card = client.card
        card.bill(client)
        turn = client.turn
        assert turn is not None
        if turn.dropped_s is not None:
            card.pending_release_s = now_s - turn.dropped_s
            card.release_s += 0.3 * (card.pending_release_s - card.release_s)
        if card.exclusive and card.last_holder != client.id:
            paged_s = quantum.page_in_s(card, client, self.settings)
            if paged_s is not None:
                quantum.learn(card, card.release_s + paged_s)
        card.last_holder = client.id
        client.turn = None
        client.phase = Phase.IDLE
        card.holders.pop(client.id, None)
        card.deactivate(client)
        self._recorded[card.id] = None

    def _left(self, event: ev.Left, now_s: float) -> None:
        client = self._known(event.client, "left", now_s)
        if client is not None:
            self._remove(client, now_s)

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
        self.departed.setdefault(client.tenant, Ledger()).add(client.ledger)

    def _reported(self, event: ev.Reported, now_s: float) -> None:
        client = self._known(event.client, "reported", now_s)
        if client is None:
            return
        client.allocated_bytes = max(0, event.allocated_bytes)
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
            had_turn = recall.claim(card, client, event.previous)
        if not card.on:
            return
        if event.holding and not client.owns():
            rightful = had_turn or recall.room(card)
            if client.phase is Phase.WAITING:
                self._dequeue(client, now_s)
            card.activate(client)
            self._begin_turn(client, now_s, now_s - max(0.0, event.held_s))
            if client.turn is not None:
                client.turn.paging = False
            recall.adopted(card)
            if not rightful:
                self._say("warning", "turn claimed that is not known", client)
                self._drop(client, now_s)
        elif event.waiting and client.phase is Phase.IDLE:
            self._requested(ev.Requested(client.id), now_s)

    def _recalled(self, event: ev.Recalled, now_s: float) -> None:
        card = self.card(event.card, now_s)
        self._mark(card, now_s)
        recall.expect(card, event, now_s)
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
                if client.pid:
                    client.measured_bytes = event.memory_by_pid.get(client.pid, client.measured_bytes)
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
            if len(card.holders) == 1 and (busy or turn.paged_bytes == 0):
                turn.paged_bytes += moved
                client.ledger.paged_bytes += moved
            elif len(card.holders) > 1 and busy:
                client.ledger.paged_bytes += moved // len(card.holders)
            turn.paging = busy
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

    def _notice(self, client: Client, code: str, reason: str) -> None:
        self._say("info", code, client)
        if client.extended:
            self._out.append(ev.Notice(client.id, code, reason))

    def _begin_turn(self, client: Client, now_s: float, granted_s: float) -> None:
        card = client.card
        card.advance(now_s)
        client.phase = Phase.HOLDING
        client.turn = Turn(granted_s, card.work_s, paging=card.last_holder != client.id)
        card.holders[client.id] = client
        client.ledger.grants += 1
        if card.last_holder != client.id:
            card.switches += 1
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

    def _review(self, card: Card, now_s: float) -> None:
        """Bring up to date what decisions rest on: quantum, window, recalled holders, mode."""
        settings = self.settings
        quantum.refresh(card, settings)
        quotas.roll(card, now_s, settings)
        if not card.on:
            return
        for client in card.limited.values():
            card.bill(client)
        if recall.expire(card, now_s):
            self._recorded[card.id] = None
            self._say("warning", "recalled holder did not come back", card=card)
        if modes.thrashes(card, settings):
            for_s = modes.penalise(card, now_s, settings)
            self._say("warning", "thrashing", card=card, detail=f"exclusive for {for_s:.1f} s")
        exclusive = modes.wants_exclusive(card, now_s, settings)
        if exclusive != card.exclusive:
            card.exclusive = exclusive
            card.mode_changes += 1
            self._recorded[card.id] = None
            self._say("info", "mode", card=card, detail="exclusive" if exclusive else "concurrent")

    def _settle(self, card: Card, now_s: float) -> None:
        settings = self.settings
        if not card.on:
            card.deadline_s = None
            return
        looks = [now_s + settings.max_quantum_s] if card.waiters else []
        self._watch_droppers(card, now_s, looks)
        self._settle_gangs(card, now_s, looks)
        for client in list(card.holders.values()):
            used_up_s = quotas.exhausted_at_s(card, client, now_s)
            if client.parked or (used_up_s is not None and used_up_s <= now_s):
                self._drop(client, now_s)
            elif used_up_s is not None and client.phase is Phase.HOLDING:
                looks.append(used_up_s + 1e-6)
        if card.exclusive:
            self._settle_exclusive(card, now_s, looks)
        else:
            self._settle_concurrent(card, now_s, looks)
        if card.thrash_until_s > now_s:
            looks.append(card.thrash_until_s)
        looks.extend(ghost.until_s for ghost in card.ghosts.values())
        window_end_s = quotas.window_end_s(card)
        if window_end_s is not None:
            looks.append(window_end_s)
        card.deadline_s = min(looks) if looks else None
        self._hint(card)

    def _hint(self, card: Card) -> None:
        told_s = card.told_idle_s
        if abs(card.idle_s - told_s) > 0.2 * max(told_s, 1e-9):
            card.told_idle_s = card.idle_s
            if told_s and card.clients:
                self._out.append(ev.Hint(card.id, card.idle_s))

    def _settle_gangs(self, card: Card, now_s: float, looks: list[float]) -> None:
        if not self.gangs:
            return
        self._rejoin_gang(card, now_s)
        seen: dict[tuple[int, str], Gang] = {c.gang.key: c.gang for c in card.waiters.values() if c.gang is not None}
        for gang in sorted(seen.values(), key=lambda gang: gang.ticket):
            if not gang.due and gangs.comes_due(gang, now_s, self.settings):
                self._set_due(gang, True, now_s)
            if gang.due and gangs.grantable(gang):
                gang.requested = False
                self._set_due(gang, False, now_s)
                for member in list(gang.members.values()):
                    self._mark(member.card, now_s)
                    if member.phase is Phase.WAITING:
                        self._grant(member, now_s)
            elif not gang.due:
                if len(gang.members) < gang.size and now_s < gang.formed_s + self.settings.gang_grace_s:
                    looks.append(gang.formed_s + self.settings.gang_grace_s)
                for member in gang.members.values():
                    if member.phase is Phase.WAITING:
                        late_s = member.eligible_s + policy.patience_s(member.card, member, self.settings)
                        if late_s >= now_s:
                            looks.append(late_s + 1e-6)

    def _settle_exclusive(self, card: Card, now_s: float, looks: list[float]) -> None:
        settings = self.settings
        if card.holders:
            self._keep_one(card, now_s)
            holder = next((c for c in card.holders.values() if c.phase is Phase.HOLDING), None)
            if holder is None or holder.turn is None:
                return
            reserved = gangs.reservation(card)
            waiter = reserved or policy.best_waiter(card, now_s, settings)
            rival = self._gang_rival(card) if waiter is None else None
            if waiter is None and rival is None:
                return
            turn_s = quantum.turn_s(card, settings)
            if reserved is not None or (waiter is not None and waiter.terms.priority > holder.terms.priority):
                turn_s = quantum.shortest_turn_s(card, settings)
            end_s = holder.turn.granted_s + turn_s
            if now_s < end_s:
                looks.append(end_s)
            elif waiter is None:
                looks.append(now_s + card.quantum_s / 4)
            elif reserved is not None or policy.outranks(card, waiter, holder, now_s, settings):
                self._drop(holder, now_s)
                self._watch_droppers(card, now_s, looks)
            else:
                looks.append(policy.outranked_at(card, waiter, holder, now_s, settings))
            return
        if card.ghosts or gangs.reservation(card) is not None:
            return
        chosen = policy.best_waiter(card, now_s, settings)
        if chosen is not None:
            self._grant(chosen, now_s)
            self._mark(card, now_s)

    def _gang_rival(self, card: Card) -> Client | None:
        return next((c for c in card.waiters.values() if c.gang is not None and policy.eligible(card, c)), None)

    def _keep_one(self, card: Card, now_s: float) -> None:
        """After a change to exclusive mode the least served holder stays; the others are asked to leave."""
        holding = [client for client in card.holders.values() if client.phase is Phase.HOLDING]
        if len(holding) == 1 and len(card.holders) == 1:
            return
        if len(holding) > 1:
            keep = min(holding, key=lambda c: (-int(c.terms.priority), card.vtime_of(c), c.id))
            for client in holding:
                if client is not keep:
                    self._drop(client, now_s)

    def _settle_concurrent(self, card: Card, now_s: float, looks: list[float]) -> None:
        """Everybody runs; a client far ahead of its weight pauses until the others have caught up."""
        pace_s, least = policy.pace(card, self.settings)
        if pace_s:
            looks.append(now_s + pace_s / 4)
        for client in list(card.holders.values()):
            if pace_s and card.vtime_of(client) - least > pace_s / client.weight:
                self._drop(client, now_s)
        granted = False
        for client in list(card.waiters.values()):
            if client.gang is not None or not policy.eligible(card, client):
                continue
            if pace_s and client.vtime > least + 1e-9 and card.holders:
                continue
            self._grant(client, now_s)
            granted = True
        if granted:
            self._mark(card, now_s)

    def _watch_droppers(self, card: Card, now_s: float, looks: list[float]) -> None:
        settings = self.settings
        for client in list(card.holders.values()):
            turn = client.turn
            if client.phase is not Phase.DROPPING or turn is None or turn.dropped_s is None:
                continue
            report_s = turn.dropped_s + settings.drop_grace_s
            if not turn.reported:
                if now_s < report_s:
                    looks.append(report_s)
                    continue
                turn.reported = True
                client.ledger.ignored_drops += 1
                self._say("warning", "DROP_LOCK ignored", client, detail=f"for {now_s - turn.dropped_s:.1f} s")
            if settings.measure is ev.Measure.REPORT:
                continue
            if now_s < report_s + settings.revoke_s:
                looks.append(report_s + settings.revoke_s)
                continue
            reason = f"did not let go of the GPU within {now_s - turn.dropped_s:.1f} s"
            self._notice(client, "revoked", reason)
            self._remove(client, now_s)
            if settings.measure is ev.Measure.KILL and client.pid:
                self._out.append(ev.Kill(client.id, client.pid, reason))
            self._out.append(ev.Close(client.id, reason))
