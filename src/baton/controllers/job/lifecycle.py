"""The events in the life of a job's pods, and the answers of its policies. Pure.

Volcano reacts to the *moment* at which a pod fails or disappears; a controller that was dead at that moment misses it.
Here an event is derived from the present pods: a failed pod of the job's current version is a failure for as long as it
exists, and it stops being one because every action either raises the version or removes the pod. So the answer is the
same when the question is repeated, or asked by a new process.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from baton.model.durations import parse_duration_s
from baton.model.names import ENDED_PHASES, JobEvent, PodPhase
from baton.model.volcano import JobSpec, LifecyclePolicy, TaskSpec

DEFAULT_TASK_RETRIES = 3
NEVER_FAILS = -1
"""The maxRetry of a task that disables TaskFailed."""

_WILDCARD = frozenset(
    {JobEvent.POD_FAILED, JobEvent.POD_EVICTED, JobEvent.TASK_COMPLETED, JobEvent.TASK_FAILED, JobEvent.UNKNOWN}
)
"""The events that `*` stands for. PodPending is not one of them: without a timeout it has no meaning."""


class PodView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pod of a job, reduced to what phases and policies use."""

    name: str
    task: str
    index: int
    uid: str = ""
    version: int = 0
    """The version of the job when the pod was created."""
    phase: str = PodPhase.PENDING
    terminating: bool = False
    marked: bool = False
    """The controller itself deletes the pod (`volcano.sh/controller-out-of-sync`)."""
    exit_code: int = 0
    """The exit code of the first container; 0 while it has none."""
    restarts: int = 0
    ready: bool = False
    created_s: float = 0.0
    finished_s: float | None = None

    @property
    def alive(self) -> bool:
        return self.phase not in ENDED_PHASES


class Happening(NamedTuple):
    """An event that a policy may react to."""

    event: JobEvent
    task: str = ""
    pod: str = ""
    uid: str = ""
    exit_code: int = 0
    since_s: float | None = None
    """When it began, if the pod tells; otherwise the time when it was first seen counts."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.event, self.task, self.uid or self.pod


class Reaction(NamedTuple):
    """The action of a policy and its cause."""

    action: str
    cause: Happening


def happenings(
    spec: JobSpec, version: int, pods: Sequence[PodView], gone: Iterable[tuple[str, str]] = (), *, unknown: bool = False
) -> list[Happening]:
    """All events in this version of the job.

    A completed task comes first: once the master of a parallel program is done, the fate of its workers is irrelevant.
    `gone` are pods (task, name) that disappeared without an action of the controller.
    """
    current = [pod for pod in pods if pod.version == version and not pod.marked]
    replicas = {task.name: task.replicas for task in spec.tasks}
    found = [Happening(JobEvent.TASK_COMPLETED, task.name) for task in spec.tasks if _is_complete(task, version, pods)]
    for pod in current:
        if pod.index >= replicas.get(pod.task, 0):
            continue
        about = (pod.task, pod.name, pod.uid)
        if pod.terminating:
            found.append(Happening(JobEvent.POD_EVICTED, *about))
        elif pod.phase == PodPhase.FAILED:
            found.append(Happening(JobEvent.POD_FAILED, *about, pod.exit_code, pod.finished_s))
    found += [Happening(JobEvent.POD_EVICTED, task, name) for task, name in gone]
    for task in spec.tasks:
        if _restarts_exhausted(task, [pod for pod in current if pod.task == task.name]):
            found.append(Happening(JobEvent.TASK_FAILED, task.name))
    if unknown:
        found.append(Happening(JobEvent.UNKNOWN))
    found += [
        Happening(JobEvent.POD_PENDING, pod.task, pod.name, pod.uid, since_s=pod.created_s)
        for pod in current
        if pod.phase == PodPhase.PENDING and not pod.terminating
    ]
    return found


def _is_complete(task: TaskSpec, version: int, pods: Sequence[PodView]) -> bool:
    """Whether all replicas succeeded, the last of them in this life: a resumed job keeps its earlier results."""
    done = [
        pod.version
        for pod in pods
        if pod.task == task.name
        and pod.phase == PodPhase.SUCCEEDED
        and pod.index < task.replicas
        and not (pod.terminating or pod.marked)
    ]
    return len(done) >= task.replicas and version in done


def _restarts_exhausted(task: TaskSpec, pods: Sequence[PodView]) -> bool:
    limit = task.max_retry or DEFAULT_TASK_RETRIES
    if limit == NEVER_FAILS or not task.replicas:
        return False
    return sum(pod.restarts for pod in pods if pod.phase in (PodPhase.RUNNING, PodPhase.PENDING)) >= limit


def react(
    spec: JobSpec, happened: Sequence[Happening], seen_s: Mapping[tuple[str, str, str], float], now_s: float
) -> tuple[Reaction | None, float | None]:
    """The first reaction that is due; without one, in how many seconds the next one is.

    `seen_s` tells since when an event is known. The timeout of a policy counts from then.
    """
    wait_s: float | None = None
    for cause in happened:
        policy = policy_for(spec, cause)
        if policy is None:
            continue
        began_s = cause.since_s if cause.since_s is not None else seen_s.get(cause.key, now_s)
        left_s = began_s + timeout_s(policy) - now_s
        if left_s <= 0:
            return Reaction(policy.action, cause), None
        wait_s = left_s if wait_s is None else min(wait_s, left_s)
    return None, wait_s


def policy_for(spec: JobSpec, cause: Happening) -> LifecyclePolicy | None:
    """The policy that answers an event: those of the task before those of the job, each in the order of the spec."""
    for task in spec.tasks:
        if task.name == cause.task:
            for policy in task.policies:
                if _answers(policy, cause):
                    return policy
    return next((policy for policy in spec.policies if _answers(policy, cause)), None)


def _answers(policy: LifecyclePolicy, cause: Happening) -> bool:
    if cause.event == JobEvent.POD_FAILED and policy.exit_code is not None and policy.exit_code == cause.exit_code:
        return True
    events = (*policy.events, policy.event) if policy.event else policy.events
    if cause.event == JobEvent.POD_PENDING and policy.timeout is None:
        return False
    return cause.event in events or (JobEvent.ANY in events and cause.event in _WILDCARD)


def timeout_s(policy: LifecyclePolicy) -> float:
    """The delay after the event. An invalid duration counts as none; admission refuses it."""
    return (parse_duration_s(policy.timeout) if policy.timeout else None) or 0.0
