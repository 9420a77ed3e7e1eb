"""EASY backfill: a gang that does not fit reserves nodes; others may use them only if that does not delay it.

When a job is blocked and the session has no reservation yet, the plugin reserves the nodes that will have room for the
job soonest, by the expected ends of the tasks there. The time when the last of them is free is the shadow time. A later
job may use a reserved node only if it is expected to end before the shadow time, or if the reserved room is free at
that time anyway. So a big gang waits for a bounded time, and small jobs fill the gaps before it. Reservations are for
concrete nodes, because eight free cards on eight nodes do not fit a pod with eight cards. For a gang that must be
close, they are in one hyper node that it may use: the one that has room for the whole gang soonest.

Expected durations are often wrong, mostly too short. A task that exceeds its expected duration is expected to run as
long again. Such guesses may stay wrong, and the shadow time then keeps moving away from the job; so once a job has
waited for `firm-after`, expected durations are taken literally. A task that exceeds its expected duration is then due
now, no new task starts beside it, and no other node looks better unless it is really free. The tasks there end, and the
job starts: no job starves, whatever the order of jobs and however bad the guesses.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np

from baton.engine.framework import BOTH, HELD, Bools, Check, Job, NodeView, OrderKey, Plugin, SessionView, Status, Task
from baton.model.ids import GroupKey

FREE_NOW = float("-inf")
"""Earlier than any expected end, including those that have passed."""
ROWS_TO_SPARE = 16
"""How many nodes beyond those needed are examined in detail, selected by a rough guess of which are free soonest."""
DOMAINS_COMPARED = 8
"""How many hyper nodes are compared in detail, selected by the same guess."""


class EasyBackfillArguments(msgspec.Struct, frozen=True):
    horizon_s: float = msgspec.field(default=86_400.0, name="easy-backfill.horizon")
    """The assumed duration of a task without an expected duration."""
    min_wait_s: float = msgspec.field(default=0.0, name="easy-backfill.min-wait")
    """With 0, the first blocked job reserves. Otherwise the job that has waited longest, and at least this long, goes
    first and may reserve."""
    firm_after_s: float = msgspec.field(default=30 * 86_400.0, name="easy-backfill.firm-after")
    """After this wait a reservation no longer gives way to tasks that run longer than expected. This is a last resort:
    in a cluster with more demand than cards, where all jobs wait longer than this, it is close to strict order."""


class Reservation(NamedTuple):
    job: GroupKey
    stuck: Task
    shadow_s: float
    copies: dict[int, int]
    """By row: the number of tasks that will go there."""


class EasyBackfillPlugin(Plugin[EasyBackfillArguments]):
    name = "easy-backfill"
    arguments_type = EasyBackfillArguments

    def open(self, session: SessionView) -> None:
        self._session = session
        self.reservation: Reservation | None = None
        self._reserved: Bools = np.zeros(0, dtype=np.bool_)
        self._harmless: dict[tuple[int, int], bool] = {}
        self._firm = False
        self._eldest: GroupKey | None = None
        if self.arguments.min_wait_s:
            waiting = [job for job in session.state.active.values() if job.pending and self._may_reserve(job)]
            eldest = min(waiting, key=lambda job: (job.created_s, job.key), default=None)
            self._eldest = eldest.key if eldest is not None else None

    def job_key(self, job: Job) -> OrderKey:
        return (job.key != self._eldest,)

    def job_blocked(self, job: Job, stuck: Task | None) -> None:
        """The allocate action could not place the job; if no hyper node was suitable, it tried no task at all."""
        if stuck is None and job.group.close:
            stuck = min(job.asking(), key=self._session.task_key, default=None)
        if (
            self.reservation is None
            and stuck is not None
            and self._eldest in (None, job.key)
            and self._may_reserve(job)
        ):
            self.reservation = self._reserve(job, stuck)
            if self.reservation is not None:
                self._reserved = np.zeros(self._session.state.table.count, dtype=np.bool_)
                self._reserved[list(self.reservation.copies)] = True

    def minds_blocked(self, job: Job) -> bool:
        return not self.arguments.min_wait_s or job.key == self._eldest

    def job_started(self, job: Job) -> None:
        self._harmless.clear()

    def sees_world(self, task: Task) -> bool:
        reservation = self.reservation
        return reservation is not None and (task.job is None or task.job.key != reservation.job)

    def world_filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        reservation = self.reservation
        if reservation is None or self._ends_in_time(task, reservation):
            return
        free: Bools = ~self._reserved if nodes.rows is None else ~self._reserved[nodes.rows]
        rows = range(nodes.table.count) if nodes.rows is None else nodes.rows.tolist()
        for place in np.flatnonzero(~free).tolist():
            free[place] = self._is_harmless(task, int(rows[place]), reservation)
        yield Check("reserved for a job that has waited longer", free)

    def _may_reserve(self, job: Job) -> bool:
        return self._session.now_s - job.created_s >= self.arguments.min_wait_s

    def _ends_in_time(self, task: Task, reservation: Reservation) -> bool:
        if task.job is None or task.job.key == reservation.job:
            return task.job is not None
        expected_s = task.job.group.expected_duration_s
        return expected_s is not None and self._session.now_s + expected_s <= reservation.shadow_s

    def _is_harmless(self, task: Task, row: int, reservation: Reservation) -> bool:
        """Whether the reserved room on the row is free at the shadow time even if the task stays; cached per spec."""
        known = self._harmless.get((task.needs.number, row))
        if known is None:
            known = self._harmless[task.needs.number, row] = self._leaves_room(task, row, reservation)
        return known

    def _leaves_room(self, task: Task, row: int, reservation: Reservation) -> bool:
        session, state = self._session, self._session.state
        assignment = session.pick_cards(task, row, BOTH) if state.room_for(task, row) else None
        if assignment is None:
            return False
        mark = state.checkpoint()
        state.move(task, Status.ALLOCATED, row, assignment)
        for item in list(state.table.tasks[row].values()):
            if item is not task and item.status in HELD and self._end_s(item) <= reservation.shadow_s:
                state.move(item, Status.FAILED)
        wanted = reservation.copies[row]
        copies = session.copies_that_fit(reservation.stuck, row, wanted)
        state.rollback(mark)
        return copies >= wanted

    def _reserve(self, job: Job, stuck: Task) -> Reservation | None:
        """Reserve enough nodes for the missing members: those that are free soonest."""
        session = self._session
        missing = max(job.min_member - job.ready_count(), 1)
        table = session.state.table
        whole = table.view()
        usable = whole.column(table.present).copy()
        for check in session.checks(stuck, whole):
            if not check.resolvable:
                usable &= check.ok
        self._firm = session.now_s - job.created_s >= self.arguments.firm_after_s
        domains = session.could_hold(job)
        if domains is None:
            return self._reserve_among(job, stuck, np.flatnonzero(usable).tolist(), missing)
        usable_rows: list[list[int]] = [rows[usable[rows]].tolist() for rows in domains]
        rough_s = {row: self._roughly_free_s(stuck, row) for row in {row for rows in usable_rows for row in rows}}
        soonest = sorted(
            filter(None, usable_rows), key=lambda rows: sorted(map(rough_s.__getitem__, rows))[:missing][-1]
        )
        possible = filter(None, (self._reserve_among(job, stuck, rows, missing) for rows in soonest))
        return min(islice(possible, DOMAINS_COMPARED), key=lambda found: found.shadow_s, default=None)

    def _reserve_among(self, job: Job, stuck: Task, rows: list[int], missing: int) -> Reservation | None:
        if len(rows) > missing + ROWS_TO_SPARE:
            rows = sorted(rows, key=lambda row: (self._roughly_free_s(stuck, row), row))[: missing + ROWS_TO_SPARE]
        openings = [(at_s, row) for row in rows for at_s in self._openings(stuck, row, missing)]
        if len(openings) < missing:
            return None
        chosen = sorted(openings)[:missing]
        copies: dict[int, int] = {}
        for _, row in chosen:
            copies[row] = copies.get(row, 0) + 1
        return Reservation(job.key, stuck, chosen[-1][0], copies)

    def _roughly_free_s(self, task: Task, row: int) -> float:
        """When enough of the node's computing power will be free for one such task, on whichever cards."""
        state, wanted = self._session.state, task.needs.gpu_milli
        held = [item for item in state.table.tasks[row].values() if item.status in HELD]
        free = 1000 * len(state.table.node(row).cards) - sum(item.needs.gpu_milli for item in held)
        at_s = FREE_NOW
        for end_s, milli in sorted((self._end_s(item), item.needs.gpu_milli) for item in held):
            if free >= wanted:
                break
            at_s, free = end_s, free + milli
        return at_s

    def _openings(self, task: Task, row: int, most: int) -> list[float]:
        """The times at which the node has room for a first, second, ... such task, as its running tasks end."""
        session, state = self._session, self._session.state
        times = [FREE_NOW] * session.copies_that_fit(task, row, most)
        if len(times) >= most:
            return times
        running = [item for item in state.table.tasks[row].values() if item.status in HELD]
        running.sort(key=lambda item: (self._end_s(item), item.key))
        mark = state.checkpoint()
        for item in running:
            state.move(item, Status.FAILED)
            copies = session.copies_that_fit(task, row, most)
            times += [self._end_s(item)] * (copies - len(times))
            if copies >= most:
                break
        state.rollback(mark)
        return times

    def _end_s(self, task: Task) -> float:
        """When a running task is expected to end. The module's docstring explains what happens if it runs longer."""
        now_s = self._session.now_s
        started_s = task.pod.started_s if task.pod.started_s is not None else now_s
        expected_s = task.job.group.expected_duration_s if task.job is not None else None
        lasts_s = max(expected_s if expected_s is not None else self.arguments.horizon_s, 1.0)
        while not self._firm and started_s + lasts_s <= now_s:
            lasts_s *= 2
        return started_s + lasts_s
