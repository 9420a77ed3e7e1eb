"""Scheduling a card after an event: its mode, who must release it, who is granted, and when to schedule it again."""

from baton.lock.core import events as ev
from baton.lock.core import gangs, modes, precedence, quantum, quotas, recovery
from baton.lock.core.effects import Effects
from baton.lock.core.registry import Registry
from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client, Gang, Phase
from baton.lock.core.turns import Turns

_WORTH_TELLING = 1.5
"""Clients are told a new idle time only when it differs by this factor, because the estimate changes all the time."""


class CardScheduler:
    """Decides for one card at a time."""

    def __init__(self, settings: Settings, registry: Registry, turns: Turns, effects: Effects) -> None:
        self._settings = settings
        self._registry = registry
        self._turns = turns
        self._effects = effects

    def review(self, card: Card, now_s: float) -> None:
        """Update what the decisions depend on: quantum, window, recalled holders, mode."""
        settings = self._settings
        quantum.refresh(card, settings)
        quotas.roll(card, now_s, settings)
        if not card.on:
            return
        for client in card.limited.values():
            card.bill(client)
        if recovery.expire(card, now_s):
            self._effects.recorded[card.id] = None
            self._effects.log("warning", "recalled holder has not resumed in time", card=card)
        if modes.thrashes(card, settings):
            for_s = modes.penalise(card, now_s, settings)
            quantum.refresh(card, settings)
            self._effects.log("warning", "thrashing", card=card, detail=f"exclusive for {for_s:.1f} s")
        exclusive = modes.wants_exclusive(card, now_s, settings)
        if exclusive != card.exclusive:
            card.exclusive = exclusive
            card.mode_changes += 1
            self._effects.recorded[card.id] = None
            self._effects.log("info", "mode changed", card=card, detail="exclusive" if exclusive else "concurrent")

    def schedule(self, card: Card, now_s: float) -> None:
        """Decide who must release, who is granted, and when to schedule the card again."""
        settings = self._settings
        if not card.on:
            card.deadline_s = None
            return
        deadlines = [now_s + settings.max_quantum_s] if card.waiters else []
        self._watch_droppers(card, now_s, deadlines)
        self._serve_gangs(card, now_s, deadlines)
        for client in list(card.holders.values()):
            used_up_s = quotas.exhausted_at_s(card, client, now_s)
            if client.parked or (used_up_s is not None and used_up_s <= now_s):
                self._turns.drop(client, now_s)
            elif used_up_s is not None and client.phase is Phase.HOLDING:
                deadlines.append(used_up_s + 1e-6)
        if card.exclusive:
            self._serve_exclusive(card, now_s, deadlines)
        else:
            self._serve_concurrent(card, now_s, deadlines)
        if card.thrash_until_s > now_s:
            deadlines.append(card.thrash_until_s)
        deadlines.extend(ghost.until_s for ghost in card.ghosts.values())
        window_end_s = quotas.window_end_s(card)
        if window_end_s is not None:
            deadlines.append(window_end_s)
        card.deadline_s = min(deadlines) if deadlines else None
        self._hint(card)

    def _hint(self, card: Card) -> None:
        told_s = card.told_idle_s
        if not told_s / _WORTH_TELLING <= card.idle_s <= told_s * _WORTH_TELLING:
            card.told_idle_s = card.idle_s
            if told_s and card.clients:
                self._effects.instructions.append(ev.Hint(card.id, card.idle_s))

    def _serve_gangs(self, card: Card, now_s: float, deadlines: list[float]) -> None:
        if not self._registry.gangs:
            return
        self._rejoin_gang(card, now_s)
        seen: dict[tuple[int, str], Gang] = {c.gang.key: c.gang for c in card.waiters.values() if c.gang is not None}
        for gang in sorted(seen.values(), key=lambda gang: gang.ticket):
            if not gang.due and gangs.comes_due(gang, now_s, self._settings):
                self._turns.set_due(gang, True, now_s)
            if gang.due and gangs.grantable(gang):
                gang.requested = False
                self._turns.set_due(gang, False, now_s)
                for member in list(gang.members.values()):
                    self._effects.mark(member.card, now_s)
                    if member.phase is Phase.WAITING:
                        self._turns.grant(member, now_s)
            elif not gang.due:
                if len(gang.members) < gang.size and now_s < gang.formed_s + self._settings.gang_grace_s:
                    deadlines.append(gang.formed_s + self._settings.gang_grace_s)
                for member in gang.members.values():
                    if member.phase is Phase.WAITING:
                        late_s = member.eligible_s + precedence.patience_s(member.card, member, self._settings)
                        if late_s >= now_s:
                            deadlines.append(late_s + 1e-6)

    def _rejoin_gang(self, card: Card, now_s: float) -> None:
        """A member released its card while its gang holds others, and asks for it again.

        It gets the card if the card is free; otherwise the whole gang releases and waits together.
        """
        for client in list(card.waiters.values()):
            gang = client.gang
            if gang is None or gang.requested:
                continue
            if not any(member.phase is Phase.HOLDING for member in gang.members.values()):
                # The other members have released in the meantime.
                self._turns.request_gang(gang, now_s)
                continue
            if not (card.exclusive and card.holders) and not card.ghosts and gangs.reservation(card) is None:
                if precedence.eligible(card, client):
                    self._turns.grant(client, now_s)
                continue
            self._turns.request_gang(gang, now_s)
            for member in gang.members.values():
                self._turns.drop(member, now_s)

    def _serve_exclusive(self, card: Card, now_s: float, deadlines: list[float]) -> None:
        settings = self._settings
        if card.holders:
            self._keep_one(card, now_s)
            holder = next((c for c in card.holders.values() if c.phase is Phase.HOLDING), None)
            if holder is None or holder.turn is None:
                return
            soonest_s = holder.turn.granted_s + quantum.shortest_turn_s(card, holder, settings)
            if now_s < soonest_s:
                if precedence.has_eligible_waiter(card):
                    deadlines.append(soonest_s)
                return
            reserved = gangs.reservation(card)
            waiter = reserved or precedence.best_waiter(card, now_s, settings)
            rival = self._gang_rival(card) if waiter is None else None
            if waiter is None and rival is None:
                return
            turn_s = quantum.turn_s(card, holder, settings)
            if reserved is not None or (waiter is not None and waiter.terms.priority > holder.terms.priority):
                turn_s = quantum.shortest_turn_s(card, holder, settings)
            end_s = holder.turn.granted_s + turn_s
            if now_s < end_s:
                deadlines.append(end_s)
            elif waiter is None:
                deadlines.append(now_s + card.quantum_s / 4)
            elif reserved is not None or precedence.outranks(card, waiter, holder, now_s, settings):
                self._turns.drop(holder, now_s)
                self._watch_droppers(card, now_s, deadlines)
            else:
                deadlines.append(precedence.outranked_at(card, waiter, holder, now_s, settings))
            return
        if card.ghosts or gangs.reservation(card) is not None:
            return
        chosen = precedence.best_waiter(card, now_s, settings)
        if chosen is not None:
            self._turns.grant(chosen, now_s)
            if precedence.has_eligible_waiter(card):
                deadlines.append(now_s + quantum.shortest_turn_s(card, chosen, settings))
            used_up_s = quotas.exhausted_at_s(card, chosen, now_s)
            if used_up_s is not None:
                deadlines.append(used_up_s + 1e-6)

    def _gang_rival(self, card: Card) -> Client | None:
        return next((c for c in card.waiters.values() if c.gang is not None and precedence.eligible(card, c)), None)

    def _keep_one(self, card: Card, now_s: float) -> None:
        """After a change to exclusive mode the least served holder stays; the others are asked to release."""
        holding = [client for client in card.holders.values() if client.phase is Phase.HOLDING]
        if len(holding) == 1 and len(card.holders) == 1:
            return
        if len(holding) > 1:
            keep = min(holding, key=lambda c: (-int(c.terms.priority), card.vtime_of(c), c.id))
            for client in holding:
                if client is not keep:
                    self._turns.drop(client, now_s)

    def _serve_concurrent(self, card: Card, now_s: float, deadlines: list[float]) -> None:
        """All clients run; a client that is far ahead of its weight pauses until the others have caught up."""
        pace_s, least = precedence.pace(card, self._settings)
        if pace_s:
            deadlines.append(now_s + pace_s / 4)
        for client in list(card.holders.values()):
            if pace_s and card.vtime_of(client) - least > pace_s / client.weight:
                self._turns.drop(client, now_s)
        granted = False
        for client in list(card.waiters.values()):
            if client.gang is not None or not precedence.eligible(card, client):
                continue
            if pace_s and client.vtime > least + 1e-9 and card.holders:
                continue
            self._turns.grant(client, now_s)
            granted = True
        if granted:
            self._effects.mark(card, now_s)

    def _watch_droppers(self, card: Card, now_s: float, deadlines: list[float]) -> None:
        settings = self._settings
        for client in list(card.holders.values()):
            turn = client.turn
            if client.phase is not Phase.DROPPING or turn is None or turn.dropped_s is None:
                continue
            report_s = turn.dropped_s + settings.drop_grace_s
            if not turn.reported:
                if now_s < report_s:
                    deadlines.append(report_s)
                    continue
                turn.reported = True
                client.ledger.ignored_drops += 1
                self._effects.log("warning", "DROP_LOCK ignored", client, detail=f"for {now_s - turn.dropped_s:.1f} s")
            if settings.measure is ev.Measure.REPORT:
                continue
            if now_s < report_s + settings.revoke_s:
                deadlines.append(report_s + settings.revoke_s)
                continue
            reason = f"did not release the GPU within {now_s - turn.dropped_s:.1f} s"
            self._effects.notice(client, "revoked", reason)
            self._turns.remove(client, now_s)
            if settings.measure is ev.Measure.KILL and client.pid:
                self._effects.instructions.append(ev.Kill(client.id, client.pid, reason))
            self._effects.instructions.append(ev.Close(client.id, reason))
