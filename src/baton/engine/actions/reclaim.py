"""Across queues: a queue below what it deserves takes back what reclaimable queues use above theirs.

Nothing is evicted unless the job's whole gang then has its places.
"""

from baton.engine.evictions import RoomMaker
from baton.engine.jobs import Job, Status, Task
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
    for queue in sorted(queues, key=session.queue_key):
        for job in sorted(by_queue[queue.name], key=session.job_key):
            if session.overused(queue):
                break
            _reclaim_for(session, job)


def _reclaim_for(session: Session, job: Job) -> None:
    queue = job.queue
    assert queue is not None

    def eligible(other: Task) -> bool:
        theirs = other.job.queue if other.job is not None else None
        return (
            other.status is Status.RUNNING
            and other.pod.ours
            and other.pod.preemptable
            and theirs is not None
            and theirs is not queue
            and theirs.queue.reclaimable
        )

    maker = RoomMaker(session, eligible, session.reclaimable, f"reclaimed by queue {queue.name} for {job.key}")
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
    else:
        statement.discard()
