"""The phase machine of jobs: the job, its pods and their events in, a plan out. Pure.

`decide` is called repeatedly with the present world and takes at most one step from phase to phase, so a watch of the
job shows every phase. Two rules make it safe to kill the program at any moment.

*The status is the intention.* A restart, an abort or an end raises `status.version` (or writes the phase) before the
first pod is deleted. The status then tells which pods have to go: those of an older version, unless the phase retains
them. If a process dies in between, the next one reads the same status and goes on.

*Nothing stays half done.* A job leaves Restarting only when no pod is left to delete, and Aborting, Terminating and
Completing only when no pod is alive, so the next life never counts a pod of the previous one.

`status.state.reason` names the action that led to the phase. It is read back: a resumed job keeps its finished pods, a
restarted one does not. `status.state.message` is read back while a part of the job restarts: it names the pod or the
task whose restart has begun, because its cause may be gone or marked before the last pod of the part is deleted.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from baton.controllers.job.census import ACTIVE, TARGETED, Slot, counted, doomed_pods, missing_pods, phase_of
from baton.controllers.job.lifecycle import Happening, PodView, Reaction, happenings, react
from baton.model.durations import duration_text
from baton.model.meta import ObjectEvent
from baton.model.names import JOB_VERSION, BusAction, JobEvent, JobPhase, PodGroupPhase, PodPhase
from baton.model.times import seconds, stamp
from baton.model.volcano import Job, JobCondition, JobState, JobStatus, PodGroup

_ENDINGS = {
    BusAction.ABORT_JOB: JobPhase.ABORTING,
    BusAction.TERMINATE_JOB: JobPhase.TERMINATING,
    BusAction.COMPLETE_JOB: JobPhase.COMPLETING,
}
_AFTER = {
    JobPhase.ABORTING: JobPhase.ABORTED,
    JobPhase.TERMINATING: JobPhase.TERMINATED,
    JobPhase.COMPLETING: JobPhase.COMPLETED,
}
_ACTIONS = frozenset({*_ENDINGS, *TARGETED, BusAction.RESTART_JOB, BusAction.RESUME_JOB})
_CAUSE = re.compile(r"\w+ of (pod|task) (\S+)")
_AND = "; "
"""Separates the causes of several restarts that are in progress at once."""
_OPEN_GROUP = frozenset({PodGroupPhase.INQUEUE, PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN, PodGroupPhase.COMPLETED})


class GroupTarget(Enum):
    """The wanted state of the PodGroup."""

    PRESENT = "present"
    ABSENT = "absent"
    AS_IT_IS = "as it is"


class Order(NamedTuple):
    """An action from a Command, with the Command's identity, so that a second delivery is recognised."""

    action: str
    name: str
    uid: str

    @property
    def signature(self) -> str:
        return f"by command {self.name} ({self.uid})"


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a decision depends on."""

    job: Job
    pods: Sequence[PodView] = ()
    group: PodGroup | None = None
    gone: Sequence[tuple[str, str]] = ()
    """Pods (task, name) that disappeared without an action of the controller."""
    order: Order | None = None
    updated: bool = False
    """The spec has changed, so policies for JobUpdated apply."""
    seen_s: Mapping[tuple[str, str, str], float] = {}
    now_s: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The actions: the status is written first, then the rest follows."""

    status: JobStatus
    group: GroupTarget = GroupTarget.AS_IT_IS
    plugin_objects: bool | None = None
    """Whether the Services, ConfigMaps and Secrets of plugins should exist; None leaves them as they are."""
    create: tuple[Slot, ...] = ()
    delete: tuple[PodView, ...] = ()
    mark: frozenset[str] = frozenset()
    """Names of pods in `delete` that must first be marked as deleted by the controller."""
    events: tuple[ObjectEvent, ...] = ()
    wait_s: float | None = None
    """Decide again after this time, because the timeout of a policy runs."""
    waiting: tuple[Happening, ...] = ()
    """Events whose first sight must be remembered while it runs."""
    reaction: Reaction | None = None


def decide(world: World) -> Plan:
    """Take one step."""
    job, status = world.job, world.job.status
    phase = phase_of(job)
    if not status.state.phase:
        begun = _entered(status, JobPhase.PENDING, world.now_s, reason="", message="")
        return _continued(world, msgspec.structs.replace(begun, min_available=job.spec.minimum))
    happened = _happened(world) if phase in ACTIVE and world.order is None else []
    wait_s: float | None = None
    if world.order is None:
        reaction, wait_s = react(job.spec, happened, world.seen_s, world.now_s)
    else:
        reaction = Reaction(world.order.action, Happening(JobEvent.COMMAND_ISSUED))
    if reaction is not None and reaction.action in _ACTIONS:
        acted = _act(world, phase, reaction)
        if acted is not None:
            return acted
    waiting = tuple(happened) if wait_s is not None else ()
    return msgspec.structs.replace(_continued(world, status), wait_s=wait_s, waiting=waiting)


def group_is_open(job: Job, group: PodGroup | None) -> bool:
    """Whether pods may be created: the PodGroup of this life was admitted to the queue."""
    return group is not None and not group_is_stale(job, group) and group.status.phase in _OPEN_GROUP


def group_is_stale(job: Job, group: PodGroup) -> bool:
    """Whether the PodGroup belongs to an earlier life. One without a version, from another controller, is accepted."""
    version = group.metadata.annotations.get(JOB_VERSION)
    if version is None:
        return phase_of(job) == JobPhase.RESTARTING and job.status.state.reason not in TARGETED
    return version != str(job.status.version)


def _happened(world: World) -> list[Happening]:
    """The events that policies may react to."""
    job = world.job
    found = happenings(job.spec, job.status.version, world.pods, world.gone, unknown=_is_unknown(world))
    if world.updated:
        found.append(Happening(JobEvent.JOB_UPDATED))
    return found


def _is_unknown(world: World) -> bool:
    """Whether the gang lacks pods and the scheduler reports it. The scheduler also reports it when a job is scaled down
    and pods go before it knows that fewer are needed, so a job with enough pods up lacks nothing."""
    job, group = world.job, world.group
    if group is None or group.status.phase != PodGroupPhase.UNKNOWN or group_is_stale(job, group):
        return False
    counts = counted(job, world.pods, doomed_pods(job, world.pods, ())).task_status_count
    up = {
        task: state.phase.get(PodPhase.RUNNING, 0) + state.phase.get(PodPhase.SUCCEEDED, 0)
        for task, state in counts.items()
    }
    short = any(up.get(task.name, 0) < (task.min_available or 0) for task in job.spec.tasks)
    return short or sum(up.values()) < job.spec.minimum


def _act(world: World, phase: JobPhase, reaction: Reaction) -> Plan | None:
    """The plan of an action; None if it has no meaning in this phase or was already carried out."""
    status, action = world.job.status, reaction.action
    message = world.order.signature if world.order is not None else _because(reaction)
    if world.order is not None and message == status.state.message:
        return None
    events = (ObjectEvent("ExecuteAction", f"Start to execute action {action}: {message}"),)
    if action in _ENDINGS:
        if phase not in ACTIVE:
            return None
        ended = _next_life(status, _ENDINGS[BusAction(action)], world.now_s, action, message)
        return _acted(world, ended, events, reaction)
    if action == BusAction.RESUME_JOB:
        if phase not in (JobPhase.ABORTING, JobPhase.ABORTED):
            return None
        resumed = _next_life(status, JobPhase.RESTARTING, world.now_s, action, message)
        if phase == JobPhase.ABORTING:
            resumed = msgspec.structs.replace(resumed, retry_count=status.retry_count + 1)
        return _acted(world, resumed, events, reaction)
    if phase not in ACTIVE:
        return None
    if action == BusAction.RESTART_JOB:
        partly = status.state.reason in TARGETED and status.retry_count < world.job.spec.max_retry
        if phase == JobPhase.RESTARTING and not partly:
            return None
        restarted = _next_life(status, JobPhase.RESTARTING, world.now_s, action, message)
        restarted = msgspec.structs.replace(restarted, retry_count=status.retry_count + 1)
        return _acted(world, restarted, events, reaction)
    return _restart_some(world, phase, reaction, message, events)


def _restart_some(
    world: World, phase: JobPhase, reaction: Reaction, message: str, events: tuple[ObjectEvent, ...]
) -> Plan | None:
    """Delete the pods of a partial restart. A job that already restarts changes nothing else."""
    cause, status = reaction.cause, world.job.status
    targets = _targets(world, reaction.action, cause.task, cause.pod)
    if phase == JobPhase.RESTARTING:
        if status.retry_count >= world.job.spec.max_retry:
            return None
        begun = {pod.name: pod for pod in _restarting_pods(world)}
        if all(pod.name in begun for pod in targets):
            return None
        targets = list({**begun, **{pod.name: pod for pod in targets}}.values())
        events = ()
        one_pod = reaction.action == BusAction.RESTART_POD and cause.pod  # its mark is enough to remember it
        if not one_pod and status.state.reason in TARGETED:
            words = _AND.join((status.state.message, f"{reaction.action}: {message}"))
            status = msgspec.structs.replace(status, state=msgspec.structs.replace(status.state, message=words))
    elif not (targets or cause.task):
        return None
    else:
        entered = _entered(status, JobPhase.RESTARTING, world.now_s, reaction.action, message)
        status = msgspec.structs.replace(entered, retry_count=status.retry_count + 1)
        if status.retry_count >= world.job.spec.max_retry:
            targets = []  # the job has failed: its finished pods stay, so that their logs can be read
    plan = _acted(world, status, events, reaction, targets)
    return msgspec.structs.replace(plan, group=GroupTarget.PRESENT, plugin_objects=True)


def _targets(world: World, action: str, task_name: str, pod_name: str) -> list[PodView]:
    """The pods of this version that the action deletes: the task, the partition or one pod. An event of a task that
    names no pod concerns the whole task."""
    version = world.job.status.version
    mine = [pod for pod in world.pods if pod.task == task_name and pod.version == version and not pod.marked]
    if not pod_name:
        return mine
    if action == BusAction.RESTART_POD:
        return [pod for pod in mine if pod.name == pod_name]
    if action == BusAction.RESTART_PARTITION:
        task = next((task for task in world.job.spec.tasks if task.name == task_name), None)
        policy = task.partition_policy if task is not None else None
        if policy is None or policy.partition_size <= 0:
            return mine
        index = next((pod.index for pod in mine if pod.name == pod_name), index_in_name(pod_name))
        return [pod for pod in mine if pod.index // policy.partition_size == index // policy.partition_size]
    return mine


def _restarting_pods(world: World) -> list[PodView]:
    """The pods that partial restarts have yet to delete, according to the status. None is replaced before."""
    job, state = world.job, world.job.status.state
    found: dict[str, PodView] = {}
    retried = job.status.retry_count < job.spec.max_retry
    if phase_of(job) == JobPhase.RESTARTING and state.reason in TARGETED and retried:
        for words in state.message.split(_AND):
            action, colon, because = words.rpartition(": ")
            if cause := _CAUSE.match(because):
                kind, name = cause.groups()
                task, pod = name, ""
                if kind == "pod":
                    task, pod = name.removeprefix(f"{job.metadata.name}-").rpartition("-")[0], name
                targets = _targets(world, action if colon else state.reason, task, pod)
                found |= {target.name: target for target in targets}
    return list(found.values())


def index_in_name(pod: str) -> int:
    """The index at the end of `JOB-TASK-INDEX`."""
    digits = pod.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def _because(reaction: Reaction) -> str:
    cause = reaction.cause
    words = [str(cause.event)]
    if cause.pod:
        words.append(f"of pod {cause.pod}")
    elif cause.task:
        words.append(f"of task {cause.task}")
    if cause.exit_code:
        words.append(f"with exit code {cause.exit_code}")
    return " ".join(words)


def _entered(status: JobStatus, phase: JobPhase, now_s: float, reason: str, message: str) -> JobStatus:
    """The status in a new phase."""
    now = stamp(now_s)
    return msgspec.structs.replace(
        status,
        state=JobState(phase=phase, reason=reason, message=message, last_transition_time=now),
        conditions=(*status.conditions, JobCondition(phase, now)),
    )


def _next_life(status: JobStatus, phase: JobPhase, now_s: float, reason: str, message: str) -> JobStatus:
    """The status in a new phase, in which all present pods belong to the previous life."""
    return msgspec.structs.replace(_entered(status, phase, now_s, reason, message), version=status.version + 1)


def _acted(
    world: World,
    status: JobStatus,
    events: tuple[ObjectEvent, ...],
    reaction: Reaction,
    targets: Sequence[PodView] = (),
) -> Plan:
    """The plan of an action: the new status, and every pod that has to go because of it."""
    job = msgspec.structs.replace(world.job, status=status)
    doomed = doomed_pods(job, world.pods, targets)
    return Plan(
        status=counted(job, world.pods, doomed),
        delete=tuple(pod for pod in world.pods if pod.name in doomed and not pod.terminating),
        mark=frozenset(pod.name for pod in targets),
        group=_group_target(job, world.group),
        plugin_objects=_plugin_objects(phase_of(job)),
        events=events,
        reaction=reaction,
    )


def _continued(world: World, status: JobStatus) -> Plan:
    """The plan without an action: create missing pods, delete surplus ones, count, and change the phase if due."""
    job = msgspec.structs.replace(world.job, status=status)
    phase = phase_of(job)
    targets = _restarting_pods(world)
    doomed = doomed_pods(job, world.pods, targets)
    delete = tuple(pod for pod in world.pods if pod.name in doomed and not pod.terminating)
    tally = counted(job, world.pods, doomed)
    create: tuple[Slot, ...] = ()
    if phase in (JobPhase.PENDING, JobPhase.RUNNING) and group_is_open(job, world.group):
        create = missing_pods(job, world.pods)
    moved = _moved(job, tally, nothing_to_delete=not delete, now_s=world.now_s)
    return Plan(
        status=moved,
        delete=delete,
        mark=frozenset(pod.name for pod in targets),
        create=create,
        group=_group_target(job, world.group),
        plugin_objects=_plugin_objects(phase),
    )


def _moved(job: Job, status: JobStatus, *, nothing_to_delete: bool, now_s: float) -> JobStatus:
    """The status in the phase that follows from the counts; usually the phase does not change."""
    phase = phase_of(job)
    reason, message = "", ""
    target: JobPhase | None = None
    if phase == JobPhase.PENDING and job.status.state.phase:
        if status.running + status.succeeded + status.failed >= job.spec.minimum:
            target = JobPhase.RUNNING
    elif phase == JobPhase.RUNNING:
        target, message = _after_running(job, status)
    elif phase == JobPhase.RESTARTING:
        reason = status.state.reason
        if status.retry_count >= job.spec.max_retry:
            target = JobPhase.FAILED
            message = f"reached maxRetry ({job.spec.max_retry}) restarts; the last one: {status.state.message}"
        elif nothing_to_delete and job.spec.total - status.terminating >= job.spec.minimum:
            target = JobPhase.PENDING
            message = status.state.message
    elif phase in _AFTER and not (status.pending or status.running or status.unknown or status.terminating):
        target = _AFTER[phase]
        reason, message = status.state.reason, status.state.message
    if target is None or target == phase:
        return status
    moved = _entered(status, target, now_s, reason, message)
    if target.final:
        began_s = seconds(job.metadata.creation_timestamp)
        lasted = duration_text(now_s - began_s) if began_s is not None else None
        moved = msgspec.structs.replace(moved, running_duration=lasted)
    return moved


def _after_running(job: Job, status: JobStatus) -> tuple[JobPhase | None, str]:
    """The next phase of a running job: final when enough pods succeeded or all finished, Pending when pods are lost."""
    spec = job.spec
    if not spec.total:
        return None, ""
    if spec.min_success is not None and status.succeeded >= spec.min_success:
        return JobPhase.COMPLETED, ""
    if status.succeeded + status.failed == spec.total:
        if spec.minimum >= spec.tasks_minimum:
            for task in spec.tasks:
                counts = status.task_status_count.get(task.name)
                succeeded = counts.phase.get(PodPhase.SUCCEEDED, 0) if counts is not None else 0
                if task.min_available is not None and counts is not None and succeeded < task.min_available:
                    return (
                        JobPhase.FAILED,
                        f"{succeeded} pods of task {task.name} succeeded, {task.min_available} are required",
                    )
        needed = spec.minimum if spec.min_success is None else spec.min_success
        if status.succeeded >= needed:
            return JobPhase.COMPLETED, ""
        return JobPhase.FAILED, f"{status.succeeded} pods succeeded, {needed} are required"
    if status.pending > spec.total - spec.minimum:
        return JobPhase.PENDING, ""
    return None, ""


def _group_target(job: Job, group: PodGroup | None) -> GroupTarget:
    phase = phase_of(job)
    if phase not in ACTIVE:
        return GroupTarget.ABSENT
    if group is not None and group_is_stale(job, group):
        return GroupTarget.ABSENT
    if phase == JobPhase.RESTARTING and job.status.state.reason not in TARGETED:
        return GroupTarget.AS_IT_IS
    return GroupTarget.PRESENT


def _plugin_objects(phase: JobPhase) -> bool | None:
    if phase == JobPhase.RESTARTING:
        return None
    return phase in ACTIVE
