"""Place pending tasks: queue by queue, job by job, task by task, and keep a job's placements only if its gang is ready.

The order of queues and jobs is checked again after every job, because shares have changed. A ready gang continues with
its surplus tasks only while it is still first in order. Cycles follow events closely, so the first of several jobs
submitted together is often complete before the pods of the next exist: the surplus of a young job waits while such pods
are being created; otherwise one job would take everything and leave nothing for the others.

Partially placed gangs go first, whatever their queue and priority: the scheduler had already decided in their favour
and stopped between two bindings, and their resources are wasted until they are complete.
"""

import heapq
from typing import Any

from baton.engine.search.domains import DONE, PROMISED, Rank
from baton.engine.session.session import Session
from baton.engine.state.jobs import Job, QueueShare, Status, Task
from baton.engine.verdicts import Cause
from baton.model.names import PodGroupPhase, QueueState

YOUNG_S = 3.0
"""Creation times are whole seconds, so a job is young for two to three seconds. Pods are created faster than that,
unless they are held up by a cause outside the scheduler."""


class _Lane:
    """The jobs of one queue, best first."""

    def __init__(self, session: Session, queue: QueueShare) -> None:
        self.queue = queue
        self.strict = queue.strict
        self._session = session
        self._heap: list[tuple[Any, str, Job]] = []
        self._waiting: dict[str, list[Task]] = {}

    def waiting(self, job: Job) -> list[Task]:
        """The job's tasks in reverse order, sorted once per session."""
        tasks = self._waiting.get(job.key)
        if tasks is None:
            tasks = self._waiting[job.key] = job.asking()
            if len(tasks) > 1:
                tasks.sort(key=self._session.votes.task_key, reverse=True)
        return tasks

    def hold_back(self) -> None:
        """Block the remaining jobs: none may overtake a job that does not fit."""
        for _, _, job in self._heap:
            self._session.decisions.blocked[job.key] = (Cause.HELD_BACK, None)
        self._heap.clear()

    def overused(self) -> None:
        for _, _, job in self._heap:
            self._session.decisions.blocked.setdefault(job.key, (Cause.QUEUE_OVERUSED, None))
        self._heap.clear()

    def add(self, job: Job) -> None:
        heapq.heappush(self._heap, (self._session.votes.job_key(job), job.key, job))

    def pop(self) -> Job:
        """The first job, by its current key if starting one job changes the keys of others."""
        while True:
            key, _, job = heapq.heappop(self._heap)
            if not self._session.votes.keys_change or not self._heap:
                return job
            current = self._session.votes.job_key(job)
            if current <= key or current <= self._heap[0][0]:
                return job
            heapq.heappush(self._heap, (current, job.key, job))

    def leads(self, job: Job) -> bool:
        """Whether this job is still ahead of all jobs that wait in this queue."""
        return not self._heap or self._session.votes.job_key(job) <= self._heap[0][0]

    def __len__(self) -> int:
        return len(self._heap)


class _Order:
    """The queues with waiting jobs, ordered by their current shares."""

    def __init__(self, session: Session, lanes: dict[str, _Lane]) -> None:
        self._session = session
        self._lanes = lanes
        self._heap = [(session.votes.queue_key(lane.queue), name) for name, lane in lanes.items() if lane]
        heapq.heapify(self._heap)

    def next(self, last: _Lane | None) -> _Lane | None:
        """The next lane. `last`, which gave up its place in the heap, is put back unless it is the only one."""
        if not last:
            return self._lanes[heapq.heappop(self._heap)[1]] if self._heap else None
        if not self._heap:
            return last
        return self._lanes[
            heapq.heappushpop(self._heap, (self._session.votes.queue_key(last.queue), last.queue.name))[1]
        ]

    def leads(self, lane: _Lane) -> bool:
        """Whether this lane, which has its turn, is still ahead of all others."""
        return not self._heap or self._session.votes.queue_key(lane.queue) <= self._heap[0][0]


class _Newcomers:
    """Jobs that have just been admitted, whose pods are being created."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._expected: bool | None = None

    def hold_back(self, job: Job) -> bool:
        """Whether the job has its minimum, and its surplus should wait for the pods of other new jobs."""
        return self._young(job) and job.is_ready() and self._any()

    def _young(self, job: Job) -> bool:
        return self._session.now_s < job.created_s + YOUNG_S

    def _any(self) -> bool:
        if self._expected is None:
            self._expected = any(self._awaited(job) for job in self._session.state.active.values())
        return self._expected

    def _awaited(self, job: Job) -> bool:
        awaited = not job.implicit and job.phase is PodGroupPhase.INQUEUE and job.valid < job.min_member
        return awaited and self._young(job) and not any(job.gated())


class Unfit:
    """Jobs that fit on no node, found before anything is placed: with a long backlog, most jobs.

    Placing other jobs only takes room, so these jobs need no place in the order. A queue with strict order is an
    exception, because a job that does not fit holds back the jobs behind it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._overused: dict[str, bool] = {}
        self._share: dict[tuple[str, int], bool] = {}

    def pass_over(self, job: Job, queue: QueueShare) -> bool:
        """True for such a job; records the cause."""
        session = self._session
        if queue.strict or session.votes.minds_blocked(job):
            return False
        tasks = job.uniform_tasks()
        if tasks is None or not session.places.is_hopeless(tasks[0]):
            return False
        stuck = tasks[0] if len(tasks) == 1 else min(tasks, key=session.votes.task_key)
        session.decisions.blocked[job.key] = (self._cause(queue, stuck), stuck)
        return True

    def _cause(self, queue: QueueShare, stuck: Task) -> Cause:
        """The first failing check, in the order for jobs that are tried: the queue, its share, the nodes."""
        overused = self._overused.get(queue.name)
        if overused is None:
            overused = self._overused[queue.name] = self._session.votes.overused(queue)
        if overused:
            return Cause.QUEUE_OVERUSED
        key = (queue.name, stuck.needs.number)
        within = self._share.get(key)
        if within is None:
            within = self._share[key] = self._session.votes.allocatable(queue, stuck)
        return Cause.NODES if within else Cause.QUEUE_SHARE


def allocate(session: Session) -> None:
    """Run the action. Best-effort tasks are left to backfill."""
    if "enqueue" not in session.tiers.configuration.actions:
        for job in list(session.state.active.values()):
            if job.phase is PodGroupPhase.PENDING:
                session.decisions.set_phase(job, PodGroupPhase.INQUEUE)
    lanes: dict[str, _Lane] = {}
    partial: list[Job] = []
    unfit = Unfit(session)
    newcomers = _Newcomers(session)
    for job in list(session.state.active.values()):
        if not job.pending:
            if any(job.gated()):
                session.decisions.blocked.setdefault(job.key, (Cause.GATED, None))
            elif job.phase is PodGroupPhase.UNKNOWN:
                session.decisions.blocked.setdefault(job.key, (Cause.NOT_VALID, None))
            continue
        reason = _not_now(session, job)
        if reason is not None:
            session.decisions.blocked.setdefault(job.key, (reason, None))
            continue
        assert job.queue is not None
        if newcomers.hold_back(job) or unfit.pass_over(job, job.queue) or _had_turn(session, job, job.queue):
            continue
        if job.queue.name not in lanes:
            lanes[job.queue.name] = _Lane(session, job.queue)
        if job.ready and not session.votes.job_ready(job):
            partial.append(job)
        else:
            lanes[job.queue.name].add(job)
    session.nominees.hold()
    for job in sorted(partial, key=session.votes.job_key):
        if _turn(session, lanes[job.group.queue], job, newcomers):
            lanes[job.group.queue].add(job)
    order = _Order(session, lanes)
    lane = order.next(None)
    while lane is not None and not session.turns.time_is_up():
        if session.votes.overused(lane.queue):
            lane.overused()
        else:
            job = lane.pop()
            again = _turn(session, lane, job, newcomers)
            while again and lane.leads(job) and order.leads(lane) and not session.votes.overused(lane.queue):
                again = _turn(session, lane, job, newcomers)
            if again:
                lane.add(job)
        lane = order.next(lane)


def _turn(session: Session, lane: _Lane, job: Job, newcomers: _Newcomers) -> bool:
    """Try a job once; true when its gang is ready and it has more tasks to place."""
    if session.votes.may_start(job) is not None:
        session.decisions.blocked[job.key] = (Cause.HELD_BACK, None)
        again = False
    else:
        session.nominees.make_way(job)
        again = _allocate_job(session, lane.queue, job, lane.waiting(job)) and not newcomers.hold_back(job)
        session.nominees.hold()
    if not again and lane.strict and job.pending and not job.is_ready():
        lane.hold_back()
    session.turns.looked_at(job, more=again)
    return again


def _had_turn(session: Session, job: Job, queue: QueueShare) -> bool:
    """Whether an earlier cycle of the round has tried the job, and no later job depends on it.

    Jobs that hold back others, and jobs with promised room to hold, are tried again.
    """
    if not session.turns.had(job):
        return False
    promised = session.decisions.blocked.get(job.key, (None, None))[0] is Cause.PIPELINED
    return not (promised or queue.strict or session.votes.minds_blocked(job))


def _not_now(session: Session, job: Job) -> Cause | None:
    """Why the job is not tried in this cycle at all."""
    if job.queue is None:
        return Cause.NO_QUEUE
    if job.queue.queue.state is not QueueState.OPEN and job.phase is PodGroupPhase.PENDING:
        return Cause.QUEUE_CLOSED
    if job.phase is PodGroupPhase.PENDING:
        return Cause.NOT_ADMITTED
    if session.votes.job_valid(job) is not None:
        return Cause.NOT_VALID
    return None


class _Try:
    """A job's turn: its waiting tasks, up to a ready gang. The next task is the last one; tried tasks are removed."""

    __slots__ = (
        "_job",
        "_queue",
        "_refused",
        "_session",
        "_tasks",
        "cause",
        "farthest",
        "ready",
        "statement",
        "stuck",
        "waiting",
    )

    def __init__(self, session: Session, queue: QueueShare, job: Job, tasks: list[Task]) -> None:
        self._session = session
        self._queue = queue
        self._job = job
        self._tasks = self.waiting = tasks
        self._refused: set[int] | None = set()
        """Kinds of tasks that found no place; None if a kind may be tried again."""
        self.statement = session.statement()
        self.stuck: Task | None = None
        self.cause = Cause.NODES
        self.ready = False
        self.farthest = 0
        """The largest number of tasks that found a place before one did not."""

    def run(self) -> Rank | None:
        if self._job.group.close:
            return self._session.places.domains.attempt(self._job, self.statement, self._start_over)
        return self._once()

    def _start_over(self) -> Rank | None:
        """Start over in another hyper node. With parts, each part is tried in several hyper nodes: a task that one
        refused may fit in the next."""
        self.waiting = self._tasks.copy()
        self._refused = None if any(parts.closeness is not None for parts in self._job.group.parts) else set()
        self.stuck, self.cause = None, Cause.NODES
        return self._once()

    def _once(self) -> Rank | None:
        session, job, statement = self._session, self._job, self.statement
        self.ready = session.places.domains.fill(job, self.waiting, statement, self._place, self._enough)
        if self.ready:
            return DONE
        placed = [task for task, _, _ in statement.allocated]
        self.farthest = max(self.farthest, len(placed) + len(statement.pipelined))
        if placed and self._enough(placed):
            return DONE
        return PROMISED if session.votes.job_pipelined(job) and (statement.pipelined or placed) else None

    def _enough(self, tasks: list[Task]) -> bool:
        return self._session.votes.job_ready(self._job) and (not self._job.group.parts or self._job.parts_whole(tasks))

    def _place(self, task: Task) -> bool:
        if task.status is not Status.PENDING or (self._refused and task.needs.number in self._refused):
            return False
        placement = None
        if not self._session.votes.allocatable(self._queue, task):
            self.cause = Cause.QUEUE_SHARE if self.stuck is None else self.cause
        else:
            placement = self._session.places.find(task)
        if placement is None:
            self.stuck = self.stuck or task
            if self._refused is not None:
                self._refused.add(task.needs.number)
            return False
        self.statement.place(task, placement)
        return True


def _allocate_job(session: Session, queue: QueueShare, job: Job, waiting: list[Task]) -> bool:
    """Try the job up to a ready gang; true when it is ready and has more tasks to place.

    `waiting` has the job's tasks with the next one last; tried tasks are removed.
    """
    attempt = _Try(session, queue, job, waiting)
    rank = attempt.run()
    if rank is None:
        session.decisions.placeable[job.key] = attempt.farthest
        attempt.statement.discard()
        session.decisions.block(job, attempt.cause, attempt.stuck)
        return False
    if rank == DONE:
        attempt.statement.commit()
        session.decisions.started(job)
        session.decisions.blocked.pop(job.key, None)
    else:
        attempt.statement.keep_promises()
        session.decisions.blocked[job.key] = (Cause.PIPELINED, attempt.stuck)
    if attempt.stuck is not None:
        session.decisions.blocked[job.key] = (attempt.cause, attempt.stuck)
    if attempt.waiting is not waiting:
        waiting[:] = attempt.waiting
    return attempt.ready and bool(waiting)
