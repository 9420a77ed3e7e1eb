"""Counts of placed pods by selector and topology domain, for pod affinity, anti-affinity and topology spread.

There is one `TermCounts` per distinct `TermKey` (which pods are counted, and by which topology), with a count per value
of that node label, so a question about all nodes is one array lookup. A card is also a domain (`CARD_DOMAIN`), which
extends affinity and anti-affinity to cards. So is a node (`NODE_DOMAIN`), independent of any label, because topology
spread counts only some of the nodes of a domain and leaves out pods that are terminating. Pods of one namespace with
the same values for all labels that selectors mention match the same terms, so the matches are kept per such class.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from baton.engine.objects import AffinityTerm, LabelSelector, PodSpec
from baton.engine.state.jobs import ON_NODE, Status, Task
from baton.engine.state.nodes import NodeTable
from baton.model.ids import PodKey

CARD_DOMAIN = "baton.dev/card"
NODE_DOMAIN = "baton.dev/node"
HARD_AFFINITY_WEIGHT = 1
ROLES = ("anti", "affinity", "prefer", "avoid")


class Pick(NamedTuple):
    """Pods by label, in the named namespaces and in those that the namespace selector matches."""

    selector: LabelSelector
    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None = None


class TermKey(NamedTuple):
    """Pods that every pick selects, counted by the values of a node label."""

    picks: tuple[Pick, ...]
    topology_key: str


LabelClass = tuple[str, tuple[tuple[str, str], ...]]


class TermCounts:
    """How many placed pods (or owners of the term) each domain has; domain 0 is "no such label"."""

    def __init__(self) -> None:
        self.by_domain: npt.NDArray[np.int64] = np.zeros(16, dtype=np.int64)
        self.total = 0

    def add(self, domain: int, amount: int) -> None:
        if domain <= 0:
            return
        if domain >= len(self.by_domain):
            self.by_domain = np.concatenate([self.by_domain, np.zeros(max(domain, len(self.by_domain)), np.int64)])
        self.by_domain[domain] += amount
        self.total += amount

    def at(self, domains: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        top = int(domains.max(initial=0))
        if top >= len(self.by_domain):
            self.by_domain = np.concatenate([self.by_domain, np.zeros(top + 1, np.int64)])
        return self.by_domain[domains]


class PlacedPods:
    """The index; `add` and `remove` follow every placement."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self.namespace_labels: dict[str, dict[str, str]] = {}
        self.selector_keys: set[str] = set()
        self.epoch = 0
        """Grows with the set of label keys and terms; label classes of an earlier epoch are stale."""
        self._matching: dict[TermKey, TermCounts] = {}
        self._owning: dict[tuple[TermKey, str], TermCounts] = {}
        self._matches_of: dict[LabelClass, list[tuple[TermKey, TermCounts]]] = {}
        self._owners_of: dict[tuple[LabelClass, str], list[tuple[TermKey, TermCounts]]] = {}
        self._cards_of: dict[PodKey, tuple[int, ...]] = {}
        self.counts_nodes = False
        """Whether any term counts by `NODE_DOMAIN`: a pod then stops counting when it starts to terminate."""

    def label_class(self, task: Task) -> LabelClass:
        if task.label_class is not None and task.label_epoch == self.epoch:
            return task.label_class
        task.label_class = self._label_class(task)
        task.label_epoch = self.epoch
        return task.label_class

    def _label_class(self, task: Task) -> LabelClass:
        keys = self.selector_keys
        if not keys and not self._matching:
            return ("", ())
        return (task.pod.namespace, tuple(sorted(item for item in task.pod.labels if item[0] in keys)))

    def watch_labels(self, keys: Iterable[str]) -> None:
        """Register label keys that selectors mention."""
        fresh = set(keys) - self.selector_keys
        if fresh:
            self.selector_keys |= fresh
            self._matches_of.clear()
            self._owners_of.clear()
            self.epoch += 1

    @staticmethod
    def term_key(term: AffinityTerm, namespace: str) -> TermKey:
        return TermKey((_pick(term, namespace),), term.topology_key)

    @staticmethod
    def joint_keys(terms: Sequence[AffinityTerm], namespace: str) -> list[TermKey]:
        """Required affinity: one key per term, each counting the pods that all terms select."""
        picks = tuple(_pick(term, namespace) for term in terms)
        return [TermKey(picks, term.topology_key) for term in terms]

    def by_domain(
        self, selector: LabelSelector, namespace: str, topology_key: str, counted: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        """For topology spread: the number of pods per value of the label on the `counted` rows, without leaving pods.

        An empty selector counts no pods here, as in kube-scheduler, although it selects every pod elsewhere.
        """
        table = self.table
        if selector == LabelSelector():
            return np.zeros(len(table.label_values(topology_key)) + 1)
        counts = self.matching(spread_key(selector, namespace)).at(table.number[: table.count][counted])
        domains = table.label_column(topology_key)[: table.count][counted]
        result = np.zeros(len(table.label_values(topology_key)) + 1)
        np.add.at(result, domains, counts)
        return result

    def matching(self, key: TermKey) -> TermCounts:
        """Counts of placed pods that the term selects; a new term is first counted over all pods."""
        counts = self._matching.get(key)
        if counts is None:
            for pick in key.picks:
                self.watch_labels(pick.selector.keys())
            counts = self._matching[key] = TermCounts()
            self.counts_nodes = self.counts_nodes or key.topology_key == NODE_DOMAIN
            self._matches_of.clear()
            self.epoch += 1
            for tasks in self.table.tasks:
                for task in tasks.values():
                    if self.selects(key, *self.label_class(task)):
                        for domain in self._domains(key.topology_key, task):
                            counts.add(domain, 1)
        return counts

    def owning(self, role: str, label_class: LabelClass) -> list[tuple[TermKey, TermCounts]]:
        """Terms of placed pods in one role of `ROLES` that select pods of this class, with their counts."""
        known = self._owners_of.get((label_class, role))
        if known is None:
            known = [
                (key, counts)
                for (key, kind), counts in self._owning.items()
                if kind == role and self.selects(key, *label_class)
            ]
            self._owners_of[label_class, role] = known
        return [item for item in known if item[1].total]

    def concerns(self, task: Task) -> bool:
        """Whether any placed pod has a term that selects this task."""
        if not self._owning:
            return False
        label_class = self.label_class(task)
        return any(self.owning(role, label_class) for role in ROLES)

    def selects(self, key: TermKey, namespace: str, labels: tuple[tuple[str, str], ...]) -> bool:
        named = dict(labels)
        for selector, namespaces, namespace_selector in key.picks:
            if namespace not in namespaces and not (
                namespace_selector is not None and namespace_selector.matches(self.namespace_labels.get(namespace, {}))
            ):
                return False
            if not selector.matches(named):
                return False
        return True

    def add(self, task: Task) -> None:
        self._count(task, 1)

    def remove(self, task: Task) -> None:
        self._count(task, -1)
        self._cards_of.pop(task.key, None)

    def forget_namespaces(self) -> None:
        """Namespace labels changed: drop the counts that depend on a namespace selector, so that they are recounted."""
        stale = [key for key in self._matching if any(pick.namespace_selector is not None for pick in key.picks)]
        for key in stale:
            del self._matching[key]
        self._matches_of.clear()
        self._owners_of.clear()
        self.epoch += 1

    def learn(self, spec: PodSpec, namespace: str) -> None:
        """Register a spec's terms before any of its pods is placed, so that counting starts early."""
        for key in self._keys_of(spec, namespace):
            self.matching(key)

    def forget_all_but(self, specs: Iterable[tuple[PodSpec, str]]) -> None:
        """Drop terms that none of these specs has; terms from the configuration are counted again on the next query."""
        alive = {key for spec, namespace in set(specs) for key in self._keys_of(spec, namespace)}
        self._matching = {key: counts for key, counts in self._matching.items() if key in alive}
        self._owning = {key: counts for key, counts in self._owning.items() if counts.total}
        self._matches_of.clear()
        self._owners_of.clear()
        self.epoch += 1

    def __len__(self) -> int:
        """How many terms are kept."""
        return len(self._matching) + len(self._owning)

    def _keys_of(self, spec: PodSpec, namespace: str) -> list[TermKey]:
        terms = [
            *spec.anti_affinity,
            *(item.term for item in spec.preferred_affinity),
            *(item.term for item in spec.preferred_anti_affinity),
        ]
        keys = [*self.joint_keys(spec.affinity, namespace), *(self.term_key(term, namespace) for term in terms)]
        keys += [spread_key(item.selector, namespace) for item in spec.spread]
        cards = (*spec.card_rules.with_pods, *spec.card_rules.without_pods)
        return keys + [card_key(selector, namespace) for selector in cards]

    def _count(self, task: Task, amount: int) -> None:
        if self._matching:
            label_class = self.label_class(task)
            matches = self._matches_of.get(label_class)
            if matches is None:
                matches = [item for item in self._matching.items() if self.selects(item[0], *label_class)]
                self._matches_of[label_class] = matches
            for key, counts in matches:
                for domain in self._domains(key.topology_key, task, leaving=amount < 0):
                    counts.add(domain, amount)
        spec = task.needs.spec
        if spec.anti_affinity or spec.affinity or spec.preferred_affinity or spec.preferred_anti_affinity:
            self._count_owner(task, spec, amount)

    def _count_owner(self, task: Task, spec: PodSpec, amount: int) -> None:
        namespace = task.pod.namespace
        weighted = [
            *((term, "anti", 1) for term in spec.anti_affinity),
            *((term, "affinity", HARD_AFFINITY_WEIGHT) for term in spec.affinity),
            *((item.term, "prefer", item.weight) for item in spec.preferred_affinity),
            *((item.term, "avoid", item.weight) for item in spec.preferred_anti_affinity),
        ]
        for term, role, weight in weighted:
            key = self.term_key(term, namespace)
            self.watch_labels(term.selector.keys())
            counts = self._owning.get((key, role))
            if counts is None:
                counts = self._owning[key, role] = TermCounts()
                self._owners_of.clear()
            for domain in self._domains(term.topology_key, task):
                counts.add(domain, amount * weight)

    def _domains(self, topology_key: str, task: Task, *, leaving: bool = False) -> tuple[int, ...]:
        if topology_key == NODE_DOMAIN:
            return () if task.status is Status.RELEASING else (int(self.table.number[task.row]),)
        if topology_key != CARD_DOMAIN:
            return (int(self.table.label_column(topology_key)[task.row]),)
        if leaving:
            return self._cards_of.get(task.key, ())
        holding = self.table.ledger.holders.get(task.key)
        if holding is None or task.status not in ON_NODE:
            return ()
        numbers = tuple(
            int(self.table.ledger.number[position, holding.row]) for position, *_ in holding.assignment.charges
        )
        self._cards_of[task.key] = numbers
        return numbers


def spread_key(selector: LabelSelector, namespace: str) -> TermKey:
    return TermKey((Pick(selector, (namespace,)),), NODE_DOMAIN)


def card_key(selector: LabelSelector, namespace: str | None) -> TermKey:
    """Pods on a card, of one namespace, or of all (None)."""
    everywhere = LabelSelector() if namespace is None else None
    return TermKey((Pick(selector, () if namespace is None else (namespace,), everywhere),), CARD_DOMAIN)


def _pick(term: AffinityTerm, namespace: str) -> Pick:
    namespaces = term.namespaces
    if not namespaces and term.namespace_selector is None:
        namespaces = (namespace,)
    return Pick(term.selector, tuple(sorted(namespaces)), term.namespace_selector)
