"""Room that victims leave is kept for the pods they were evicted for.

A pod that an earlier plan nominated for a node waits there for its victims to go. Between their end and its turn,
another job could take the room: one that goes first by fair share, or one with a smaller request. So nominated pods
hold their room against jobs of no higher priority, as in kube-scheduler, and against all jobs of other queues, because
otherwise the more important victims of a reclaim would take their room back. They also hold their part of the queue's
share, which the victims would otherwise use up on another node. When their own job is tried, they release their room
for it. A nomination has one chance: if no victim is left on the node and the pod neither starts nor is nominated again
in that cycle, the nomination expires, so that a pod that cannot start for other reasons blocks no node.
"""

import contextlib
from collections.abc import Iterator

from baton.engine.cards.choice import Assignment
from baton.engine.search.places import Places
from baton.engine.state.cluster import ClusterState
from baton.engine.state.columns import FUTURE
from baton.engine.state.jobs import Job, QueueShare, Status, Task
from baton.engine.state.resources import Vector
from baton.model.ids import PodKey, QueueName


class Nominees:
    """Nominated tasks that still wait, and the room they hold."""

    def __init__(self, state: ClusterState, places: Places) -> None:
        self._state = state
        self._places = places
        waiting = [task for job in state.active.values() for task in job.pending.values() if task.nominated is not None]
        self._waiting = sorted(waiting, key=lambda task: (-_priority(task), task.key))
        self.held: dict[PodKey, tuple[Task, int]] = {}
        self._charges: dict[QueueName, tuple[QueueShare, Vector]] = {}
        """By queue name: the amounts that tasks with held room are going to use of the queue."""
        self._in_use = False

    def hold(self, *, in_use: bool = True) -> None:
        """Hold the room on the nominated node, if it is free, for every task that still waits.

        Without `in_use`, as in explanations, no nomination expires when the session closes.
        """
        self._in_use |= in_use
        if not self._waiting:
            return
        table = self._state.table
        for task in self._waiting:
            row = table.row_of.get(task.nominated) if task.nominated is not None else None
            if row is None or task.key in self.held or task.status is not Status.PENDING:
                continue
            assignment = self._room(task, row)
            if assignment is not None:
                self._state.ledger.promise(_ghost(task), row, assignment)
                self._book(task, row, 1)
                self.held[task.key] = (task, row)

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Inside, the queues of tasks with held room are charged for it."""
        for line, charge in self._charges.values():
            line.allocated += charge
        try:
            yield
        finally:
            for line, charge in self._charges.values():
                line.allocated -= charge

    def make_way(self, job: Job) -> None:
        """Release the room of the job's own nominated tasks and of less important ones, before the job is tried."""
        for task, _ in list(self.held.values()) if self.held else ():
            if task.job is job or (_queue(task) is job.queue and _priority(task) < job.priority):
                self._release(task)

    def close(self) -> None:
        """Release all room and end the nominations that had their chance; an explanation gives them none."""
        table = self._state.table
        for task, _ in list(self.held.values()):
            self._release(task)
        for task in self._waiting if self._in_use else ():
            if task.status is not Status.PENDING:
                continue
            row = table.row_of.get(task.nominated) if task.nominated is not None else None
            leaving = row is not None and any(other.status is Status.RELEASING for other in table.tasks[row].values())
            if not leaving:
                task.nominated = None

    def _room(self, task: Task, row: int) -> Assignment | None:
        return self._places.pick_cards(task, row, FUTURE) if self._state.room_for(task, row) else None

    def _release(self, task: Task) -> None:
        _, row = self.held.pop(task.key)
        self._state.ledger.release(_ghost(task))
        self._book(task, row, -1)

    def _book(self, task: Task, row: int, sign: int) -> None:
        table = self._state.table
        table.used[FUTURE, :, row] += sign * task.needs.request
        self._state.attachments.count(task.needs.spec.attachments, row, slice(FUTURE, FUTURE + 1), sign)
        table.unsettled[row] += sign
        table.touch(row)
        for line in task.job.lineage() if task.job is not None else ():
            if line.name not in self._charges:
                self._charges[line.name] = (line, self._state.resources.zeros())
            self._charges[line.name][1][:] += sign * task.needs.charge


def _priority(task: Task) -> int:
    return task.job.priority if task.job is not None else task.priority


def _queue(task: Task) -> QueueShare | None:
    return task.job.queue if task.job is not None else None


def _ghost(task: Task) -> PodKey:
    return PodKey(f"nominated:{task.key}")
