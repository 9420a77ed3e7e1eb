"""The phase of a PodGroup after a cycle, by Volcano's rule.

Running tasks in a job that could not be scheduled: Unknown. At least the minimum placed: Completed when all are done,
else Running. Otherwise an admitted job stays Inqueue and another stays Pending.
"""

from baton.engine.jobs import Job, Status
from baton.engine.objects import GroupPhase
from baton.engine.session import Session
from baton.engine.verdicts import Cause

UNSCHEDULABLE = (Cause.NODES, Cause.QUEUE_SHARE)


def update_phases(session: Session) -> None:
    """For the jobs that the cycle touched or that wait; of those that had no turn yet nothing is known."""
    keys = session.touched if session.turns.cut else {*session.state.active, *session.touched}
    for key in sorted(keys):
        job = session.state.jobs.get(key)
        if job is not None and not job.implicit:
            session.set_phase(job, phase_of(session, job))


def phase_of(session: Session, job: Job) -> GroupPhase:
    cause = session.blocked.get(job.key, (None, None))[0]
    if job.counts[Status.RUNNING] and cause in UNSCHEDULABLE and not job.is_ready():
        return GroupPhase.UNKNOWN
    if job.tasks and job.ready >= job.min_member:
        finished = job.counts[Status.SUCCEEDED] + job.counts[Status.FAILED]
        return GroupPhase.COMPLETED if finished == len(job.tasks) else GroupPhase.RUNNING
    return GroupPhase.PENDING if job.phase is GroupPhase.PENDING else GroupPhase.INQUEUE
