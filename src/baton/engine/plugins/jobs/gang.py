"""All or nothing: a job starts with at least its minimum of members, or not at all."""

from collections.abc import Sequence

from baton.engine.framework import VALID, Job, NoArguments, OrderKey, Plugin, Task, Vote, surplus


class GangPlugin(Plugin[NoArguments]):
    name = "gang"

    def job_valid(self, job: Job) -> str | None:
        if job.valid < job.min_member:
            return f"{job.valid} of {job.min_member} pods of the gang exist"
        if not job.roles_met(VALID):
            counts = job.role_counts(VALID)
            short = [
                f"{counts.get(role, 0)} of {need} {role}"
                for role, need in job.group.min_role_members
                if counts.get(role, 0) < need
            ]
            return f"the gang lacks pods by role: {', '.join(short)}"
        if job.group.parts:
            lacking = job.parts_short(VALID)
            return f"the gang is not complete: {', '.join(lacking)}" if lacking else None
        return None

    def job_key(self, job: Job) -> OrderKey:
        """Partially placed gangs first: the scheduler stopped between two bindings, and their resources are wasted."""
        if job.is_ready():
            return (2,)
        return (0 if job.ready else 1,)

    def job_ready(self, job: Job) -> bool:
        return job.is_ready()

    def job_pipelined(self, job: Job) -> Vote:
        return Vote.PERMIT if job.is_pipelined() else Vote.REJECT

    def job_starving(self, job: Job) -> bool:
        return not job.is_pipelined()

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Only tasks above the gang's minimum, in total and for each role."""
        return surplus(victims, last_ones=True)

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task]:
        return surplus(victims, last_ones=True)
