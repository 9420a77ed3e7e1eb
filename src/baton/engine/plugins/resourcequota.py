"""A job is admitted only within its namespace's ResourceQuotas, card memory and cores included."""

from collections.abc import Iterable

from baton.engine.jobs import Job, QueueShare
from baton.engine.objects import Quota
from baton.engine.plugin import Lack, NoArguments, Plugin, Vote
from baton.engine.resources import Vector
from baton.engine.session import Session

PREFIXES = ("requests.", "limits.")


class ResourceQuotaPlugin(Plugin[NoArguments]):
    name = "resourcequota"

    def open(self, session: Session) -> None:
        self._quotas: dict[str, list[Quota]] = {}
        for quota in session.state.quotas.values():
            self._quotas.setdefault(quota.namespace, []).append(quota)
        self._admitted: dict[str, dict[str, int]] = {}
        self._unlimited = session.state.resources.limits(())

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
        """A quota is a namespace's, and a queue takes jobs of many."""
        return None if self._quotas else self._unlimited

    def job_enqueued(self, job: Job) -> None:
        sums = self._admitted.setdefault(job.group.namespace, {})
        for name, amount in job.group.min_resources or ():
            sums[name] = sums.get(name, 0) + amount


def _resource(name: str) -> str:
    """`requests.cpu` limits `cpu`."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
