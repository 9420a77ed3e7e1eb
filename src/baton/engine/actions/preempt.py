"""Inside a queue: a starving job takes room from less important jobs, and a task from less important ones of its job.

Nothing is evicted unless the job's whole gang then has its places.
"""

from baton.engine.evictions import Failures, RoomMaker
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
    failures = Failures(session)
    for job in sorted(starving, key=session.job_key):
        if not failures.knows(job) and not _between_jobs(session, job):
            failures.add(job)
    waiting = [job for job in session.state.active.values() if job.pending and job.ready and job.queue is not None]
    for job in sorted(waiting, key=session.job_key):
        _inside_job(session, job)


def _tasks(session: Session, job: Job) -> list[Task]:
    tasks = [task for task in job.pending.values() if not task.needs.best_effort and task.pod.can_preempt]
    return sorted(tasks, key=session.task_key)


def _between_jobs(session: Session, job: Job) -> bool:
    queue = job.queue
    assert queue is not None

    def eligible(other: Task) -> bool:
        return other.job is not job

    by_row = session.evictable().get(queue.name, {})
    maker = RoomMaker(session, by_row, eligible, session.preemptable, f"preempted by {job.key}")
    maker.permitted = lambda task: session.allocatable(queue, task)
    session.nominees.make_way(job)
    statement = session.statement()
    for task in _tasks(session, job):
        if not session.job_starving(job):
            break
        if not maker.make_room(task, statement):
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


def _inside_job(session: Session, job: Job) -> None:
    """A more important task of a job takes the place of a less important one."""
    lowest = min((task.priority for task in job.tasks.values() if task.row >= 0), default=None)
    by_row: dict[int, list[Task]] = {}
    for task in job.tasks.values():
        if task.row >= 0 and task.pod.preemptable:
            by_row.setdefault(task.row, []).append(task)
    for task in _tasks(session, job):
        if lowest is None or task.priority <= lowest:
            break

        def eligible(other: Task, task: Task = task) -> bool:
            return other.priority < task.priority

        maker = RoomMaker(session, by_row, eligible, session.preemptable, f"preempted by {task.key} of the same job")
        statement = session.statement()
        if maker.make_room(task, statement):
            statement.commit()
        else:
            statement.discard()
            break
