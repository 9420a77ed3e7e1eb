"""Place best-effort pods: they request no resources, so they wait for no gang and fit wherever predicates allow."""

from baton.engine.session.session import Session
from baton.engine.state.jobs import Status
from baton.engine.verdicts import Cause
from baton.model.names import PodGroupPhase


def backfill(session: Session) -> None:
    jobs = [job for job in session.state.active.values() if job.best_effort_pending and job.queue is not None]
    for job in session.turns.remaining(sorted(jobs, key=session.votes.job_key)):
        if job.phase is PodGroupPhase.PENDING or session.votes.job_valid(job) is not None:
            continue
        tasks = [task for task in job.pending.values() if task.needs.best_effort]
        for task in sorted(tasks, key=session.votes.task_key):
            placement = session.places.find(task)
            if placement is None:
                session.decisions.blocked.setdefault(job.key, (Cause.NODES, task))
                break
            statement = session.statement()
            statement.place(task, placement)
            statement.commit()
        if not job.counts[Status.PENDING]:
            session.decisions.blocked.pop(job.key, None)
