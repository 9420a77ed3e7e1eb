"""Making room for one task: which node, which victims, and no victim more than needed.

A node is a candidate when only things that evictions can change stand against it. On a candidate, allowed victims go
one by one, the least important first, until the task fits; then each is spared again if the task fits without it. Of
the candidates that work, the one with the least important and fewest victims is taken.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from baton.engine.columns import FUTURE
from baton.engine.jobs import Status, Task
from baton.engine.room import fits_empty
from baton.engine.session import Placement, Session
from baton.engine.statement import Statement

CANDIDATES = 16
"""Nodes that are tried out; more would find fewer victims now and then, at a price in every cycle."""

EVICTABLE = frozenset({Status.BOUND, Status.RUNNING})
"""Not what this or an unconfirmed plan has just bound: a plan must not both start and stop a pod."""

Allowed = Callable[[Task, Sequence[Task]], list[Task]]


class Candidate(NamedTuple):
    """One way to make room. Sorts by what it costs."""

    top_priority: int
    number: int
    sum_priority: int
    row: int
    victims: tuple[Task, ...]


class RoomMaker:
    """For tasks of one job and one action; remembers who is on which node."""

    def __init__(self, session: Session, eligible: Callable[[Task], bool], allowed: Allowed, reason: str) -> None:
        self._session = session
        self._allowed = allowed
        self._reason = reason
        self._eligible = eligible
        self._by_row: dict[int, list[Task]] | None = None
        self.permitted: Callable[[Task], bool] = lambda _task: True
        """Whether the task may be placed, asked when its victims have left: what they used is its queue's to use."""

    def make_room(self, task: Task, statement: Statement) -> bool:
        """Place the task, evicting where needed; false leaves everything as it was."""
        placement = self._session.find(task) if self.permitted(task) else None
        if placement is not None:
            statement.place(task, placement)
            return True
        best: Candidate | None = None
        tried = 0
        for row in self._rows(task):
            candidate = self._try(task, row, statement)
            if candidate is not None:
                tried += 1
                best = candidate if best is None or candidate < best else best
                if tried >= CANDIDATES or candidate.number <= 1:
                    break
        if best is None:
            return False
        for victim in best.victims:
            statement.evict(victim, self._reason, task)
        assignment = self._session.pick_cards(task, best.row, FUTURE)
        assert assignment is not None, f"{task} fitted on row {best.row} a moment ago"
        statement.place(task, Placement(best.row, assignment, later=True))
        return True

    def _rows(self, task: Task) -> list[int]:
        """Candidate rows, those with the least important tasks first."""
        view = self._session.state.table.view()
        possible = fits_empty(task, view) & view.column(view.table.present)
        for check in self._session.checks(task, view):
            if not check.resolvable:
                possible &= check.ok
        on_row = self._victims_by_row()
        # One question about everybody is cheaper than one per row, and most tasks may evict nobody at all.
        anybody = self._allowed(task, [other for row, others in on_row.items() if possible[row] for other in others])
        rows = sorted({other.row for other in anybody})
        rows.sort(key=lambda row: (min(_importance(other) for other in on_row[row]), row))
        return rows

    def _victims_by_row(self) -> dict[int, list[Task]]:
        if self._by_row is None:
            self._by_row = {}
            for row, tasks in enumerate(self._session.state.table.tasks):
                members = [other for other in tasks.values() if other.status in EVICTABLE and self._eligible(other)]
                if members:
                    self._by_row[row] = members
        return self._by_row

    def _try(self, task: Task, row: int, statement: Statement) -> Candidate | None:
        present = [other for other in self._victims_by_row()[row] if other.status in EVICTABLE and other is not task]
        victims = self._allowed(task, sorted(present, key=_importance))
        if not victims:
            return None
        mark = statement.checkpoint()
        gone: list[Task] = []
        try:
            for victim in sorted(victims, key=_importance):
                statement.evict(victim, self._reason, task)
                gone.append(victim)
                if self._fits(task, row, gone):
                    break
            else:
                return None
            for victim in reversed(gone[:-1]):
                statement.spare(victim)
                fewer = [other for other in gone if other is not victim]
                if self._fits(task, row, fewer):
                    gone = fewer
                else:
                    statement.evict(victim, self._reason, task)
        finally:
            statement.rollback(mark)
        return Candidate(
            max(victim.priority for victim in gone),
            len(gone),
            sum(victim.priority for victim in gone),
            row,
            tuple(gone),
        )

    def _fits(self, task: Task, row: int, gone: Sequence[Task]) -> bool:
        """Room, cards and every predicate, as if the victims had left."""
        session = self._session
        if (
            not self.permitted(task)
            or not session.state.room_for(task, row)
            or session.pick_cards(task, row, FUTURE) is None
        ):
            return False
        placed = session.state.placed
        for victim in gone:
            placed.remove(victim)
        try:
            view = session.state.table.view(np.array([row], dtype=np.intp))
            return all(bool(check.ok[0]) for check in session.checks(task, view))
        finally:
            for victim in gone:
                placed.add(victim)


def _importance(task: Task) -> tuple[int, int, float, str]:
    """Least important first: low priority, then the youngest."""
    job_priority = task.job.priority if task.job is not None else 0
    return (job_priority, task.priority, -task.pod.created_s, task.key)
