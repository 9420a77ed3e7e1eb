"""Compares the pods of a job with its spec and status: pods to count, to delete and to create. Pure."""

import itertools
from collections.abc import Sequence

import msgspec

from baton.controllers.job.lifecycle import PodView
from baton.model.names import BusAction, JobPhase, PodPhase
from baton.model.volcano import Job, JobStatus, TaskSpec, TaskState

ACTIVE = frozenset({JobPhase.PENDING, JobPhase.RUNNING, JobPhase.RESTARTING})
"""Phases in which policies act. In all others the job is ending or has ended."""
TARGETED = frozenset({BusAction.RESTART_TASK, BusAction.RESTART_POD, BusAction.RESTART_PARTITION})
"""Partial restarts: all other pods stay, and so do the group and the version."""
PORTION = 5000
"""The most pods of a task that one sync creates, so that its time and memory stay bounded."""
_PHASES = {str(phase): phase for phase in JobPhase}


class Slot(msgspec.Struct, frozen=True):
    """A pod that should exist."""

    task: TaskSpec
    index: int


def phase_of(job: Job) -> JobPhase:
    """The phase. A new job is pending, and so is one with an unknown phase."""
    return _PHASES.get(job.status.state.phase, JobPhase.PENDING)


def doomed_pods(job: Job, pods: Sequence[PodView], targets: Sequence[PodView]) -> set[str]:
    """The names of the pods that must go. Only the status decides, regardless of which process wrote it."""
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
    """The status with the pods counted. A pod that is about to go counts only as terminating."""
    totals = dict.fromkeys(map(str, PodPhase), 0)
    by_task: dict[str, dict[str, int]] = {}
    terminating = 0
    for pod in pods:
        if pod.terminating or pod.name in doomed:
            terminating += 1
            continue
        phase = pod.phase if pod.phase in totals else PodPhase.UNKNOWN
        totals[phase] += 1
        counts = by_task.setdefault(pod.task, {})
        counts[phase] = counts.get(phase, 0) + 1
    return msgspec.structs.replace(
        job.status,
        pending=totals[PodPhase.PENDING],
        running=totals[PodPhase.RUNNING],
        succeeded=totals[PodPhase.SUCCEEDED],
        failed=totals[PodPhase.FAILED],
        unknown=totals[PodPhase.UNKNOWN],
        terminating=terminating,
        min_available=job.spec.minimum,
        task_status_count={task: TaskState(counts) for task, counts in by_task.items()},
    )


def missing_pods(job: Job, pods: Sequence[PodView]) -> tuple[Slot, ...]:
    """The first pods that should exist and do not, for tasks whose dependencies are up."""
    there = {(pod.task, pod.index) for pod in pods}
    return tuple(
        Slot(task, index)
        for task in job.spec.tasks
        if _may_start(job, task, pods)
        for index in itertools.islice((i for i in range(task.replicas) if (task.name, i) not in there), PORTION)
    )


def _may_start(job: Job, task: TaskSpec, pods: Sequence[PodView]) -> bool:
    """dependsOn: enough pods of the named tasks run and are ready, or have succeeded."""
    depends = task.depends_on
    if depends is None or not depends.name:
        return True
    minima = {other.name: other.minimum for other in job.spec.tasks}

    def up(name: str) -> bool:
        ready = sum(
            pod.task == name
            and not pod.terminating
            and (pod.phase == PodPhase.SUCCEEDED or (pod.phase == PodPhase.RUNNING and pod.ready))
            for pod in pods
        )
        return ready >= minima.get(name, 0)

    judged = any if depends.iteration == "any" and len(depends.name) > 1 else all
    return judged(up(name) for name in depends.name)
