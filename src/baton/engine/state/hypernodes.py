"""The network as a forest of hyper nodes: the nodes that each hyper node holds, by row, tier by tier.

A hyper node lists nodes (by name, pattern or labels) and hyper nodes of a lower tier, whose nodes it also holds.
People write these lists by hand, so any mistake is possible, and no mistake stops scheduling: a member of the same or a
higher tier is left out (which rules out cycles), an unknown member is left out until it appears, and overlapping sets
are used as they are. `problems` has a sentence for each hyper node with members that were left out or look doubtful.

Rows are computed when a session opens, if hyper nodes, nodes or relevant labels have changed. A pattern is matched
against a node's name once, with RE2: Go programs use this dialect for such patterns, and its time is linear in the
length of the name whatever the pattern; with Python's `re`, one pattern could stop the scheduler.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import re2

from baton.engine.objects import Closeness, HyperNode, HyperNodeMember, NodeTerm, Requirement
from baton.engine.search.selectors import term_holds
from baton.engine.state.columns import Array, Bools, Rows
from baton.engine.state.nodes import NodeTable
from baton.model.ids import NodeName


class Domain(NamedTuple):
    """A hyper node that holds at least one node."""

    name: str
    tier: int
    rows: Rows


class Tier:
    """The domains of one tier. `sums` adds up a value per node for all of them in one pass."""

    def __init__(self, number: int, domains: list[Domain], count: int) -> None:
        self.number = number
        self.domains = domains
        self._count = count
        self.members: Rows = np.concatenate([domain.rows for domain in domains])
        self._starts = np.cumsum([0, *(len(domain.rows) for domain in domains[:-1])])

    def sums(self, values: Array) -> Array:
        """`values` has one entry per row of the node table, the result one per domain."""
        result: Array = np.add.reduceat(values[self.members], self._starts)
        return result

    @functools.cached_property
    def owners(self) -> Rows:
        """For each row of the node table the index of its domain in `domains`, or -1 if it is in none."""
        owners = np.full(self._count, -1, dtype=np.intp)
        for place in reversed(range(len(self.domains))):
            owners[self.domains[place].rows] = place
        return owners

    def holding(self, rows: Rows) -> Bools:
        """Which domains contain all of these (distinct) rows."""
        wanted = np.zeros(self._count, dtype=np.int64)
        wanted[rows] = 1
        result: Bools = self.sums(wanted) == len(rows)
        return result


def compiled(pattern: str) -> Any:
    """The compiled expression; raises ValueError with the reason when the pattern is invalid."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        [reason] = error.args
        raise ValueError(reason.decode()) from None


class _Pattern:
    """A regular expression and the names it has been matched against."""

    def __init__(self, text: str) -> None:
        self.problem = ""
        self._known: set[str] = set()
        self._hits: set[str] = set()
        self._expression: Any = None
        try:
            self._expression = compiled(text)
        except ValueError as error:
            self.problem = f"pattern {text!r} is not a regular expression: {error}"

    def matching(self, names: set[str]) -> set[str]:
        """The names that match; `names` is not changed."""
        if self._expression is not None:
            self._hits |= {name for name in names - self._known if self._expression.search(name)}
        self._hits &= names
        self._known = names
        return self._hits


class Forest:
    """All hyper nodes, and the tiers that they form with the current nodes."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.hyper_nodes: dict[str, HyperNode] = {}
        self.tiers: list[Tier] = []
        """Lowest first; hyper nodes without nodes are in no tier."""
        self.counts: dict[str, int] = {}
        """How many nodes each hyper node holds."""
        self.problems: dict[str, str] = {}
        """By hyper node: a sentence about what is wrong with it."""
        self.version = 0
        """Grows whenever the tiers are recomputed."""
        self._patterns: dict[tuple[str, bool], _Pattern] = {}
        self._nodes: set[str] = set()
        self._others: set[str] = set()
        self._stale = False
        self._epoch = -1

    def put(self, hyper_node: HyperNode) -> None:
        if self.hyper_nodes.get(hyper_node.name) != hyper_node:
            self.hyper_nodes[hyper_node.name] = hyper_node
            self._stale = True

    def remove(self, name: str) -> None:
        if self.hyper_nodes.pop(name, None) is not None:
            self._stale = True

    def labels_changed(self) -> None:
        """The labels of a node changed."""
        self._stale = self._stale or bool(self.hyper_nodes)

    def settle(self) -> None:
        """Recompute the tiers if anything changed; the node table must be sorted."""
        if not self._stale and self._epoch == self._table.epoch:
            return
        self._stale = False
        self._epoch = self._table.epoch
        if self.hyper_nodes or self.tiers:
            self._recompute()

    def named_tier(self, closeness: Closeness) -> int | None:
        """The highest allowed tier; None for any, -1 when no tier has the given name."""
        if closeness.highest_tier is not None or not closeness.highest_tier_name:
            return closeness.highest_tier
        named = [item.tier for item in self.hyper_nodes.values() if item.tier_name == closeness.highest_tier_name]
        return max(named, default=-1)

    def up_to(self, closeness: Closeness) -> Iterator[Tier]:
        """The tiers whose domains pods of this closeness may span, lowest first."""
        highest = self.named_tier(closeness)
        for tier in self.tiers:
            if highest is None or tier.number <= highest:
                yield tier

    def _recompute(self) -> None:
        self.version += 1
        self.problems, self.counts = {}, {}
        used = {
            (member.pattern, member.nodes)
            for item in self.hyper_nodes.values()
            for member in item.members
            if member.pattern
        }
        self._patterns = {key: self._patterns.get(key) or _Pattern(key[0]) for key in used}
        self._nodes, self._others = set(self._table.row_of), set(self.hyper_nodes)
        masks: dict[str, Bools] = {}
        by_tier: dict[int, list[Domain]] = {}
        for item in sorted(self.hyper_nodes.values(), key=lambda item: (item.tier, item.name)):
            mask = np.zeros(self._table.count, dtype=np.bool_)
            problems = [self._add(item, member, mask, masks) for member in item.members]
            masks[item.name] = mask
            rows = np.flatnonzero(mask)
            self.counts[item.name] = len(rows)
            if len(rows):
                by_tier.setdefault(item.tier, []).append(Domain(item.name, item.tier, rows))
            else:
                problems.append("it contains no node of the cluster")
            found = [problem for problem in problems if problem]
            if found:
                self.problems[item.name] = "; ".join(found)
        self.tiers = [Tier(number, by_tier[number], self._table.count) for number in sorted(by_tier)]
        for tier in self.tiers:
            self._find_overlaps(tier)

    def _add(self, item: HyperNode, member: HyperNodeMember, mask: Bools, masks: dict[str, Bools]) -> str:
        """Add the member's nodes to the mask; returns a sentence about anything that was left out."""
        if member.nodes:
            return self._add_nodes(member, mask)
        if member.selector is not None:
            return "hyper nodes must be listed by name or pattern, not by labels"
        if member.pattern:
            pattern = self._patterns[member.pattern, False]
            names, problem = sorted(pattern.matching(self._others)), pattern.problem
        else:
            names, problem = [member.name], ""
        for name in names:
            other = self.hyper_nodes.get(name)
            if other is None:
                problem = f"hyper node {name} does not exist"
            elif other.tier >= item.tier and not (member.pattern and name == item.name):
                problem = f"hyper node {name} is ignored because its tier {other.tier} is not below {item.tier}"
            elif name in masks:
                mask |= masks[name]
        return problem

    def _add_nodes(self, member: HyperNodeMember, mask: Bools) -> str:
        row_of = self._table.row_of
        if member.selector is not None:
            terms = (
                *(Requirement(key, "In", (value,)) for key, value in member.selector.labels),
                *member.selector.expressions,
            )
            mask |= term_holds(NodeTerm(terms), self._table.view()) if terms else True
            return ""
        if member.pattern:
            pattern = self._patterns[member.pattern, True]
            hits = pattern.matching(self._nodes)
            mask[np.array([row_of[NodeName(name)] for name in hits], dtype=np.intp)] = True
            return pattern.problem
        row = row_of.get(NodeName(member.name))
        if row is None:
            return f"node {member.name} does not exist"
        mask[row] = True
        return ""

    def _find_overlaps(self, tier: Tier) -> None:
        owner = np.full(self._table.count, -1)
        for place, domain in enumerate(tier.domains):
            shared = owner[domain.rows]
            if (shared >= 0).any():
                first = tier.domains[int(shared.max())].name
                sentence = f"it shares nodes with {first}, which has the same tier {tier.number}"
                known = self.problems.get(domain.name)
                self.problems[domain.name] = f"{known}; {sentence}" if known else sentence
            owner[domain.rows] = place
