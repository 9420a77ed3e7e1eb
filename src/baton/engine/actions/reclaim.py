"""Across queues: a queue below its deserved share takes back what reclaimable queues use above theirs.

Pods are evicted only if the job's whole gang then has its places.
"""

from collections.abc import Callable, Sequence

from baton.engine.search.evictions import (
    Allowed,
    Failures,
    RoomMaker,
    keep_or_discard,
    make_way_for,
    spare_needless,
    starving_jobs,
)
from baton.engine.session.session import Session
from baton.engine.state.jobs import Job, QueueShare, Status, Task


def reclaim(session: Session) -> None:
    reclaim_with(session, reclaim_for)


def reclaim_with(session: Session, reclaim_one: Callable[[Session, Job, QueueShare], bool]) -> None:
    """Queue by queue and job by job, for queues below their deserved share."""
    by_queue: dict[str, list[Job]] = {}
    for job in starving_jobs(session):
        by_queue.setdefault(job.group.queue, []).append(job)
    queues = [session.state.queues[name] for name in session.state.queues if name in by_queue]
    failures = Failures(session)
    for queue in sorted(queues, key=session.votes.queue_key):
        for job in session.turns.remaining(by_queue[queue.name]):
            if session.votes.overused(queue):
                break
            if not failures.knows(job) and not reclaim_one(session, job, queue):
                failures.add(job)


def _of_others(session: Session, queue: QueueShare) -> dict[int, list[Task]]:
    """Possible victims by row: all evictable tasks of reclaimable queues."""
    by_row: dict[int, list[Task]] = {}
    for name, rows in session.decisions.evictable().items():
        theirs = session.state.queues[name]
        if theirs is not queue and theirs.queue.reclaimable:
            for row, tasks in rows.items():
                by_row.setdefault(row, []).extend(tasks)
    return by_row


def _victims_that_stay_away(session: Session, reclaimer: Task, victims: Sequence[Task]) -> list[Task]:
    """The victims that would not take their room back, and those that are less important.

    A tier with only `gang` or `conformance` allows any victim, even if the victim's queue is within its deserved share
    and could immediately reclaim the room from the reclaimer. If shares favour neither of them, importance decides, so
    that the two do not alternate.
    """
    known: dict[tuple[object, ...], bool] = {}
    chosen = []
    for victim in victims:
        queue = victim.job.queue if victim.job is not None else None
        # Two victims of a queue differ only in their requests and their importance.
        name = queue.name if queue is not None else None
        key = (name, victim.needs.number, _importance(victim), victim.pod.can_preempt)
        if key not in known:
            more = _importance(reclaimer) > _importance(victim)
            known[key] = queue is not None and not more and _comes_back(session, reclaimer, victim, queue)
        if not known[key]:
            chosen.append(victim)
    return chosen


def _importance(task: Task) -> tuple[int, int]:
    return (task.job.priority if task.job is not None else 0, task.priority)


def _comes_back(session: Session, reclaimer: Task, victim: Task, theirs: QueueShare) -> bool:
    mine = reclaimer.job.queue if reclaimer.job is not None else None
    if mine is None or not mine.queue.reclaimable or not reclaimer.pod.preemptable or not victim.pod.can_preempt:
        return False
    changes = [(line, reclaimer.needs.charge) for line in mine.lineage()]
    changes += [(line, -victim.needs.charge) for line in theirs.lineage()]
    for line, change in changes:
        line.allocated += change
    try:
        if session.votes.overused(theirs) or not session.votes.preemptive(theirs, victim):
            return False
        return bool(session.votes.reclaimable(victim, [reclaimer]))
    finally:
        for line, change in changes:
            line.allocated -= change


def reclaim_for(session: Session, job: Job, queue: QueueShare, allowed: Allowed | None = None) -> bool:
    """Evict tasks of reclaimable queues, one by one; `allowed` may be stricter than the plugins."""

    def eligible(other: Task) -> bool:
        return other.status is Status.RUNNING

    def final(reclaimer: Task, victims: Sequence[Task]) -> list[Task]:
        return _victims_that_stay_away(session, reclaimer, (allowed or session.votes.reclaimable)(reclaimer, victims))

    reason = f"reclaimed by queue {queue.name} for {job.key}"
    maker = RoomMaker(session, _of_others(session, queue), eligible, final, reason)
    maker.permitted = lambda task: session.votes.preemptive(queue, task) and session.votes.allocatable(queue, task)
    session.nominees.make_way(job)
    statement = session.statement()
    make_way_for(
        session,
        job,
        statement,
        lambda task: session.votes.preemptive(queue, task) and maker.make_room(task, statement),
    )
    statement = spare_needless(session, job, statement, maker.permitted)
    return keep_or_discard(session, job, statement)
