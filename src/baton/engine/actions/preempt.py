"""Inside a queue: a starving job takes room from less important jobs, and a task from less important ones of its job.

Nothing is evicted unless the job's whole gang then has its places.
"""

from baton.engine.evictions import RoomMaker
from baton.engine.jobs import Job, Task
from baton.engine.objects import GroupPhase
from baton.engine.session import Session
from baton.engine.verdicts import Cause


def preempt(session: Session) -> None:
    starving: list[Job] = []
    for job in session.state.active.values():
        if job.queue is None or job.phase is GroupPhase.PENDING or not job.pending:
            continue
        if session.job_valid(job) is None and session.job_starving(job):
            starving.append(job)
    for job in sorted(starving, key=session.job_key):
        _between_jobs(session, job)
    waiting = [job for job in session.state.active.values() if job.pending and job.ready and job.queue is not None]
    for job in sorted(waiting, key=session.job_key):
        _inside_job(session, job)


def _tasks(session: Session, job: Job) -> list[Task]:
    tasks = [task for task in job.pending.values() if not task.needs.best_effort and task.pod.can_preempt]
    return sorted(tasks, key=session.task_key)


def _between_jobs(session: Session, job: Job) -> None:
    queue = job.queue
    assert queue is not None

    def eligible(other: Task) -> bool:
        return (
            other.pod.ours
            and other.pod.preemptable
            and other.job is not None
            and other.job is not job
            and other.job.queue is job.queue
        )

    maker = RoomMaker(session, eligible, session.preemptable, f"preempted by {job.key}")
    maker.permitted = lambda task: session.allocatable(queue, task)
    statement = session.statement()
    for task in _tasks(session, job):
        if not session.job_starving(job):
            break
        if not maker.make_room(task, statement):
            break
    if session.job_pipelined(job) and (statement.evicted or statement.pipelined or statement.allocated):
        statement.commit()
        session.blocked[job.key] = (Cause.PIPELINED, None)
    else:
        statement.discard()


def _inside_job(session: Session, job: Job) -> None:
    """A more important task of a job takes the place of a less important one."""
    lowest = min((task.priority for task in job.tasks.values() if task.row >= 0), default=None)
    for task in _tasks(session, job):
        if lowest is None or task.priority <= lowest:
            break

        def eligible(other: Task, task: Task = task) -> bool:
            return other.job is job and other.priority < task.priority and other.pod.preemptable

        maker = RoomMaker(session, eligible, session.preemptable, f"preempted by {task.key} of the same job")
        statement = session.statement()
        if maker.make_room(task, statement):
            statement.commit()
        else:
            statement.discard()
            break
