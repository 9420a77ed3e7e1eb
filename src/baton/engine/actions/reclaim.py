"""Across queues: a queue below what it deserves takes back what reclaimable queues use above theirs.

Nothing is evicted unless the job's whole gang then has its places.
"""

from collections.abc import Callable

from baton.engine.evictions import (
    Allowed,
    Failures,
    RoomMaker,
    keep_or_discard,
    make_way_for,
    spare_needless,
    starving_jobs,
)
from baton.engine.jobs import Job, QueueShare, Status, Task
from baton.engine.session import Session


def reclaim(session: Session) -> None:
    reclaim_with(session, reclaim_for)


def reclaim_with(session: Session, reclaim_one: Callable[[Session, Job, QueueShare], bool]) -> None:
    """Queue by queue and job by job, for queues below what they deserve."""
    by_queue: dict[str, list[Job]] = {}
    for job in starving_jobs(session):
        by_queue.setdefault(job.group.queue, []).append(job)
    queues = [session.state.queues[name] for name in session.state.queues if name in by_queue]
    failures = Failures(session)
    for queue in sorted(queues, key=session.queue_key):
        for job in session.turns.remaining(by_queue[queue.name]):
            if session.overused(queue):
                break
            if not failures.knows(job) and not reclaim_one(session, job, queue):
                failures.add(job)


def _of_others(session: Session, queue: QueueShare) -> dict[int, list[Task]]:
    """Who might go, by row: everybody in queues that give back."""
    by_row: dict[int, list[Task]] = {}
    for name, rows in session.evictable().items():
        theirs = session.state.queues[name]
        if theirs is not queue and theirs.queue.reclaimable:
            for row, tasks in rows.items():
                by_row.setdefault(row, []).extend(tasks)
    return by_row


def reclaim_for(session: Session, job: Job, queue: QueueShare, allowed: Allowed | None = None) -> bool:
    """Tasks of queues that give back go, one by one; `allowed` may say less than the plugins do."""

    def eligible(other: Task) -> bool:
        return other.status is Status.RUNNING

    reason = f"reclaimed by queue {queue.name} for {job.key}"
    maker = RoomMaker(session, _of_others(session, queue), eligible, allowed or session.reclaimable, reason)
    maker.permitted = lambda task: session.preemptive(queue, task) and session.allocatable(queue, task)
    session.nominees.make_way(job)
    statement = session.statement()
    make_way_for(
        session,
        job,
        statement,
        lambda task: session.preemptive(queue, task) and maker.make_room(task, statement),
    )
    statement = spare_needless(session, job, statement, maker.permitted)
    return keep_or_discard(session, job, statement)
