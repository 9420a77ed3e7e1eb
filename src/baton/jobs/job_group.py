"""The PodGroup of a job: what the scheduler must know before there is a pod."""

import msgspec

from baton.jobs.job_pods import Body, group_name, owned_metadata
from baton.kube.quantities import QuantityError, amount, text_of
from baton.kube.volcano import (
    POD_GROUP_KIND,
    SCHEDULING,
    Job,
    JobSpec,
    PodGroupSpec,
    Quantities,
    SubGroupPolicy,
    TaskSpec,
)
from baton.kube.volcano_names import JOB_VERSION, PARTITION_ID, TASK_SPEC

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def group_spec(job: Job, priorities: dict[str, int]) -> PodGroupSpec:
    """What the group asks for; `priorities` are the values of the priority classes."""
    spec = job.spec
    return PodGroupSpec(
        min_member=spec.minimum,
        min_task_member={task.name: _least(task) for task in spec.tasks},
        queue=spec.queue,
        priority_class_name=spec.priority_class_name,
        min_resources=min_resources(spec, priorities),
        network_topology=spec.network_topology,
        sub_group_policy=tuple(_sub_group(task) for task in spec.tasks if task.partition_policy is not None),
    )


def group_body(job: Job, wanted: PodGroupSpec) -> Body:
    annotations = {key: value for key, value in job.metadata.annotations.items() if key != LAST_APPLIED}
    return {
        "apiVersion": SCHEDULING,
        "kind": POD_GROUP_KIND,
        "metadata": {
            **owned_metadata(job, group_name(job)),
            "labels": job.metadata.labels,
            "annotations": {**annotations, JOB_VERSION: str(job.status.version)},
        },
        "spec": wanted,
        "status": {"phase": "Pending"},
    }


def group_changes(have: PodGroupSpec, wanted: PodGroupSpec) -> Body:
    """A merge patch that makes one spec the other; empty when nothing differs. The queue stays as it was made."""
    changes: Body = {}
    if have.min_member != wanted.min_member:
        changes["minMember"] = wanted.min_member
    if have.priority_class_name != wanted.priority_class_name:
        changes["priorityClassName"] = wanted.priority_class_name
    if have.min_task_member != wanted.min_task_member:
        dropped = {task: None for task in have.min_task_member if task not in wanted.min_task_member}
        changes["minTaskMember"] = {**dropped, **wanted.min_task_member}
    if _amounts(have.min_resources) != _amounts(wanted.min_resources):
        dropped = {name: None for name in have.min_resources or {} if name not in (wanted.min_resources or {})}
        changes["minResources"] = {**dropped, **(wanted.min_resources or {})}
    if _comparable(have.sub_group_policy) != _comparable(wanted.sub_group_policy):
        changes["subGroupPolicy"] = wanted.sub_group_policy
    return changes


def min_resources(spec: JobSpec, priorities: dict[str, int]) -> Quantities:
    """What the gang's pods ask for together: those of the tasks with the highest priority first.

    Each task gives its own minimum, then, while the gang needs more, whatever replicas it has beyond that. Where the
    gang needs less than the tasks' minima together, the first pods in that order count.
    """
    tasks = sorted(spec.tasks, key=lambda task: -priorities.get(_priority_class(task), 0))
    left = spec.minimum
    taken = dict.fromkeys((task.name for task in tasks), 0)
    by_minimum = spec.minimum >= spec.tasks_minimum
    for limit in ("minimum", "replicas") if by_minimum else ("replicas",):
        for task in tasks:
            count = max(0, min(left, getattr(task, limit) - taken[task.name]))
            taken[task.name] += count
            left -= count
    totals: dict[str, int] = {}
    for task in tasks:
        for name, asked in pod_requests(task).items():
            totals[name] = totals.get(name, 0) + asked * taken[task.name]
    return {name: text_of(name, total) for name, total in totals.items() if total}


def pod_requests(task: TaskSpec) -> dict[str, int]:
    """What one pod of the task asks for: all containers together, or an init container where that asks for more."""
    spec = task.template.get("spec") or {}
    together: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, asked in _asked(container).items():
            together[name] = together.get(name, 0) + asked
    for container in spec.get("initContainers") or ():
        sidecar = container.get("restartPolicy") == "Always"
        for name, asked in _asked(container).items():
            together[name] = together.get(name, 0) + asked if sidecar else max(together.get(name, 0), asked)
    return together


def _asked(container: Body) -> dict[str, int]:
    """Requests, and limits for what has no request: so the API server will complete them."""
    resources = container.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount(name, quantity) for name, quantity in given.items()}


def _priority_class(task: TaskSpec) -> str:
    return str((task.template.get("spec") or {}).get("priorityClassName") or "")


def _least(task: TaskSpec) -> int:
    """The task's minimum in the gang."""
    partitions = task.partition_policy
    if task.min_available is None and partitions is not None and partitions.min_partitions:
        return partitions.min_partitions * partitions.partition_size
    return task.minimum


def _sub_group(task: TaskSpec) -> SubGroupPolicy:
    partitions = task.partition_policy
    assert partitions is not None
    return SubGroupPolicy(
        name=task.name,
        sub_group_size=partitions.partition_size,
        min_sub_groups=partitions.min_partitions,
        label_selector={"matchLabels": {TASK_SPEC: task.name}},
        match_label_keys=(PARTITION_ID,),
        network_topology=partitions.network_topology,
    )


def _amounts(quantities: Quantities | None) -> dict[str, int]:
    try:
        return {name: amount(name, quantity) for name, quantity in (quantities or {}).items()}
    except QuantityError:
        return {}


def _comparable(policies: tuple[SubGroupPolicy, ...]) -> bytes:
    return msgspec.json.encode(policies, order="deterministic")
