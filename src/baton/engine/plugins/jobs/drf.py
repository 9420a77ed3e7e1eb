"""Dominant resource fairness: the job that holds the least of its largest share goes first.

With `enableHierarchy` queues are compared in the tree that their hierarchy annotations describe. A parent's share is
summed from its children after every child that could still use more has been scaled down to the smallest dominant
share among them; otherwise one child that fills an uncontended resource makes its parent look rich and starves its
sibling. A child that cannot use more (blocked) counts in full and does not set that smallest share, and a resource
that is used up does not count in an inner node's share. Weights divide shares before anything is compared, so a child
with a tiny weight does not make its parent look poor.
"""

import math
from collections.abc import Sequence

import numpy as np

from baton.engine.framework import (
    PODS,
    SHARE_EPSILON,
    Bools,
    Floats,
    Job,
    NoArguments,
    OrderKey,
    Plugin,
    QueueShare,
    Rows,
    SessionView,
    Status,
    Task,
    Vector,
    counted,
    dominant_share,
    own_amounts,
    richer_than,
)


class _Branch:
    """A node of the hierarchy: a path such as root/a, with a weight."""

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.children: dict[str, _Branch] = {}
        self.queues: list[QueueShare] = []
        self.share = 0.0
        self.blocked = True
        self.vector: Floats = np.zeros(0)


class DrfPlugin(Plugin[NoArguments]):
    name = "drf"

    def open(self, session: SessionView) -> None:
        self._state = session.state
        self._total = session.state.table.capacity_total.copy()
        self._share_of: dict[str, tuple[int, float]] = {}
        if self.hierarchy:
            self._root = self._build(session)
            self._path = {queue.name: _path(queue) for queue in session.state.queues.values()}

    def job_key(self, job: Job) -> OrderKey:
        return (self._job_share(job),)

    def _job_share(self, job: Job) -> float:
        """Cached by the number of held tasks: a job's share changes only with them."""
        held = job.ready + job.counts[Status.PIPELINED]
        known = self._share_of.get(job.key)
        if known is not None and known[0] == held:
            return known[1]
        share = dominant_share(job.allocated, self._total)
        self._share_of[job.key] = (held, share)
        return share

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """The victims whose job keeps at least the share that the preemptor's job would have."""
        if preemptor.job is None:
            return []
        return richer_than(preemptor.job.allocated + preemptor.needs.charge, victims, self._total)

    def _build(self, session: SessionView) -> _Branch:
        root = _Branch("root", 1.0)
        for queue in session.state.queues.values():
            names = _path(queue)
            weights = [_weight(part) for part in queue.queue.hierarchy_weights.split("/") if part]
            branch = root
            for depth, name in enumerate(names[1:], start=1):
                weight = (weights[depth] if depth < len(weights) else None) or float(queue.queue.weight)
                branch = branch.children.setdefault(name, _Branch(name, max(weight, 1e-9)))
            branch.queues.append(queue)
        return root

    def _measure(self, branch: _Branch, exhausted: Bools) -> None:
        """Compute shares from the leaves up; the module's docstring explains the rescaling."""
        total = self._total.astype(np.float64)
        places = counted(self._total)
        children = list(branch.children.values())
        for child in children:
            self._measure(child, exhausted)
        own: Floats = sum((own_amounts(queue, "allocated") for queue in branch.queues), np.zeros(len(total))).astype(
            np.float64
        )
        if not children:
            branch.vector = own
            branch.blocked = not any(self._can_use_more(queue, exhausted) for queue in branch.queues)
            usable = places
        else:
            branch.blocked = all(child.blocked for child in children)
            moving = [child for child in children if not child.blocked and child.vector.any()]
            least = min((_top(child.vector, total, places) / child.weight for child in moving), default=0.0)
            branch.vector = own.copy()
            for child in children:
                top = _top(child.vector, total, places) / child.weight
                scale = least / top if not child.blocked and top > 0 else 1.0
                branch.vector += child.vector * min(scale, 1.0)
            usable = places[~exhausted[places]] if not branch.blocked else places
        branch.share = _top(branch.vector, total, usable if len(usable) else places)

    def _can_use_more(self, queue: QueueShare, exhausted: Bools) -> bool:
        waiting = own_amounts(queue, "requested") - own_amounts(queue, "allocated")
        wanted = np.flatnonzero(waiting > 0)
        wanted = wanted[wanted != PODS]
        return bool(len(wanted)) and not bool(exhausted[wanted].any())

    def _refresh(self) -> None:
        used = np.zeros(len(self._total))
        for queue in self._state.queues.values():
            if queue.parent is None:
                used = used + queue.allocated
        exhausted: Bools = (self._total > 0) & (used >= self._total)
        self._measure(self._root, exhausted)

    def queue_key(self, queue: QueueShare) -> OrderKey:
        if not self.hierarchy:
            return ()
        self._refresh()
        key: list[float | str] = []
        branch = self._root
        for name in self._path[queue.name][1:]:
            branch = branch.children[name]
            key += [1.0 if branch.blocked else 0.0, branch.share / branch.weight, name]
        return tuple(key)

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """With a hierarchy: victims in branches that keep at least the share that the reclaimer's branch reaches."""
        mine = reclaimer.job.queue if reclaimer.job is not None else None
        if not self.hierarchy or mine is None:
            return None
        chosen = []
        taken: dict[str, Vector] = {}
        for victim in victims:
            theirs = victim.job.queue if victim.job is not None else None
            if theirs is None or theirs is mine:
                continue
            taken[theirs.name] = taken.get(theirs.name, np.zeros_like(victim.needs.charge)) + victim.needs.charge
            ahead = self._share_with(mine, theirs, reclaimer.needs.charge)
            behind = self._share_with(theirs, mine, -taken[theirs.name])
            if ahead <= behind + SHARE_EPSILON:
                chosen.append(victim)
            else:
                taken[theirs.name] = taken[theirs.name] - victim.needs.charge
        return chosen

    def _share_with(self, queue: QueueShare, other: QueueShare, change: Vector) -> float:
        """The weighted share, after a change, of the queue's branch at the point where the paths of both diverge."""
        own, theirs = self._path[queue.name], self._path[other.name]
        depth = next((at for at, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), len(own) - 1)
        branch = self._root
        for name in own[1 : depth + 1]:
            branch = branch.children[name]
        total: Vector = sum(
            (own_amounts(item, "allocated") for item in _all_queues(branch)), np.zeros_like(self._total)
        )
        total = total + change
        return dominant_share(total, self._total) / branch.weight


def _all_queues(branch: _Branch) -> list[QueueShare]:
    return [*branch.queues, *(queue for child in branch.children.values() for queue in _all_queues(child))]


def _path(queue: QueueShare) -> list[str]:
    """The path from the annotation, or otherwise from the parents."""
    if queue.queue.hierarchy:
        names = [part for part in queue.queue.hierarchy.split("/") if part]
        return names if names and names[0] == "root" else ["root", *names]
    names = [str(item.name) for item in reversed(queue.lineage())]
    return names if names[0] == "root" else ["root", *names]


def _weight(text: str) -> float | None:
    """The weight, or None if it is invalid: a mistyped queue must not stop all others."""
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if math.isfinite(weight) and weight > 0 else None


def _top(vector: Floats, total: Floats, places: Rows) -> float:
    return float((vector[places] / total[places]).max()) if len(places) else 0.0
