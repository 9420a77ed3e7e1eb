"""Carrying out control requests: finding the cards or clients, checking the values, and submitting the events."""

from typing import Protocol

import msgspec

from baton.errors import BatonError, UsageError
from baton.lock.config import PRIORITIES, Rule, check_rules
from baton.lock.control import Done, DropRule, Park, SetCard, SetClient, SetRule
from baton.lock.core import events as ev
from baton.lock.core.events import Event, Mode
from baton.lock.core.machine import LockCore
from baton.lock.core.state import Client
from baton.lock.daemon.journal import CardSetting
from baton.lock.daemon.overrides import Overrides, selectors

_SELECTORS = "an id or its first digits, pid:N, run:ID, pod:NAMESPACE/NAME, tenant:NAME or name:PROGRAM"
_LONGEST_QUANTUM_S = 86_400.0


class Commanded(Protocol):
    """What commands need from the daemon."""

    core: LockCore
    rules: list[Rule]

    @property
    def overrides(self) -> Overrides:
        """What was set with `baton lock`."""

    def submit(self, event: Event) -> None:
        """Let the core handle an event."""

    def apply_setting(self, setting: CardSetting) -> None:
        """Apply a setting to a card, and remember it."""

    def save(self) -> None:
        """Save what was set."""

    def rule_terms(self, client: Client) -> ev.Terms:
        """The terms that the rules give to a client."""


def carry_out(daemon: Commanded, request: SetCard | SetClient | SetRule | DropRule | Park) -> Done:
    """Carry out one command; returns what it changed."""
    match request:
        case SetCard():
            changed = _set_card(daemon, request)
        case SetClient():
            changed = _set_client(daemon, request)
        case Park(client, parked):
            found = select(daemon.core, client)
            for one in found:
                daemon.submit(ev.Parked(one.id, parked))
            changed = [f"{one.id:016x}" for one in found]
        case SetRule(rule):
            if problems := check_rules((rule,)):
                raise UsageError("; ".join(problems))
            daemon.rules[:] = [rule, *(r for r in daemon.rules if selectors(r) != selectors(rule))]
            daemon.overrides.set_rule(rule)
            changed = _reapply(daemon, rule)
        case DropRule(rule):
            kept = [r for r in daemon.rules if selectors(r) != selectors(rule)]
            if len(kept) == len(daemon.rules):
                raise BatonError(
                    "there is no rule with these selectors; `baton lock status -o json` shows the terms in force"
                )
            daemon.rules[:] = kept
            daemon.overrides.drop_rule(rule)
            changed = _reapply(daemon, rule)
    daemon.save()
    return Done(changed)


def select(core: LockCore, text: str) -> list[Client]:
    """The clients that match a selector; at least one."""
    kind, colon, value = text.partition(":")
    clients = core.clients.values()
    if not colon:
        found = [c for c in clients if len(text) >= 4 and f"{c.id:016x}".startswith(text.lower())]
    elif kind == "pid":
        found = [c for c in clients if str(c.pid) == value]
    elif kind == "run":
        found = [c for c in clients if c.run == value]
    elif kind == "pod":
        found = [c for c in clients if f"{c.namespace}/{c.pod}" == value]
    elif kind == "tenant":
        found = [c for c in clients if c.tenant == value]
    elif kind == "name":
        found = [c for c in clients if c.name == value]
    else:
        raise UsageError(f"the client selector {text!r} begins with {kind!r}; expected {_SELECTORS}")
    if not found:
        raise BatonError(f"no client matches {text!r}; expected {_SELECTORS}; `baton lock status` lists the clients")
    if not colon and len({client.id for client in found}) > 1:
        raise BatonError(f"{text!r} matches the ids of {len(found)} clients; give more digits")
    return found


def _set_card(daemon: Commanded, request: SetCard) -> list[str]:
    core = daemon.core
    if request.gpu:
        cards = [card for name, card in core.cards.items() if name == request.gpu or name.startswith(request.gpu)]
        if len(cards) != 1:
            known = ", ".join(core.cards) or "none yet"
            raise BatonError(f"{request.gpu!r} matches {len(cards)} GPUs, expected one of: {known}")
    else:
        cards = list(core.cards.values())
    quantum = request.quantum
    if isinstance(quantum, float | int) and not 0 < quantum <= _LONGEST_QUANTUM_S:
        raise UsageError(f"quantum is {quantum}, expected auto or seconds above 0 and at most {_LONGEST_QUANTUM_S:.0f}")
    quantum_s = None if quantum is None or quantum == "auto" else float(quantum)
    if not request.gpu:
        if quantum is not None:
            daemon.submit(ev.QuantumSet(quantum_s))
        if request.mode is not None:
            daemon.submit(ev.ModeSet(Mode(request.mode)))
        if request.on is not None:
            daemon.submit(ev.SchedulingSet(request.on))
    for card in cards:
        daemon.apply_setting(
            CardSetting(
                card.id,
                request.mode or card.mode.value,
                card.fixed_quantum_s if quantum is None else quantum_s,
                card.on if request.on is None else request.on,
            )
        )
    return [card.id for card in cards]


def _set_client(daemon: Commanded, request: SetClient) -> list[str]:
    rule = Rule(
        weight=1.0 if request.weight is None else request.weight,
        priority=request.priority or "normal",
        cores_percent=request.cores_percent or 0.0,
        memory_bytes=request.memory_bytes or 0,
    )
    if problems := check_rules((rule,)):
        raise UsageError("; ".join(problem.replace("rules[0].", "") for problem in problems))
    found = select(daemon.core, request.client)
    for client in found:
        terms = client.terms
        if request.weight is not None:
            terms = msgspec.structs.replace(terms, weight=request.weight)
        if request.priority is not None:
            terms = msgspec.structs.replace(terms, priority=PRIORITIES[request.priority])
        if request.cores_percent is not None:
            terms = msgspec.structs.replace(terms, cores_percent=request.cores_percent)
        if request.memory_bytes is not None:
            terms = msgspec.structs.replace(terms, memory_bytes=request.memory_bytes)
        daemon.submit(ev.TermsSet(client.id, terms))
        daemon.overrides.set_terms(client.id, terms)
    return [f"{client.id:016x}" for client in found]


def _reapply(daemon: Commanded, rule: Rule) -> list[str]:
    changed: list[str] = []
    for client in list(daemon.core.clients.values()):
        if not rule.matches(
            tenant=client.tenant, namespace=client.namespace, pod=client.pod, pod_uid=client.pod_uid, uid=client.uid
        ):
            continue
        terms = daemon.rule_terms(client)
        if terms != client.terms:
            daemon.submit(ev.TermsSet(client.id, terms))
            changed.append(f"{client.id:016x}")
    return changed
