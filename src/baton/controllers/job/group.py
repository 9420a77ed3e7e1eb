"""The PodGroup of a job: what the scheduler must know before there are pods."""

from collections.abc import Callable

import msgspec

from baton.controllers.job.pods import group_name, owned_metadata
from baton.controllers.podgroup.quota_usage import quota_usage, same_usage
from baton.job_plugins.pod_bodies import Body
from baton.model.names import JOB_VERSION, PARTITION_ID, TASK_SPEC, PodGroupPhase
from baton.model.quantities import amount
from baton.model.volcano import (
    POD_GROUP_KIND,
    SCHEDULING,
    Job,
    JobSpec,
    PodGroupSpec,
    Quantities,
    SubGroupPolicy,
    TaskSpec,
)

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def group_spec(job: Job, priorities: dict[str, int]) -> PodGroupSpec:
    """The spec of the group. `priorities` are the values of the priority classes."""
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


def group_body(job: Job, wanted: PodGroupSpec, *, admitted: bool = False) -> Body:
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
        "status": {"phase": PodGroupPhase.INQUEUE if admitted else PodGroupPhase.PENDING},
    }


def group_changes(have: PodGroupSpec, wanted: PodGroupSpec) -> Body:
    """A merge patch from one spec to the other; empty when they are equal. The queue never changes."""
    changes: Body = {}
    if have.min_member != wanted.min_member:
        changes["minMember"] = wanted.min_member
    if have.priority_class_name != wanted.priority_class_name:
        changes["priorityClassName"] = wanted.priority_class_name
    if have.min_task_member != wanted.min_task_member:
        dropped = {task: None for task in have.min_task_member if task not in wanted.min_task_member}
        changes["minTaskMember"] = {**dropped, **wanted.min_task_member}
    if not same_usage(have.min_resources, wanted.min_resources):
        dropped = {name: None for name in have.min_resources or {} if name not in (wanted.min_resources or {})}
        changes["minResources"] = {**dropped, **(wanted.min_resources or {})}
    if _comparable(have.sub_group_policy) != _comparable(wanted.sub_group_policy):
        changes["subGroupPolicy"] = wanted.sub_group_policy
    return changes


def min_resources(spec: JobSpec, priorities: dict[str, int]) -> Quantities:
    """The sum of the requests of the gang's pods, counting the tasks with the highest priority first.

    Each task contributes its minimum and then, while the gang needs more, its further replicas. If the gang needs less
    than the sum of the tasks' minima, the first pods in that order count.
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
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    for task in tasks:
        for totals, asked_by_pod in ((requests, _of_pod(task, _requests)), (limits, _of_pod(task, _limits))):
            for name, asked in asked_by_pod.items():
                totals[name] = totals.get(name, 0) + asked * taken[task.name]
    return quota_usage(sum(taken.values()), requests, limits)


def _of_pod(task: TaskSpec, asked_by: Callable[[Body], Quantities]) -> dict[str, int]:
    """The requests of one pod of the task: the sum of its containers, or an init container that requests more."""
    spec = task.template.get("spec") or {}
    together: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, quantity in asked_by(container).items():
            together[name] = together.get(name, 0) + amount(name, quantity)
    for container in spec.get("initContainers") or ():
        sidecar = container.get("restartPolicy") == "Always"
        for name, quantity in asked_by(container).items():
            have, asked = together.get(name, 0), amount(name, quantity)
            together[name] = have + asked if sidecar else max(have, asked)
    return together


def _requests(container: Body) -> Quantities:
    """The requests, completed by the limits as the API server does."""
    return {**_limits(container), **((container.get("resources") or {}).get("requests") or {})}


def _limits(container: Body) -> Quantities:
    return (container.get("resources") or {}).get("limits") or {}


def _priority_class(task: TaskSpec) -> str:
    return str((task.template.get("spec") or {}).get("priorityClassName") or "")


def _least(task: TaskSpec) -> int:
    """The minimum of the task in the gang."""
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


def _comparable(policies: tuple[SubGroupPolicy, ...]) -> bytes:
    return msgspec.json.encode(policies, order="deterministic")
