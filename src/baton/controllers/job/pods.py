"""The pods of a job: how they are sent to the API server, and how they are read back."""

import hashlib
from typing import Any

import msgspec

from baton.controllers.job.lifecycle import PodView
from baton.errors import BatonError
from baton.job_plugins.pod_bodies import Body, add_mount, add_volume, pod_name
from baton.model.core import Pod
from baton.model.names import (
    COOLDOWN_TIME,
    DEFAULT_SCHEDULER,
    GROUP_NAME,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    JOB_NAME,
    JOB_NAMESPACE,
    JOB_RETRY_COUNT,
    JOB_VERSION,
    NUMA_POLICY,
    OUT_OF_SYNC,
    PARTITION_ID,
    PREEMPTABLE,
    QUEUE_NAME,
    REVOCABLE_ZONE,
    TASK_INDEX,
    TASK_SPEC,
    TEMPLATE_UID,
)
from baton.model.numerals import whole_number
from baton.model.times import seconds
from baton.model.volcano import BATCH, JOB_KIND, Job, Quantities, TaskSpec

_HANDED_DOWN = (PREEMPTABLE, COOLDOWN_TIME, REVOCABLE_ZONE)
_LABELS_HANDED_DOWN = (PREEMPTABLE, COOLDOWN_TIME)
_LONGEST_LABEL = 63


_Many = list[dict[str, Any]] | None


class _Resources(msgspec.Struct):
    limits: Quantities | None = None
    requests: Quantities | None = None


class _Container(msgspec.Struct, rename="camel"):
    resources: _Resources | None = None
    env: _Many = None
    ports: _Many = None
    volume_mounts: _Many = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: _Many = None


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Template(msgspec.Struct):
    """The fields of a pod template that are read or extended."""

    metadata: _Metadata | None = None
    spec: _Spec | None = None


class TemplateError(BatonError):
    """The template of a task is not a pod template."""


def check_template(task: TaskSpec) -> None:
    """Check the form of the template. The API server checks the pods, but they are derived from the template first."""
    try:
        msgspec.convert(task.template, _Template)
    except msgspec.ValidationError as error:
        raise TemplateError(f"the template of task {task.name}: {error}") from None


def group_name(job: Job) -> str:
    return f"{job.metadata.name}-{job.metadata.uid}"


def owner(job: Job) -> Body:
    """The owner reference by which all objects of a job are garbage collected with it."""
    return {
        "apiVersion": BATCH,
        "kind": JOB_KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned_metadata(job: Job, name: str) -> Body:
    return {"name": name, "namespace": job.metadata.namespace, "ownerReferences": [owner(job)]}


def claim_name(job: Job, place: int) -> str:
    """The name of the claim for a volume that names none. It is derived, so a second attempt finds the first claim."""
    given = job.spec.volumes[place].volume_claim_name
    if given:
        return given
    digest = hashlib.sha256(f"{job.metadata.uid}/{place}".encode()).hexdigest()[:12]
    return f"{job.metadata.name}-pvc-{digest}"


def pod_body(job: Job, task: TaskSpec, index: int) -> Body:
    """The pod before plugins: the template of the task, and the names that scheduler, services and users search for."""
    template: Body = msgspec.to_builtins(task.template)  # a private copy
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    annotations = dict(metadata.get("annotations") or {})
    labels = dict(metadata.get("labels") or {})
    mine = job.metadata
    annotations |= {
        TASK_INDEX: str(index),
        TASK_SPEC: task.name,
        GROUP_NAME: group_name(job),
        JOB_NAME: mine.name,
        QUEUE_NAME: job.spec.queue,
        JOB_VERSION: str(job.status.version),
        TEMPLATE_UID: f"{mine.name}-{task.name}",
        JOB_RETRY_COUNT: str(job.status.retry_count),
    }
    if task.topology_policy:
        annotations[NUMA_POLICY] = task.topology_policy
    annotations |= {key: mine.annotations[key] for key in _HANDED_DOWN if key in mine.annotations}
    budget = next((key for key in (JDB_MIN_AVAILABLE, JDB_MAX_UNAVAILABLE) if key in mine.annotations), None)
    if budget is not None:
        annotations[budget] = mine.annotations[budget]
    labels |= {
        TASK_INDEX: str(index),
        JOB_NAME: mine.name,
        TASK_SPEC: task.name,
        JOB_NAMESPACE: mine.namespace,
        QUEUE_NAME: job.spec.queue,
    }
    labels |= {key: mine.labels[key] for key in _LABELS_HANDED_DOWN if key in mine.labels}
    if task.partition_policy is not None:
        labels[PARTITION_ID] = str(index // max(1, task.partition_policy.partition_size))
    # The API server would refuse a longer label; the annotation has the same value.
    labels = {key: value for key, value in labels.items() if len(value) <= _LONGEST_LABEL}
    spec["schedulerName"] = spec.get("schedulerName") or job.spec.scheduler_name or DEFAULT_SCHEDULER
    if job.spec.priority_class_name:
        spec["priorityClassName"] = spec.get("priorityClassName") or job.spec.priority_class_name
    _mount_claims(job, spec)
    return {
        "metadata": {
            **owned_metadata(job, pod_name(mine.name, task.name, index)),
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    }


def _mount_claims(job: Job, spec: Body) -> None:
    """Mount the job's volumes in every container. A claim that is named twice becomes one volume."""
    seen: set[str] = set()
    for place, volume in enumerate(job.spec.volumes):
        claim = claim_name(job, place)
        if claim in seen:
            continue
        seen.add(claim)
        name = f"volume-{hashlib.sha256(claim.encode()).hexdigest()[:12]}"
        add_volume(spec, {"name": name, "persistentVolumeClaim": {"claimName": claim}})
        add_mount(spec.get("containers") or (), {"name": name, "mountPath": volume.mount_path})


def view(pod: Pod) -> PodView:
    """A pod as the phase machine sees it."""
    metadata, status = pod.metadata, pod.status
    notes = metadata.annotations
    first = status.container_statuses[0] if status.container_statuses else None
    ended = first.state.terminated if first is not None else None
    containers = (*status.init_container_statuses, *status.container_statuses)
    return PodView(
        name=metadata.name,
        task=notes.get(TASK_SPEC, ""),
        index=_number(notes.get(TASK_INDEX, "")),
        uid=metadata.uid,
        version=_number(notes.get(JOB_VERSION, "")),
        phase=status.phase,
        terminating=bool(metadata.deletion_timestamp),
        marked=OUT_OF_SYNC in notes,
        exit_code=ended.exit_code if ended is not None else 0,
        restarts=sum(container.restart_count for container in containers),
        ready=all(container.ready for container in status.container_statuses),
        created_s=seconds(metadata.creation_timestamp) or 0.0,
        finished_s=seconds(ended.finished_at) if ended is not None else None,
    )


def _number(text: str) -> int:
    return whole_number(text) or 0
