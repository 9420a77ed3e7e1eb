"""Move running pods to better places: those that plugins nominate, and those that block a waiting job.

Defragmentation (`maxMoves` of the action's arguments, 0 = off) makes room for a job that found no node although enough
is free in total: it evicts pods of one node that each fit elsewhere now, so that their owner starts them there. It
never moves a pod without such a place, never more than `maxMoves` pods per cycle, and never against a disruption
budget.
"""

import numpy as np

from baton.engine.search.places import Placement
from baton.engine.session import hooks
from baton.engine.session.session import Session
from baton.engine.session.statement import Statement
from baton.engine.state.columns import BOTH, FUTURE
from baton.engine.state.jobs import HELD, Job, Status, Task
from baton.engine.verdicts import Cause
from baton.model.ids import PodKey

SYSTEM_NAMESPACE = "kube-system"


def shuffle(session: Session) -> None:
    _nominated(session)
    moves = int(session.tiers.action_arguments("shuffle").get("maxMoves", 0))
    if moves <= 0:
        return
    blocked = {
        key: stuck
        for key, (cause, stuck) in session.decisions.blocked.items()
        if cause is Cause.NODES and stuck is not None and key in session.state.jobs and stuck.needs.cards.demands
    }
    places = _Places(session)
    jobs = sorted((session.state.jobs[key] for key in blocked), key=session.votes.job_key)
    for job in session.turns.remaining(jobs):
        moves -= _defragment(session, job, blocked[job.key], moves, places)
        if moves <= 0:
            break
    places.give_back(0)


class _Places:
    """Room reserved for pods that move, so that no two of them rely on the same place."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._taken: list[tuple[Task, int]] = []

    def __len__(self) -> int:
        return len(self._taken)

    def find(self, task: Task, besides: int) -> int | None:
        """Reserve room for the task on a node other than `besides` that fits it now, and return the row."""
        table, ledger = self._session.state.table, self._session.state.ledger
        view = table.view()
        ok = view.column(table.present).copy()
        ok[besides] = False
        for check in self._session.places.checks(task, view):
            ok &= check.ok
        for row in np.flatnonzero(ok).tolist():
            assignment = self._session.places.pick_cards(task, row, BOTH)
            if assignment is not None:
                ledger.promise(_ghost(task), row, assignment)
                table.used[FUTURE, :, row] += task.needs.request
                self._taken.append((task, row))
                return int(row)
        return None

    def give_back(self, keep: int) -> None:
        """Release all reservations except the first `keep`."""
        table, ledger = self._session.state.table, self._session.state.ledger
        while len(self._taken) > keep:
            task, row = self._taken.pop()
            ledger.release(_ghost(task))
            table.used[FUTURE, :, row] -= task.needs.request
            table.touch(row)


def _ghost(task: Task) -> PodKey:
    return PodKey(f"moving:{task.key}")


def _nominated(session: Session) -> None:
    plugins = session.tiers.flat(hooks.VICTIMS)
    if not plugins:
        return
    running = [
        task
        for task in session.state.tasks.values()
        if task.status is Status.RUNNING and task.row >= 0 and _movable(session, task)
    ]
    for plugin in plugins:
        for victim in plugin.victims(running):
            if victim.status in HELD and _within_budgets(session, victim):
                statement = session.statement()
                statement.evict(victim, f"moved away by {plugin.name}")
                statement.commit()


def _defragment(session: Session, job: Job, stuck: Task, most: int, places: _Places) -> int:
    """Clear enough room on one node for the stuck task; returns the number of pods moved."""
    if job.min_member - job.ready_count() > 1:
        return 0
    table = session.state.table
    view = table.view()
    possible = view.column(table.present).copy()
    for check in session.places.checks(stuck, view):
        if not check.resolvable:
            possible &= check.ok
    free = (session.state.ledger.usage[FUTURE, 4, :, : table.count] == 0).sum(axis=0)
    rows = sorted(np.flatnonzero(possible).tolist(), key=lambda row: (-int(free[row]), row))
    for row in rows:
        statement = session.statement()
        kept = len(places)
        moved = _empty(session, stuck, row, most, statement, places)
        if moved:
            assignment = session.places.pick_cards(stuck, row, FUTURE)
            assert assignment is not None
            statement.place(stuck, Placement(row, assignment, later=True))
            statement.commit()
            session.decisions.blocked[job.key] = (Cause.PIPELINED, None)
            return moved
        places.give_back(kept)
        statement.discard()
    return 0


def _empty(session: Session, stuck: Task, row: int, most: int, statement: Statement, places: _Places) -> int:
    """Evict pods that fit elsewhere, smallest first, until the stuck task fits; 0 if that is not possible."""
    candidates = [task for task in session.state.table.tasks[row].values() if _movable(session, task)]
    candidates.sort(key=lambda task: (task.needs.gpu_milli, task.priority, task.key))
    moved = 0
    for task in candidates:
        if moved >= most:
            break
        if not _within_budgets(session, task):
            continue
        elsewhere = places.find(task, row)
        if elsewhere is None:
            continue
        statement.evict(task, f"moved to {session.state.table.name(elsewhere)} to make room for {stuck.key}", stuck)
        moved += 1
        if session.state.room_for(stuck, row) and session.places.pick_cards(stuck, row, FUTURE) is not None:
            return moved
    return 0


def _movable(session: Session, task: Task) -> bool:
    return session.decisions.may_go(task) and not task.pod.critical and task.pod.namespace != SYSTEM_NAMESPACE


def _within_budgets(session: Session, victim: Task) -> bool:
    left = session.decisions.disruptions_left()
    return all(left[key] > 0 for key in session.state.covering(victim.pod))
