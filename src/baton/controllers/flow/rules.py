"""The next actions of a JobFlow: a pure function of the flow, its jobs, the templates, and the results of probes.

The job of a step is created when the steps it depends on are completed. With a probe it starts earlier: as soon as the
probe succeeds for a running target. The status counts for a job that is gone (it completed, and was deleted after its
time to live), so no step runs twice. A job that was deleted before it finished is created again.

A flow succeeds when all steps are completed, and fails when one fails or is terminated; both are final. In a failed
flow, running steps go on and no new ones start.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from baton.controllers.flow.patches import patched
from baton.model.meta import ObjectEvent
from baton.model.names import FINAL_PHASES, FlowPhase, JobPhase
from baton.model.volcano import (
    BATCH,
    FLOW,
    JOB_FLOW_KIND,
    JOB_KIND,
    Flow,
    FlowJobStatus,
    FlowState,
    Job,
    JobFlow,
    JobFlowStatus,
    JobRunningHistory,
    JobTemplate,
)

CREATED_BY_TEMPLATE = "volcano.sh/createdByJobTemplate"
CREATED_BY_FLOW = "volcano.sh/createdByJobFlow"
DELETE = "delete"
PROBE_EVERY_S = 2.0
FIRST_STATUS_S = 1.0
"""How long a flow without jobs stays without a status. A client that creates a flow often changes it right afterwards,
and our write would make that change conflict."""
_LABEL_LIMIT = 63
_LOST = frozenset({JobPhase.FAILED, JobPhase.TERMINATED})
_BEFORE_RUNNING = frozenset({"", JobPhase.PENDING})
_LISTS: Mapping[str, frozenset[str]] = {
    "pending_jobs": frozenset({"", JobPhase.PENDING}),
    "running_jobs": frozenset({JobPhase.RUNNING, JobPhase.COMPLETING}),
    "completed_jobs": frozenset({JobPhase.COMPLETED}),
    "failed_jobs": frozenset({JobPhase.FAILED}),
    "terminated_jobs": frozenset({JobPhase.TERMINATED, JobPhase.TERMINATING}),
}


JobBody = dict[str, Any]


class Check(NamedTuple):
    """A question to every pod of one task: does it answer on this port, to this request?"""

    job: str
    task: str
    port: int
    path: str | None = None
    """None checks only that a connection can be made."""
    header: tuple[str, str] | None = None


class Decision(NamedTuple):
    """What to do, in this order: delete, make, write the status."""

    status: JobFlowStatus
    make: tuple[JobBody, ...] = ()
    delete: tuple[Job, ...] = ()
    again_s: float | None = None
    events: tuple[ObjectEvent, ...] = ()


class _Header(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class _HttpGet(msgspec.Struct, frozen=True, rename="camel"):
    task_name: str = ""
    path: str = "/"
    port: int = 80
    http_header: _Header | None = None


class _TcpSocket(msgspec.Struct, frozen=True, rename="camel"):
    task_name: str = ""
    port: int = 0


class _TaskStatus(msgspec.Struct, frozen=True, rename="camel"):
    task_name: str = ""
    phase: str = ""


class Probe(msgspec.Struct, frozen=True, rename="camel"):
    """The conditions on the targets' tasks."""

    http_get_list: tuple[_HttpGet, ...] = ()
    tcp_socket_list: tuple[_TcpSocket, ...] = ()
    task_status_list: tuple[_TaskStatus, ...] = ()


def job_name(flow: JobFlow, step: str) -> str:
    return f"{flow.metadata.name}-{step}"


def checks(flow: JobFlow, jobs: Mapping[str, Job]) -> set[Check]:
    """The checks to run over the network before `decide`. `jobs` are those of the flow, by name."""
    wanted: set[Check] = set()
    if _phase_before(flow) in (FlowPhase.SUCCEED, FlowPhase.FAILED):
        return wanted
    for step in flow.spec.flows:
        if step.depends_on is None or job_name(flow, step.name) in jobs:
            continue
        for target in step.depends_on.targets:
            job = jobs.get(job_name(flow, target))
            if job is not None and job.status.state.phase == JobPhase.RUNNING:
                wanted |= _questions(job, _probe(step))
    return wanted


def decide(
    flow: JobFlow,
    jobs: Mapping[str, Job],
    templates: Mapping[str, JobTemplate],
    holding: Collection[Check] = (),
    *,
    new: bool = False,
) -> Decision:
    """The next actions. `jobs` are those that the flow controls, by name; `holding` are the checks that succeeded.

    A flow is `new` in its first sync; the next one follows after `FIRST_STATUS_S`.
    """
    states = _states(flow, jobs)
    phase = _phase(flow, states)
    if phase is FlowPhase.TERMINATING:
        return Decision(_status(flow, jobs, phase))
    events: list[ObjectEvent] = []
    before = _phase_before(flow)
    if phase != before and phase in (FlowPhase.SUCCEED, FlowPhase.FAILED):
        lost = [name for name, state in states.items() if state in _LOST]
        words = (
            f"failed because of {', '.join(lost)}; no further jobs are started" if lost else "all jobs are completed"
        )
        events.append(ObjectEvent(phase, words, warning=bool(lost)))
    status = _status(flow, jobs, phase)
    if phase is FlowPhase.SUCCEED:
        gone = tuple(job for job in jobs.values() if not job.metadata.deletion_timestamp)
        return Decision(status, delete=gone if flow.spec.job_retain_policy == DELETE else (), events=tuple(events))
    make: list[JobBody] = []
    probing = False
    if phase is not FlowPhase.FAILED:
        for step in flow.spec.flows:
            if states.get(job_name(flow, step.name)) is not None:
                continue
            if not _may_start(flow, step, states, jobs, holding):
                probing = probing or _probe(step) is not None
                continue
            template = templates.get(step.name)
            if template is None:
                words = f"the step {step.name} waits: its namespace has no JobTemplate {step.name}"
                events.append(ObjectEvent("TemplateNotFound", words, warning=True))
                continue
            make.append(job_body(flow, step, template))
    again_s = PROBE_EVERY_S if probing else None
    if new and not jobs and not before:
        status, again_s = flow.status, FIRST_STATUS_S
    return Decision(status, tuple(make), again_s=again_s, events=tuple(events))


def job_body(flow: JobFlow, step: Flow, template: JobTemplate) -> JobBody:
    """The job to create for a step."""
    metadata = flow.metadata
    marks = {
        CREATED_BY_TEMPLATE: f"{metadata.namespace}.{step.name}",
        CREATED_BY_FLOW: f"{metadata.namespace}.{metadata.name}",
    }
    spec: Any = template.spec
    if step.patch is not None and step.patch.job_spec:
        spec = patched(msgspec.json.decode(msgspec.json.encode(template.spec)), step.patch.job_spec)
    return {
        "apiVersion": BATCH,
        "kind": JOB_KIND,
        "metadata": {
            "name": job_name(flow, step.name),
            "labels": {key: value for key, value in marks.items() if len(value) <= _LABEL_LIMIT},
            "annotations": marks,
            "ownerReferences": [
                {
                    "apiVersion": FLOW,
                    "kind": JOB_FLOW_KIND,
                    "name": metadata.name,
                    "uid": metadata.uid,
                    "controller": True,
                }
            ],
        },
        "spec": spec,
    }


def _phase_before(flow: JobFlow) -> str:
    return flow.status.state.phase


def _states(flow: JobFlow, jobs: Mapping[str, Job]) -> dict[str, str]:
    """The phase of each step's job by the job's name; for a job that is gone, its last phase if that was final."""
    remembered = {one.name: one.state for one in flow.status.job_status_list if one.state in FINAL_PHASES}
    found: dict[str, str] = {}
    for step in flow.spec.flows:
        name = job_name(flow, step.name)
        if name in jobs:
            found[name] = jobs[name].status.state.phase
        elif name in remembered:
            found[name] = remembered[name]
    return found


def _phase(flow: JobFlow, states: Mapping[str, str]) -> FlowPhase:
    if flow.metadata.deletion_timestamp:
        return FlowPhase.TERMINATING
    before = _phase_before(flow)
    if before in (FlowPhase.SUCCEED, FlowPhase.FAILED):
        return FlowPhase(before)
    if any(state in _LOST for state in states.values()):
        return FlowPhase.FAILED
    if all(states.get(job_name(flow, step.name)) == JobPhase.COMPLETED for step in flow.spec.flows):
        return FlowPhase.SUCCEED
    if any(state not in _BEFORE_RUNNING for state in states.values()):
        return FlowPhase.RUNNING
    return FlowPhase.PENDING


def _may_start(
    flow: JobFlow, step: Flow, states: Mapping[str, str], jobs: Mapping[str, Job], holding: Collection[Check]
) -> bool:
    if step.depends_on is None:
        return True
    probe = _probe(step)
    for target in step.depends_on.targets:
        name = job_name(flow, target)
        if states.get(name) == JobPhase.COMPLETED:
            continue
        job = jobs.get(name)
        if probe is None or job is None or job.status.state.phase != JobPhase.RUNNING:
            return False
        if not _tasks_are(job, probe) or not _questions(job, probe) <= set(holding):
            return False
    return True


def _probe(step: Flow) -> Probe | None:
    """The step's probe. None when it is empty or invalid; the target must then complete."""
    given = step.depends_on.probe if step.depends_on is not None else None
    if not given:
        return None
    try:
        probe = msgspec.convert(given, Probe, strict=False)
    except msgspec.ValidationError:
        return None
    return probe if probe != Probe() else None


def _questions(job: Job, probe: Probe | None) -> set[Check]:
    """The checks of a probe on the pods of a target. Tasks that the target does not have are skipped."""
    if probe is None:
        return set()
    tasks = {task.name for task in job.spec.tasks}
    name = job.metadata.name
    found = {Check(name, one.task_name, one.port) for one in probe.tcp_socket_list if one.task_name in tasks}
    for one in probe.http_get_list:
        if one.task_name in tasks:
            header = (one.http_header.name, one.http_header.value) if one.http_header is not None else None
            found.add(Check(name, one.task_name, one.port, one.path or "/", header))
    return found


def _tasks_are(job: Job, probe: Probe) -> bool:
    """Whether all replicas of the named tasks are in the phases that the probe names."""
    replicas = {task.name: task.replicas for task in job.spec.tasks}
    for one in probe.task_status_list:
        if one.task_name in replicas:
            counted = job.status.task_status_count.get(one.task_name)
            if counted is None or counted.phase.get(one.phase, 0) < replicas[one.task_name]:
                return False
    return True


def _status(flow: JobFlow, jobs: Mapping[str, Job], phase: FlowPhase) -> JobFlowStatus:
    records = {one.name: one for one in flow.status.job_status_list if one.state in FINAL_PHASES}
    conditions = {name: flow.status.conditions[name] for name in records if name in flow.status.conditions}
    for name, job in jobs.items():
        records[name] = _record(job)
        conditions[name] = _condition(job)
    order = [job_name(flow, step.name) for step in flow.spec.flows]
    ordered = [records[name] for name in order if name in records]
    lists = {field: tuple(one.name for one in ordered if one.state in phases) for field, phases in _LISTS.items()}
    known = {name for names in lists.values() for name in names}
    return JobFlowStatus(
        **lists,
        un_know_jobs=tuple(one.name for one in ordered if one.name not in known),
        job_status_list=tuple(ordered),
        conditions={name: conditions[name] for name in order if name in conditions},
        state=FlowState(phase),
    )


def _record(job: Job) -> FlowJobStatus:
    state = job.status.state
    stages = job.status.conditions
    ends = [stage.last_transition_time for stage in stages[1:]] + [None]
    return FlowJobStatus(
        name=job.metadata.name,
        state=state.phase,
        start_timestamp=job.metadata.creation_timestamp or None,
        end_timestamp=state.last_transition_time if state.phase in FINAL_PHASES else None,
        restart_count=job.status.retry_count,
        running_histories=tuple(
            JobRunningHistory(stage.last_transition_time, end, stage.status)
            for stage, end in zip(stages, ends, strict=bool(stages))
        ),
    )


def _condition(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {"phase": job.status.state.phase, "createTime": job.metadata.creation_timestamp or None}
    if job.status.running_duration is not None:
        found["runningDuration"] = job.status.running_duration
    if job.status.task_status_count:
        found["taskStatusCount"] = msgspec.to_builtins(job.status.task_status_count)
    return {key: value for key, value in found.items() if value}
