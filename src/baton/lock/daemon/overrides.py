"""What was set with `baton lock`, kept over restarts: settings of cards, rules, and the terms of single clients.

A client that resumes is recognised by its earlier id. A rule for one pod is forgotten some time after a restart if no
client of that pod has resumed and the rule was not set again: the daemon does not learn of pods that end while it is
not running.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from baton.lock.config import Rule
from baton.lock.core.events import ClientId, Terms
from baton.lock.daemon.journal import CardSetting, Snapshot, TermsRecord
from baton.model.ids import CardId

_TERMS_KEPT = 256
"""Clients whose terms are remembered; the oldest are forgotten first."""

Selectors = tuple[str, str, str, str, int | None]


def selectors(rule: Rule) -> Selectors:
    """The selectors of a rule: a rule replaces another one with the same selectors."""
    return (rule.tenant, rule.namespace, rule.pod, rule.pod_uid, rule.uid)


@dataclass
class Overrides:
    """Everything that was set with `baton lock`."""

    cards: dict[CardId, CardSetting] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    terms: dict[ClientId, Terms] = field(default_factory=dict)
    _unconfirmed: set[Selectors] = field(default_factory=set)

    @classmethod
    def restore(cls, snapshot: Snapshot) -> "Overrides":
        """The overrides of an earlier daemon, except those of cards, which the daemon sets one by one."""
        terms = {ClientId(record.client): record.terms for record in snapshot.terms}
        return cls({}, list(snapshot.rules), terms, {selectors(rule) for rule in snapshot.rules})

    def before(self, configured: Iterable[Rule]) -> list[Rule]:
        """All rules: the overrides, then the configured rules whose selectors have no override."""
        mine = {selectors(rule) for rule in self.rules}
        return [*self.rules, *(rule for rule in configured if selectors(rule) not in mine)]

    def set_rule(self, rule: Rule) -> None:
        self.drop_rule(rule)
        self.rules.insert(0, rule)

    def drop_rule(self, rule: Rule) -> None:
        gone = selectors(rule)
        self.rules = [one for one in self.rules if selectors(one) != gone]
        self._unconfirmed.discard(gone)

    def set_terms(self, client: ClientId, terms: Terms) -> None:
        self.terms.pop(client, None)
        self.terms[client] = terms
        while len(self.terms) > _TERMS_KEPT:
            del self.terms[next(iter(self.terms))]

    def inherit_terms(self, previous: ClientId, client: ClientId) -> Terms | None:
        """The terms of a client that has resumed under another id."""
        terms = self.terms.pop(previous, None)
        if terms is not None:
            self.set_terms(client, terms)
        return terms

    def forget_pods(self, alive: set[str]) -> list[Rule]:
        """Drop the restored rules for single pods that are not in `alive`; returns them."""
        late = [
            rule
            for rule in self.rules
            if selectors(rule) in self._unconfirmed and "*" not in rule.pod_uid and rule.pod_uid not in alive
        ]
        for rule in late:
            self.drop_rule(rule)
        self._unconfirmed.clear()
        return late

    def records(self) -> list[TermsRecord]:
        """The terms for a snapshot."""
        return [TermsRecord(client, terms) for client, terms in self.terms.items()]
