"""Across queues: a queue below what it deserves takes back what reclaimable queues use above theirs.

Nothing is evicted unless the job's whole gang then has its places.
"""

from baton.engine.evictions import Failures, RoomMaker
from baton.engine.jobs import Job, QueueShare, Status, Task
from baton.engine.objects import GroupPhase
from baton.engine.session import Session
from baton.engine.verdicts import Cause


def reclaim(session: Session) -> None:
    by_queue: dict[str, list[Job]] = {}
    for job in session.state.active.values():
        if job.queue is None or job.phase is GroupPhase.PENDING or not job.pending:
            continue
        if session.job_valid(job) is None and session.job_starving(job):
            by_queue.setdefault(job.queue.name, []).append(job)
    queues = [session.state.queues[name] for name in session.state.queues if name in by_queue]
    failures = Failures(session)
    for queue in sorted(queues, key=session.queue_key):
        for job in sorted(by_queue[queue.name], key=session.job_key):
            if session.overused(queue):
                break
            if not failures.knows(job) and not _reclaim_for(session, job, queue):
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


def _reclaim_for(session: Session, job: Job, queue: QueueShare) -> bool:
    def eligible(other: Task) -> bool:
        return other.status is Status.RUNNING

    reason = f"reclaimed by queue {queue.name} for {job.key}"
    maker = RoomMaker(session, _of_others(session, queue), eligible, session.reclaimable, reason)
    session.nominees.make_way(job)
    statement = session.statement()
    tasks = [task for task in job.pending.values() if not task.needs.best_effort and task.pod.can_preempt]
    for task in sorted(tasks, key=session.task_key):
        if not session.job_starving(job):
            break
        if not session.preemptive(queue, task) or not maker.make_room(task, statement):
            break
    if session.job_pipelined(job) and (statement.evicted or statement.pipelined or statement.allocated):
        statement.commit()
        session.blocked[job.key] = (Cause.PIPELINED, None)
        done = True
    else:
        statement.discard()
        done = False
    session.nominees.hold()
    return done
