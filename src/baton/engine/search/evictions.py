"""Making room for a task: the choice of a node and of victims, with no more victims than needed.

A node is a candidate if evictions can resolve everything that speaks against it. On a candidate, allowed victims are
evicted one by one, least important first, until the task fits; then each victim is spared if the task fits without its
eviction. Among the candidates that work, the one with the least important and fewest victims wins. For a gang, victims
are spared a second time when all members have their places.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from baton.engine.search.domains import DONE, Rank
from baton.engine.search.places import Placement
from baton.engine.search.room import fits_empty
from baton.engine.session.decisions import EVICTABLE
from baton.engine.session.session import Session
from baton.engine.session.statement import Statement
from baton.engine.state.columns import BOTH, FUTURE
from baton.engine.state.jobs import Job, Task
from baton.engine.verdicts import Cause
from baton.model.names import PodGroupPhase

CANDIDATES = 16
"""The number of nodes that are tried; more would occasionally find fewer victims, but slow down every cycle."""

_SPARING_LIMIT = 256
"""Sparing is tried up to this product of members and victims of a gang; beyond it, it costs more than it saves."""

Allowed = Callable[[Task, Sequence[Task]], list[Task]]


class Candidate(NamedTuple):
    """One way to make room. Sorts by cost."""

    top_priority: int
    number: int
    sum_priority: int
    row: int
    victims: tuple[Task, ...]


class Failures:
    """The kinds of jobs for which an action failed to make room.

    Equal jobs have the same victims, so until something else is decided, one failure holds for all of them. Jobs are
    equal if they agree in everything that plugins may use to judge victims: spec and labels of the tasks, queue,
    priorities, and the resources that the job holds.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kinds: set[tuple[object, ...]] = set()
        self._as_of = session.decisions.commitments()

    def knows(self, job: Job) -> bool:
        if self._as_of != self._session.decisions.commitments():
            self._kinds.clear()
            self._as_of = self._session.decisions.commitments()
        kind = self._kind(job)
        return kind is not None and kind in self._kinds

    def add(self, job: Job) -> None:
        kind = self._kind(job)
        if kind is not None and self._as_of == self._session.decisions.commitments():
            self._kinds.add(kind)

    def _kind(self, job: Job) -> tuple[object, ...] | None:
        tasks = job.uniform_tasks()
        if tasks is None or job.group.min_role_members or (job.group.close and job.ready):
            return None
        return (
            self._session.places.signature_key(tasks[0]),
            job.group.queue,
            job.group.namespace,
            job.priority,
            tuple(sorted((task.priority, task.pod.can_preempt) for task in tasks)),
            job.min_member - job.ready,
            job.allocated.tobytes(),
            job.group.closeness,
            job.group.parts,
        )


def starving_jobs(session: Session) -> list[Job]:
    """Jobs that may evict others, in order. Jobs that are held back are left out: they may not even use free room."""
    starving = [
        job
        for job in session.state.active.values()
        if job.queue is not None
        and session.decisions.blocked.get(job.key, (None, None))[0] is not Cause.HELD_BACK
        and job.phase is not PodGroupPhase.PENDING
        and job.pending
        and session.votes.job_valid(job) is None
        and session.votes.job_starving(job)
    ]
    return sorted(starving, key=session.votes.job_key)


def evicting_tasks(session: Session, job: Job) -> list[Task]:
    """The job's waiting tasks that may evict others, in order."""
    tasks = [task for task in job.pending.values() if not task.needs.best_effort and task.pod.can_preempt]
    return sorted(tasks, key=session.votes.task_key)


def place_starving(session: Session, job: Job, statement: Statement, place: Callable[[Task], bool]) -> None:
    """Place the job's tasks until it no longer starves or one of them finds no place."""

    def fed(_tasks: Sequence[Task]) -> bool:
        return not session.votes.job_starving(job)

    if not fed(()):
        waiting = evicting_tasks(session, job)[::-1]
        session.places.domains.fill(job, waiting, statement, place, fed, all_or_nothing=True, evicting=True)


def make_way_for(session: Session, job: Job, statement: Statement, place: Callable[[Task], bool]) -> None:
    """Place the job's tasks with `place`, which may evict; all in one hyper node if the job requires it."""

    def attempt() -> Rank | None:
        place_starving(session, job, statement, place)
        if not session.votes.job_pipelined(job):
            return None
        gone = [victim.priority for victim, _, _ in statement.evicted]
        return (1, max(gone), len(gone)) if gone else DONE

    session.places.domains.attempt(job, statement, attempt, evicting=True)


def keep_or_discard(session: Session, job: Job, statement: Statement) -> bool:
    """Commit the evictions only if the job's whole gang then has its places; true if it has."""
    kept = session.votes.job_pipelined(job) and bool(statement.evicted or statement.pipelined or statement.allocated)
    if kept:
        statement.commit()
        session.decisions.blocked[job.key] = (Cause.PIPELINED, None)
    else:
        statement.discard()
    session.nominees.hold()
    return kept


def spare_needless(session: Session, job: Job, statement: Statement, permitted: Callable[[Task], bool]) -> Statement:
    """The attempt without the victims that its gang does not need.

    Members get their room one after the other, so an eviction for one member may become needless after evictions for
    the next. Victims are checked from the most important down: a victim is spared if all members, placed again
    together, have their places without its eviction.
    """
    kept = _Attempt.of(statement)
    size = len(kept.places) * len(kept.victims)
    if len(kept.places) < 2 or len(kept.victims) < 2 or size > _SPARING_LIMIT or not session.votes.job_pipelined(job):
        return statement
    tasks = sorted((task for task, _, _ in kept.places), key=session.votes.task_key)
    changed = True
    while changed:
        changed = False
        for victim in sorted(kept.victims, key=lambda item: _importance(item[0]), reverse=True):
            statement.discard()
            fewer = [item for item in kept.victims if item[0] is not victim[0]]
            statement = _placed_again(session, tasks, fewer, permitted)
            if len(statement.allocated) + len(statement.pipelined) == len(tasks) and session.votes.job_pipelined(job):
                kept, changed = _Attempt.of(statement), True
            else:
                statement.discard()
                statement = kept.again(session)
    return statement


class _Attempt(NamedTuple):
    """The decisions of an attempt, so that it can be repeated."""

    places: list[tuple[Task, int, bool]]
    victims: list[tuple[Task, str, Task | None]]

    @classmethod
    def of(cls, statement: Statement) -> "_Attempt":
        now = [(task, row, False) for task, row, _ in statement.allocated]
        return cls([*now, *((task, row, True) for task, row in statement.pipelined)], list(statement.evicted))

    def again(self, session: Session) -> Statement:
        statement = session.statement()
        for victim, reason, for_task in self.victims:
            statement.evict(victim, reason, for_task)
        for task, row, later in self.places:
            with session.places.foreseen() if later else contextlib.nullcontext():
                assignment = session.places.pick_cards(task, row, FUTURE if later else BOTH)
            assert assignment is not None, f"{task} fitted on row {row} a moment ago"
            statement.place(task, Placement(row, assignment, later))
        return statement


def _placed_again(
    session: Session,
    tasks: Sequence[Task],
    victims: Sequence[tuple[Task, str, Task | None]],
    permitted: Callable[[Task], bool],
) -> Statement:
    """Place as many of the tasks as fit when these victims have left."""
    statement = session.statement()
    for victim, reason, for_task in victims:
        statement.evict(victim, reason, for_task)
    for task in tasks:
        placement = session.places.find(task) if permitted(task) else None
        if placement is None:
            break
        statement.place(task, placement)
    return statement


class RoomMaker:
    """Makes room for tasks of one job. `by_row` has the possible victims, `eligible` is the rule of the action."""

    def __init__(
        self,
        session: Session,
        by_row: Mapping[int, Sequence[Task]],
        eligible: Callable[[Task], bool],
        allowed: Allowed,
        reason: str,
    ) -> None:
        self._session = session
        self._allowed = allowed
        self._reason = reason
        self._eligible = eligible
        self._by_row = by_row
        self.permitted: Callable[[Task], bool] = lambda _task: True
        """Whether the task may be placed; checked after its victims have left, because its queue may use their room."""

    def make_room(self, task: Task, statement: Statement) -> bool:
        """Place the task, evicting where needed; false leaves everything as it was."""
        placement = self._session.places.find(task) if self.permitted(task) else None
        if placement is not None:
            statement.place(task, placement)
            return True
        best = next((found for rows in self._rows(task) if (found := self._cheapest(task, rows, statement))), None)
        if best is None:
            return False
        for victim in best.victims:
            statement.evict(victim, self._reason, task)
        with self._session.places.foreseen():
            assignment = self._session.places.pick_cards(task, best.row, FUTURE)
        assert assignment is not None, f"{task} fitted on row {best.row} a moment ago"
        statement.place(task, Placement(best.row, assignment, later=True))
        return True

    def _cheapest(self, task: Task, rows: Sequence[int], statement: Statement) -> Candidate | None:
        found: list[Candidate] = []
        for row in rows:
            candidate = self._try(task, row, statement)
            if candidate is not None:
                found.append(candidate)
                if len(found) >= CANDIDATES or candidate.number <= 1:
                    break
        return min(found, default=None)

    def _rows(self, task: Task) -> Iterator[list[int]]:
        """Candidate rows, those with the least important tasks first; a second list in case the first one fails."""
        view = self._session.state.table.view()
        possible = fits_empty(task, view) & view.column(view.table.present)
        for check in self._session.places.checks(task, view):
            if not check.resolvable:
                possible &= check.ok
        # One query about all tasks is cheaper than one per row, and most tasks may not evict any other. A queue or a
        # gang that can spare one task names one; if that one does not help, another one on another row may.
        on_row = {row: others for row in self._by_row if possible[row] and (others := self._on(row))}
        allowed = self._allowed(task, [other for others in on_row.values() for other in others])
        named = {other.row for other in allowed}
        for rows in (named, on_row.keys() - named) if named else ():
            least = {row: min(map(_importance, on_row[row])) for row in rows}
            yield sorted(rows, key=lambda row: (least[row], row))

    def _on(self, row: int) -> list[Task]:
        """The tasks on the row that can still be evicted."""
        return [other for other in self._by_row[row] if other.status in EVICTABLE and self._eligible(other)]

    def _try(self, task: Task, row: int, statement: Statement) -> Candidate | None:
        victims = self._allowed(task, sorted(self._on(row), key=_importance))
        if not victims:
            return None
        mark = statement.checkpoint()
        gone: list[Task] = []
        try:
            for victim in sorted(victims, key=_importance):
                statement.evict(victim, self._reason, task)
                gone.append(victim)
                if self._fits(task, row):
                    break
            else:
                return None
            for victim in reversed(gone[:-1]):
                statement.spare(victim)
                if self._fits(task, row):
                    gone = [other for other in gone if other is not victim]
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

    def _fits(self, task: Task, row: int) -> bool:
        """Check room, cards and every predicate as if the victims had left."""
        session = self._session
        if not self.permitted(task) or not session.state.room_for(task, row):
            return False
        with session.places.foreseen():
            if session.places.pick_cards(task, row, FUTURE) is None:
                return False
            view = session.state.table.view(np.array([row], dtype=np.intp))
            return all(bool(check.ok[0]) for check in session.places.checks(task, view))


def _importance(task: Task) -> tuple[int, int, float, str]:
    """Sorts the least important first: low priority, then the youngest."""
    job_priority = task.job.priority if task.job is not None else 0
    return (job_priority, task.priority, -task.pod.created_s, task.key)
