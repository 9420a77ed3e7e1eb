"""Who is there, who must not be, and who is missing: a job's pods against its spec and status. Pure."""

import itertools
from collections.abc import Sequence

import msgspec

from baton.controllers.job.lifecycle import FAILED, PENDING, RUNNING, SUCCEEDED, UNKNOWN, PodView
from baton.model.names import BusAction, JobPhase
from baton.model.volcano import Job, JobStatus, TaskSpec, TaskState

ACTIVE = frozenset({JobPhase.PENDING, JobPhase.RUNNING, JobPhase.RESTARTING})
"""Phases in which policies act; in all others the job is on its way out, or out."""
TARGETED = frozenset({BusAction.RESTART_TASK, BusAction.RESTART_POD, BusAction.RESTART_PARTITION})
"""Restarts of a part: all other pods stay, and so do group and version."""
PORTION = 5000
"""So many pods of a task are made at one look, however many are asked for: a look has to end, and memory does."""
_PHASES = {str(phase): phase for phase in JobPhase}


class Slot(msgspec.Struct, frozen=True):
    """A pod that should be there."""

    task: TaskSpec
    index: int


def phase_of(job: Job) -> JobPhase:
    """The phase; a job that nobody has looked at yet is pending, and so is one with a phase that nobody knows."""
    return _PHASES.get(job.status.state.phase, JobPhase.PENDING)


def doomed_pods(job: Job, pods: Sequence[PodView], targets: Sequence[PodView]) -> set[str]:
    """Which pods must not be: read off the status alone, whoever wrote it."""
    status, phase = job.status, phase_of(job)
    replicas = {task.name: task.replicas for task in job.spec.tasks}
    fresh_start = (
        phase == JobPhase.RESTARTING
        and status.state.reason == BusAction.RESTART_JOB
        and status.retry_count < job.spec.max_retry
    )
    doomed = {pod.name for pod in targets}
    for pod in pods:
        if phase not in ACTIVE:
            wrong = pod.alive
        elif pod.version < status.version and (pod.alive or fresh_start):
            wrong = True
        else:
            wrong = pod.index >= replicas.get(pod.task, 0)
        if pod.marked or wrong:
            doomed.add(pod.name)
    return doomed


def counted(job: Job, pods: Sequence[PodView], doomed: set[str]) -> JobStatus:
    """The status with the pods counted; what is on its way out counts as terminating and as nothing else."""
    totals = dict.fromkeys((PENDING, RUNNING, SUCCEEDED, FAILED, UNKNOWN), 0)
    by_task: dict[str, dict[str, int]] = {}
    terminating = 0
    for pod in pods:
        if pod.terminating or pod.name in doomed:
            terminating += 1
            continue
        phase = pod.phase if pod.phase in totals else UNKNOWN
        totals[phase] += 1
        counts = by_task.setdefault(pod.task, {})
        counts[phase] = counts.get(phase, 0) + 1
    return msgspec.structs.replace(
        job.status,
        pending=totals[PENDING],
        running=totals[RUNNING],
        succeeded=totals[SUCCEEDED],
        failed=totals[FAILED],
        unknown=totals[UNKNOWN],
        terminating=terminating,
        min_available=job.spec.minimum,
        task_status_count={task: TaskState(counts) for task, counts in by_task.items()},
    )


def missing_pods(job: Job, pods: Sequence[PodView]) -> tuple[Slot, ...]:
    """The first pods that should be there and are not, for tasks whose predecessors are up."""
    there = {(pod.task, pod.index) for pod in pods}
    return tuple(
        Slot(task, index)
        for task in job.spec.tasks
        if _may_start(job, task, pods)
        for index in itertools.islice((i for i in range(task.replicas) if (task.name, i) not in there), PORTION)
    )


def _may_start(job: Job, task: TaskSpec, pods: Sequence[PodView]) -> bool:
    """dependsOn: enough pods of the named tasks run and are ready, or are done."""
    depends = task.depends_on
    if depends is None or not depends.name:
        return True
    minima = {other.name: other.minimum for other in job.spec.tasks}

    def up(name: str) -> bool:
        ready = sum(
            pod.task == name
            and not pod.terminating
            and (pod.phase == SUCCEEDED or (pod.phase == RUNNING and pod.ready))
            for pod in pods
        )
        return ready >= minima.get(name, 0)

    judged = any if depends.iteration == "any" and len(depends.name) > 1 else all
    return judged(up(name) for name in depends.name)
