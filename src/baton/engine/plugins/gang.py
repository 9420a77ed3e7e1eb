"""All or nothing: a job starts with at least its minimum of members, or not at all."""

from collections.abc import Sequence

from baton.engine.jobs import READY, VALID, Job, Task
from baton.engine.plugin import NoArguments, OrderKey, Plugin, Vote


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
        """A gang in parts first: its scheduler died between two bindings, and what it holds is of use to nobody."""
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
        """Only what a gang has above its minimum."""
        return self._surplus(victims)

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task]:
        return self._surplus(victims)

    @staticmethod
    def _surplus(victims: Sequence[Task]) -> list[Task]:
        left: dict[str, int] = {}
        broken: dict[str, set[tuple[str, ...]]] = {}
        chosen = []
        for victim in victims:
            job = victim.job
            if job is None:
                continue
            spare = left.setdefault(job.key, job.ready_count() - job.min_member)
            if job.min_member > 1 and spare <= 0:
                continue
            if job.group.parts and not _spares_part(job, victim, broken.setdefault(job.key, set())):
                continue
            left[job.key] = spare - 1
            chosen.append(victim)
        return chosen


def _spares_part(job: Job, victim: Task, broken: set[tuple[str, ...]]) -> bool:
    """Whether the job has more whole sub-groups than it needs without the victim's; `broken` are those given up."""
    part = job.part_of(victim)
    if part is None or part in broken:
        return True
    rule = next(parts for parts in job.group.parts if parts.name == part[0])
    counts = job.part_counts(READY)
    whole = sum(
        other[0] == rule.name and number >= rule.size and other not in broken for other, number in counts.items()
    )
    if counts.get(part, 0) < rule.size:
        return True
    if whole > rule.minimum:
        broken.add(part)
        return True
    return False
