"""Admit a job only within the ResourceQuotas of its namespace, including card memory and cores."""

from collections.abc import Iterable

import numpy as np

from baton.engine.framework import (
    Change,
    Job,
    Lack,
    NoArguments,
    Plugin,
    PodGroupPhase,
    QueueShare,
    Quota,
    SessionView,
    Vector,
    Vote,
    min_resources,
)

PREFIXES = ("requests.", "limits.")


class ResourceQuotaPlugin(Plugin[NoArguments]):
    name = "resourcequota"
    rejections_end_with = frozenset({Change.PODS, Change.GROUPS, Change.QUOTAS})

    def open(self, session: SessionView) -> None:
        self._quotas: dict[str, list[Quota]] = {}
        for quota in session.state.quotas.values():
            self._quotas.setdefault(quota.namespace, []).append(quota)
        self._resources = session.state.resources
        self._admitted: dict[str, dict[str, int]] = {}
        for job in session.state.active.values():
            if job.phase is not PodGroupPhase.PENDING:
                self.job_enqueued(job)

    def job_enqueueable(self, job: Job) -> Vote:
        return Vote.REJECT if any(self.lacks(job)) else Vote.PERMIT

    def lacks(self, job: Job) -> Iterable[Lack]:
        wanted = dict(job.group.min_resources or ())
        admitted = self._admitted.get(job.group.namespace, {})
        for quota in self._quotas.get(job.group.namespace, ()):
            used = dict(quota.used)
            for name, hard in quota.hard:
                resource = _resource(name)
                left = hard - used.get(name, 0) - admitted.get(resource, 0)
                if wanted.get(resource, 0) > left:
                    yield Lack(f"quota {quota.name}", resource, wanted[resource], max(left, 0), hard)

    def credit(self, queue: QueueShare, queues: int) -> Vector | None:
        """None: a quota belongs to a namespace, and a queue takes jobs of many namespaces."""
        return None if self._quotas else self._resources.limits(())

    def job_enqueued(self, job: Job) -> None:
        """Count the pods of the minimum that do not exist yet; existing pods are already in the quota's usage."""
        if job.group.namespace not in self._quotas:
            return
        sums = self._admitted.setdefault(job.group.namespace, {})
        made = sum((task.needs.charge for task in job.tasks.values()), self._resources.zeros())
        to_come = np.maximum(min_resources(job, self._resources) - made, 0)
        for name, amount in self._resources.amounts(to_come):
            sums[name] = sums.get(name, 0) + amount


def _resource(name: str) -> str:
    """`requests.cpu` limits `cpu`."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
