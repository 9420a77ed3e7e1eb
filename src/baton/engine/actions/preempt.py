"""Inside a queue: a starving job takes room from less important jobs, and a task from less important tasks of its job.

Pods are evicted only if the job's whole gang then has its places.
"""

from collections.abc import Sequence

from baton.engine.search.evictions import (
    Allowed,
    Failures,
    RoomMaker,
    evicting_tasks,
    keep_or_discard,
    make_way_for,
    spare_needless,
    starving_jobs,
)
from baton.engine.session.session import Session
from baton.engine.session.shares import richer_than
from baton.engine.session.surplus import surplus
from baton.engine.state.jobs import Job, Task


def preempt(session: Session) -> None:
    failures = Failures(session)
    for job in session.turns.remaining(starving_jobs(session)):
        if not failures.knows(job) and not between_jobs(session, job):
            failures.add(job)
    waiting = [job for job in session.state.active.values() if job.pending and job.ready and job.queue is not None]
    for job in session.turns.remaining(sorted(waiting, key=session.votes.job_key), "inside"):
        _inside_job(session, job)


def between_jobs(session: Session, job: Job, allowed: Allowed | None = None) -> bool:
    """Evict tasks of less important jobs of the queue, one by one; `allowed` may be stricter than the plugins."""
    queue = job.queue
    assert queue is not None

    priority = job.priority

    def eligible(other: Task) -> bool:
        return other.job is not None and other.job is not job and other.job.group.priority <= priority

    def final(preemptor: Task, victims: Sequence[Task]) -> list[Task]:
        return _victims_that_stay_away(session, preemptor, (allowed or session.votes.preemptable)(preemptor, victims))

    by_row = session.decisions.evictable().get(queue.name, {})
    maker = RoomMaker(session, by_row, eligible, final, f"preempted by {job.key}")
    maker.permitted = lambda task: session.votes.allocatable(queue, task)
    session.nominees.make_way(job)
    statement = session.statement()
    make_way_for(session, job, statement, lambda task: maker.make_room(task, statement))
    statement = spare_needless(session, job, statement, maker.permitted)
    return keep_or_discard(session, job, statement)


def _victims_that_stay_away(session: Session, preemptor: Task, victims: list[Task]) -> list[Task]:
    """The victims that would not take their room back. If their job has the preemptor's priority, whatever the plugins
    allow, these are tasks that their gang does not need, or whose job keeps at least the share that the preemptor's job
    reaches."""
    job = preemptor.job
    assert job is not None
    priority = job.priority
    equal = [victim for victim in victims if victim.job is not None and victim.job.group.priority == priority]
    if not equal:
        return victims
    staying = {victim.key for victim in equal}
    staying -= {victim.key for victim in surplus(equal, last_ones=False)}
    if staying:
        richer = richer_than(job.allocated + preemptor.needs.charge, equal, session.state.table.capacity_total)
        staying -= {victim.key for victim in richer}
    return [victim for victim in victims if victim.key not in staying]


def _inside_job(session: Session, job: Job) -> None:
    """Let a more important task of a job take the place of a less important one."""
    queue = job.queue
    assert queue is not None
    lowest = min((task.priority for task in job.tasks.values() if task.row >= 0), default=None)
    by_row: dict[int, list[Task]] = {}
    for task in job.tasks.values():
        if task.row >= 0 and session.decisions.may_go(task):
            by_row.setdefault(task.row, []).append(task)
    for task in evicting_tasks(session, job):
        if lowest is None or task.priority <= lowest:
            break

        def eligible(other: Task, task: Task = task) -> bool:
            return other.priority < task.priority

        maker = RoomMaker(
            session, by_row, eligible, session.votes.preemptable, f"preempted by {task.key} of the same job"
        )
        maker.permitted = lambda task: session.votes.allocatable(queue, task)
        statement = session.statement()
        if maker.make_room(task, statement):
            statement.commit()
        else:
            statement.discard()
            break
