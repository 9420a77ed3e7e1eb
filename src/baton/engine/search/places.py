"""The search for places: the best node for a task, and the cards that the task gets there.

A node must pass the filters of all plugins and have room; the scores of all plugins are added, and ties go to the first
node name. Results that depend on the node alone are cached between placements (see `signatures`). Results that depend
on pods elsewhere (the `world_` hooks) are computed for every placement.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from baton.engine.cards.choice import NOTHING, Assignment
from baton.engine.objects import LabelSelector
from baton.engine.search.domains import Domains, DomainView, tightness
from baton.engine.search.room import allowed_positions, room_checks
from baton.engine.search.signatures import NEVER, Key, Signature, SignatureCache
from baton.engine.session import hooks
from baton.engine.session.hooks import Hook
from baton.engine.session.plugin import Check, Scope
from baton.engine.session.tiers import Tiers
from baton.engine.state.cluster import ClusterState
from baton.engine.state.columns import BOTH, FUTURE, Array, Bools, Floats, Rows
from baton.engine.state.jobs import Status, Task
from baton.engine.state.nodes import NodeView
from baton.engine.state.resources import PODS, Vector

OUTSIDE = "outside the hyper nodes that the job may use"

R = TypeVar("R")
WorldCalls = Sequence[tuple[Callable[[Task, NodeView], R], Callable[[Task], bool] | None]]
"""For each plugin, its hook for pods elsewhere, and a test whether that hook applies to a task without affinity."""


class Placement(NamedTuple):
    row: int
    assignment: Assignment
    later: bool
    """The room is free only once evicted pods are gone."""


class Places:
    """Finds places for tasks on the nodes of one session."""

    def __init__(self, state: ClusterState, tiers: Tiers, cache: SignatureCache) -> None:
        self._state = state
        self._cache = cache
        self._filters = tiers.calls(hooks.FILTERS)
        self._scores = tiers.calls(hooks.SCORES)
        self._card_scores = tiers.calls(hooks.CARD_SCORES)
        self._domain_scores = tiers.calls(hooks.DOMAIN_SCORES)
        self._sees_world = tiers.calls(hooks.SEES_WORLD)
        self._world_filters = _world_calls(tiers, hooks.WORLD_FILTERS)
        self._world_scores = _world_calls(tiers, hooks.WORLD_SCORES)
        self._card_order = next((plugin.card_order for plugin in tiers.plugins if plugin.card_order), "")
        self._card_rules = tiers.card_exclusions
        for rule in self._card_rules:
            state.placed.watch_labels(rule.keys())
        self._scopes = {plugin.scope for plugin in tiers.plugins}
        self.domains = Domains(state, self)
        self.foreseeing = False
        """Whether tasks that are leaving count as gone, see `foreseen`."""

    def find(self, task: Task) -> Placement | None:
        """The best node with room now, or otherwise the best one with room later."""
        signature = self._cache.of(task, self)
        self._cache.refresh(signature, task, self)
        depends_on_pods = self._depends_on_pods(task)
        within = self.domains.rows(task) if task.job is not None and task.job.group.close else None
        if len(signature.score):
            placement = self._best(task, signature, signature.score, depends_on_pods, within, later=False)
            if placement is not None:
                return placement
        later = self._later(signature, depends_on_pods)
        if later is None or not len(later):
            return None
        with self.foreseen():
            return self._best(task, signature, later, depends_on_pods, within, later=True)

    def is_hopeless(self, task: Task) -> bool:
        """Whether no node would take such a task, regardless of pods elsewhere. Cheap while no node changes."""
        signature = self._cache.of(task, self)
        self._cache.refresh(signature, task, self)
        return signature.is_nowhere()

    def would_take(self, task: Task) -> Bools:
        """Which nodes would take such a task, now or once evicted pods are gone, regardless of pods elsewhere."""
        signature = self._cache.of(task, self)
        self._cache.refresh(signature, task, self)
        fits: Bools = signature.score > NEVER
        return fits if signature.later is None else fits | (signature.later > NEVER)

    def checks(self, task: Task, nodes: NodeView) -> Iterable[Check]:
        """All predicates, in the order in which explanations count them."""
        within = self.domains.rows(task)
        if within is not None:
            allowed = np.zeros(nodes.table.count, dtype=np.bool_)
            allowed[within] = True
            yield Check(OUTSIDE, nodes.column(allowed), resolvable=False)
        for filters in self._filters:
            yield from filters(task, nodes)
        if self._depends_on_pods(task):
            for world_filters, _ in self._world_filters:
                yield from world_filters(task, nodes)
        yield from room_checks(task, nodes, self._state.placed, self._exclusions(task))

    def pick_cards(self, task: Task, row: int, plane: int) -> Assignment | None:
        """Cards of the row in the configured order; an empty assignment for a task that requests none."""
        plan = task.needs.cards
        if not plan.demands:
            return NOTHING
        given = [scores for card_scores in self._card_scores if (scores := card_scores(task, row)) is not None]
        scores = [sum(one) for one in zip(*given, strict=True)] if len(given) > 1 else next(iter(given), None)
        allowed = self._allowed_cards(task, row)
        return self._state.ledger.pick(row, plan, plane, order=self._card_order, allowed=allowed, scores=scores)

    def copies_that_fit(self, task: Task, row: int, most: int = 64) -> int:
        """How many copies of the task the node would take once evicted pods are gone."""
        room = self._state.copies_with_room(task, row, most)
        if not room or not task.needs.cards.demands:
            return room
        allowed = self._allowed_cards(task, row)
        return len(self._state.ledger.foresee(row, task.needs.cards, room, allowed=allowed)[0])

    def domain_scores(self, need: Vector, domains: DomainView) -> Floats:
        """How well the need fits into each domain, by the plugins; without such a plugin, fuller is better."""
        if not self._domain_scores:
            return tightness(need, domains, lambda place: place != PODS)
        total = np.zeros(domains.size)
        for domain_scores in self._domain_scores:
            total += domain_scores(need, domains)
        return total

    def placed(self, task: Task, row: int) -> None:
        """Record that the task was placed on the row, so that its signature moves one state ahead."""
        if task._signature is not None:
            self._cache.placed(task._signature, row)

    @contextlib.contextmanager
    def foreseen(self) -> Iterator[None]:
        """Inside, plugins ignore pods elsewhere that are leaving; for room, the FUTURE plane has the same effect."""
        table, placed = self._state.table, self._state.placed
        unsettled = np.flatnonzero(table.unsettled[: table.count]) if len(placed) else ()
        leaving = [task for row in unsettled for task in table.tasks[row].values() if task.status is Status.RELEASING]
        for task in leaving:
            placed.remove(task)
        self.foreseeing = True
        try:
            yield
        finally:
            self.foreseeing = False
            for task in leaving:
                placed.add(task)

    def fit_and_score(self, task: Task, nodes: NodeView) -> Floats:
        """The sum of scores where all filters pass and the view's plane has room; -inf elsewhere."""
        ok = nodes.column(nodes.table.present).copy()
        for filters in self._filters:
            for check in filters(task, nodes):
                ok &= check.ok
        for check in room_checks(task, nodes, self._state.placed, self._exclusions(task)):
            ok &= check.ok
        total = np.where(ok, 0.0, NEVER)
        for scores in self._scores:
            more = scores(task, nodes)
            if more is not None:
                total += more
        return total

    def fit_now(self, task: Task, nodes: NodeView) -> npt.NDArray[np.bool_]:
        """Whether rows that fit once evicted pods are gone fit on the view's plane: those pods may still hold a port or
        a volume."""
        ok, spec = nodes.true(), task.needs.spec
        for filters in self._filters if spec.host_ports or spec.attachments else ():
            for check in filters(task, nodes):
                ok &= check.ok
        for check in room_checks(task, nodes, self._state.placed, self._exclusions(task)):
            ok &= check.ok
        return ok

    def foresee_cards(self, task: Task, row: int, steps: int) -> tuple[list[Assignment], Array]:
        """See `CardLedger.foresee`. Plugins that score cards read the ledger, so with them nothing can be foreseen."""
        if self._card_scores and task.needs.cards.demands:
            steps = 0
        allowed = self._allowed_cards(task, row)
        return self._state.ledger.foresee(row, task.needs.cards, steps, order=self._card_order, allowed=allowed)

    def signature_key(self, task: Task) -> Key:
        """Tasks with the same key get the same results for nodes."""
        job = task.job
        by_role = Scope.JOB in self._scopes
        by_job = by_role or task.needs.spec.card_rules.spread_group
        by_queue = Scope.QUEUE in self._scopes
        return (
            task.needs.number,
            self._state.placed.label_class(task),
            (job.key, task.pod.role if by_role else "") if by_job and job is not None else None,
            job.group.queue if by_queue and job is not None else None,
            (task.pod.namespace, task.pod.labels) if Scope.LABELS in self._scopes else None,
        )

    def repeatable(self, task: Task) -> bool:
        """Whether placing one such task changes only the room on its node for the next one. Tasks of equal spec use the
        same volumes, so each of them can attach the volumes where the first one could."""
        if task.needs.spec.host_ports or task.needs.ruled or Scope.JOB in self._scopes:
            return False
        return not self._exclusions(task)

    def _best(
        self,
        task: Task,
        signature: Signature,
        scores: Floats,
        depends_on_pods: bool,
        within: Rows | None,
        *,
        later: bool,
    ) -> Placement | None:
        seen = scores if within is None and not depends_on_pods else self._seen(task, scores, within)
        while True:
            row = signature.best() if seen is signature.score else int(seen.argmax())
            if seen[row] == NEVER:
                return None
            assignment = None if later else self._cache.next_cards(signature, row)
            if assignment is None:
                assignment = self.pick_cards(task, row, FUTURE if later else BOTH)
            if assignment is not None:
                return Placement(row, assignment, later)
            # The arrays showed room, but several containers together do not fit.
            scores[row] = NEVER
            seen[row] = NEVER
            signature.best_row = -1

    def _later(self, signature: Signature, depends_on_pods: bool) -> Floats | None:
        """Scores of nodes that will have room. If pods elsewhere matter, nodes with room now are included: the pod that
        rules such a node out may be leaving."""
        table = self._state.table
        if not depends_on_pods or not table.unsettled[: table.count].any():
            return signature.later
        if signature.later is None or not len(signature.later):
            return signature.score.copy()
        return np.maximum(signature.score, signature.later)

    def _seen(self, task: Task, scores: Floats, within: Rows | None) -> Floats:
        """The scores after filters and scores for pods elsewhere; -inf outside the rows that the task may use."""
        view = self._state.table.view(within)
        seen = scores.copy() if within is None else scores[within]
        everyone = self._concerns_others(task)
        for world_filters, sees_world in self._world_filters:
            if everyone or (sees_world is not None and sees_world(task)):
                for check in world_filters(task, view):
                    seen[~check.ok] = NEVER
        for world_scores, sees_world in self._world_scores:
            if everyone or (sees_world is not None and sees_world(task)):
                more = world_scores(task, view)
                if more is not None:
                    seen += more
        if within is None:
            return seen
        confined = np.full(len(scores), NEVER)
        confined[within] = seen
        return confined

    def _depends_on_pods(self, task: Task) -> bool:
        """Whether pods elsewhere influence where the task goes."""
        if self._concerns_others(task):
            return True
        for sees_world in self._sees_world:  # noqa: SIM110  # runs for every placement, and a generator costs more
            if sees_world(task):
                return True
        return False

    def _concerns_others(self, task: Task) -> bool:
        """Whether the task has rules about other pods' labels, or they about its labels; if so, all plugins apply."""
        return task.needs.depends_on_pods or self._state.placed.concerns(task)

    def _allowed_cards(self, task: Task, row: int) -> list[bool] | None:
        exclusions = self._exclusions(task)
        if not task.needs.ruled and not exclusions:
            return None
        view = self._state.table.view(np.array([row], dtype=np.intp))
        return allowed_positions(task, view, self._state.placed, exclusions)

    def _exclusions(self, task: Task) -> tuple[LabelSelector, ...]:
        if not self._card_rules:
            return ()
        labels = dict(task.pod.labels)
        return tuple(rule for rule in self._card_rules if rule.matches(labels))


def _world_calls(tiers: Tiers, hook: Hook[[Task, NodeView], R]) -> WorldCalls[R]:
    watchers = tiers.flat(hooks.SEES_WORLD)
    return [
        (hook.of(plugin), hooks.SEES_WORLD.of(plugin) if plugin in watchers else None) for plugin in tiers.flat(hook)
    ]
