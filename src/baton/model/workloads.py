"""Kubernetes' own workloads, typed: which pods they create, how many, and for which scheduler."""

import msgspec

from baton.model.meta import Metadata
from baton.model.resource import Resource


class _Read(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A read-only object with the field names of the API."""


class TemplateSpec(_Read, frozen=True, gc=False):
    scheduler_name: str = "default-scheduler"


class PodTemplate(_Read, frozen=True, gc=False):
    spec: TemplateSpec = TemplateSpec()


class WorkloadSpec(_Read, frozen=True, gc=False):
    replicas: int | None = None
    """None for a kind without this number: a DaemonSet or a Job."""
    template: PodTemplate = PodTemplate()


class Workload(_Read, frozen=True, gc=False):
    """A ReplicaSet, StatefulSet, DaemonSet or Job of Kubernetes."""

    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()


REPLICA_SETS: Resource[Workload] = Resource("apps", "v1", "replicasets", Workload)
STATEFUL_SETS: Resource[Workload] = Resource("apps", "v1", "statefulsets", Workload)
DAEMON_SETS: Resource[Workload] = Resource("apps", "v1", "daemonsets", Workload)
KUBERNETES_JOBS: Resource[Workload] = Resource("batch", "v1", "jobs", Workload)

WORKLOADS: dict[tuple[str, str], Resource[Workload]] = {
    ("apps/v1", "ReplicaSet"): REPLICA_SETS,
    ("apps/v1", "StatefulSet"): STATEFUL_SETS,
    ("apps/v1", "DaemonSet"): DAEMON_SETS,
    ("batch/v1", "Job"): KUBERNETES_JOBS,
}
"""By the apiVersion and kind in an owner reference."""
