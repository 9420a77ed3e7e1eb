"""EASY backfill: the first gang that does not fit reserves nodes; others may use them only if they are gone in time.

When a job is blocked, and no reservation exists yet in this session, the nodes that will have room for it soonest, by
the expected ends of what runs there, are set aside, and the time when the last of them is free is the shadow time. A
later job may use a reserved node only if it is expected to end before that. So a big gang waits for a bounded time,
and small jobs fill the holes in front of it. Reservations are for concrete nodes, because eight free cards on eight
nodes are no home for a pod of eight cards. A running task without an expected duration is taken to end at `horizon`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from baton.engine.columns import Bools
from baton.engine.jobs import HELD, Job, Task
from baton.engine.nodes import NodeView
from baton.engine.objects import GroupKey
from baton.engine.plugin import Check, Plugin
from baton.engine.session import Session


class EasyBackfillArguments(msgspec.Struct, frozen=True):
    horizon_s: float = msgspec.field(default=86_400.0, name="easy-backfill.horizon")
    """How long a task without an expected duration is thought to run."""
    min_wait_s: float = msgspec.field(default=0.0, name="easy-backfill.min-wait")
    """A blocked job reserves only after it has waited this long."""


class Reservation(NamedTuple):
    job: GroupKey
    shadow_s: float
    rows: frozenset[int]


class EasyBackfillPlugin(Plugin[EasyBackfillArguments]):
    name = "easy-backfill"
    arguments_type = EasyBackfillArguments

    def open(self, session: Session) -> None:
        self._session = session
        self.reservation: Reservation | None = None

    def job_blocked(self, job: Job, stuck: Task | None) -> None:
        """The allocate action could not place the job."""
        if self.reservation is not None or stuck is None:
            return
        if self._session.now_s - job.created_s < self.arguments.min_wait_s:
            return
        self.reservation = self._reserve(job, stuck)

    def sees_world(self, task: Task) -> bool:
        reservation = self.reservation
        return reservation is not None and (task.job is None or task.job.key != reservation.job)

    def world_filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        reservation = self.reservation
        if reservation is None or self._ends_in_time(task, reservation):
            return
        rows = np.arange(nodes.table.count) if nodes.rows is None else nodes.rows
        free: Bools = ~np.isin(rows, list(reservation.rows))
        yield Check("was reserved for a job that has waited longer", free)

    def _ends_in_time(self, task: Task, reservation: Reservation) -> bool:
        if task.job is None or task.job.key == reservation.job:
            return task.job is not None
        expected_s = task.job.group.expected_duration_s
        return expected_s is not None and self._session.now_s + expected_s <= reservation.shadow_s

    def _reserve(self, job: Job, stuck: Task) -> Reservation | None:
        """Enough nodes for the missing members, those that are free soonest."""
        missing = max(job.min_member - job.ready_count(), 1)
        table = self._session.state.table
        whole = table.view()
        usable = whole.column(table.present).copy()
        for check in self._session.checks(stuck, whole):
            if not check.resolvable:
                usable &= check.ok
        openings = [
            (at_s, int(row)) for row in np.flatnonzero(usable) for at_s in self._openings(stuck, int(row), missing)
        ]
        if len(openings) < missing:
            return None
        chosen = sorted(openings)[:missing]
        return Reservation(job.key, chosen[-1][0], frozenset(row for _, row in chosen))

    def _openings(self, task: Task, row: int, most: int) -> list[float]:
        """The times at which the node has room for a first, second, ... such task, as what runs on it ends."""
        session, state = self._session, self._session.state
        times = [session.now_s] * session.copies_that_fit(task, row, most)
        if len(times) >= most:
            return times
        running = [item for item in state.table.tasks[row].values() if item.status in HELD]
        running.sort(key=lambda item: (self._end_s(item), item.key))
        mark = state.checkpoint()
        for item in running:
            session.pretend_ended(item)
            copies = session.copies_that_fit(task, row, most)
            times += [self._end_s(item)] * (copies - len(times))
            if copies >= most:
                break
        state.rollback(mark)
        return times

    def _end_s(self, task: Task) -> float:
        started_s = task.pod.started_s if task.pod.started_s is not None else self._session.now_s
        expected_s = task.job.group.expected_duration_s if task.job is not None else None
        end_s = started_s + (expected_s if expected_s is not None else self.arguments.horizon_s)
        return max(end_s, self._session.now_s)
