"""The phase of a PodGroup, by Volcano's rule.

If part of the gang runs and other pods are lost or cannot be scheduled, the phase is Unknown. With at least the minimum
placed it is Completed if all pods are done, otherwise Running. A job that ran and has no pod left is Pending, so that
it is admitted again; any other admitted job is Inqueue. A pod that is only held back, by a gate or after a failed
binding, is not lost.
"""

from baton.engine.session.session import Session
from baton.engine.state.jobs import FINISHED, STARTED, Job, Status
from baton.engine.verdicts import Cause
from baton.model.names import PodGroupPhase

UNSCHEDULABLE = (Cause.NODES, Cause.QUEUE_SHARE)


def update_phases(session: Session) -> None:
    """Update the jobs that the cycle changed and those that wait, except jobs that had no turn yet."""
    keys = session.decisions.touched if session.turns.cut else {*session.state.active, *session.decisions.touched}
    for key in sorted(keys):
        job = session.state.jobs.get(key)
        if job is not None and not job.implicit:
            cause = session.decisions.blocked.get(key, (None, None))[0]
            session.decisions.set_phase(job, phase_of(job, unschedulable=cause in UNSCHEDULABLE))


def phase_of(job: Job, *, unschedulable: bool = False) -> PodGroupPhase:
    if not job.tasks and not job.min_member:
        return job.phase
    in_pieces = job.counts[Status.RUNNING] and not job.is_ready()
    if in_pieces and (unschedulable or job.phase is PodGroupPhase.UNKNOWN or job.has_lost_pods()):
        return PodGroupPhase.UNKNOWN
    finished = sum(job.counts[status] for status in FINISHED)
    if job.tasks and finished == len(job.tasks) and job.ready + job.counts[Status.FAILED] >= job.min_member:
        return PodGroupPhase.COMPLETED
    if job.tasks and job.ready >= job.min_member:
        return PodGroupPhase.RUNNING
    if job.phase is PodGroupPhase.PENDING or (job.phase in STARTED and not any(job.remaining())):
        return PodGroupPhase.PENDING
    return PodGroupPhase.INQUEUE
