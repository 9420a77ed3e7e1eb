"""The pods that gangs can spare."""

from collections.abc import Sequence

from baton.engine.state.jobs import READY, Job, Task


def surplus(victims: Sequence[Task], *, last_ones: bool) -> list[Task]:
    """The victims, in order, that can be evicted while every gang keeps its minimum.

    There is a minimum of pods in total, per role, and of complete sub-groups. With `last_ones`, a job whose minimum is
    one task may lose all its tasks.
    """
    left: dict[str, int] = {}
    by_role: dict[str, dict[str, int]] = {}
    broken: dict[str, set[tuple[str, ...]]] = {}
    chosen = []
    for victim in victims:
        job = victim.job
        if job is None:
            continue
        spare = left.setdefault(job.key, job.ready_count() - job.min_member)
        firm = job.min_member > 1 or not last_ones
        if firm and spare <= 0:
            continue
        roles, role = None, victim.pod.role
        if firm and job.group.min_role_members:
            roles = by_role.get(job.key)
            if roles is None:
                roles = by_role[job.key] = _spare_by_role(job)
            if roles.get(role, 1) <= 0:
                continue
        if job.group.parts and not _spares_part(job, victim, broken.setdefault(job.key, set())):
            continue
        left[job.key] = spare - 1
        if roles is not None and role in roles:
            roles[role] -= 1
        chosen.append(victim)
    return chosen


def _spare_by_role(job: Job) -> dict[str, int]:
    """For each role with a minimum: the number of tasks above it."""
    minima = job.role_minima()
    counts = job.role_counts(READY) if minima else {}
    return {role: counts.get(role, 0) - minimum for role, minimum in minima.items()}


def _spares_part(job: Job, victim: Task, broken: set[tuple[str, ...]]) -> bool:
    """Whether the job can spare the victim's sub-group; `broken` has the sub-groups that were already given up."""
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
