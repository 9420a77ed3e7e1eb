"""Network preferences: fuller hyper nodes first, and pods of one job near each other.

The engine (`domains`), not this plugin, keeps a job with a hard rule in one hyper node. The plugin scores the suitable
hyper nodes; it prefers nodes near the placed pods of the job and nodes that take more of them; and it places pods
without a network rule in hyper nodes that are already in use, so that whole hyper nodes stay free for gangs.
"""

from typing import ClassVar

import msgspec
import numpy as np

from baton.engine.framework import (
    CHARGED,
    CPU,
    MAX_SCORE,
    MEMORY,
    DomainView,
    Floats,
    Job,
    NodeView,
    Plugin,
    SessionView,
    Task,
    Tier,
    Vector,
    copies_at_most,
    tightness,
)


class NetworkTopologyArguments(msgspec.Struct, frozen=True):
    weight: int = 1
    """Multiplies the scores, 0 to 100 for one unit."""
    cpu: int = msgspec.field(default=1, name="hypernode.binpack.cpu")
    memory: int = msgspec.field(default=1, name="hypernode.binpack.memory")
    resources: str = msgspec.field(default="", name="hypernode.binpack.resources")
    """Comma-separated list of further resource names that count in the fullness of a hyper node."""
    by_resource: dict[str, int] = msgspec.field(default_factory=dict, name="hypernode.binpack.resources.*")
    """hypernode.binpack.resources.NAME: weight of that resource, 1 if it is listed without a weight."""
    normal_pods: bool = msgspec.field(default=True, name="hypernode.binpack.normal-pod.enable")
    """Whether pods without a network rule fill hyper nodes that are in use."""
    fading: float = msgspec.field(default=0.8, name="hypernode.binpack.normal-pod.fading")
    """The weight of each tier relative to the tier below it."""


class NetworkTopologyPlugin(Plugin[NetworkTopologyArguments]):
    name = "network-topology-aware"
    arguments_type = NetworkTopologyArguments
    argument_prefixes: ClassVar[dict[str, str]] = {"hypernode.binpack.resources.": "by_resource"}

    def open(self, session: SessionView) -> None:
        self._table = session.state.table
        self._tiers = session.state.forest.tiers
        arguments = self.arguments
        further = session.state.resources.weights(arguments.resources, arguments.by_resource)
        self._weights = {CPU: arguments.cpu, MEMORY: arguments.memory, **further}

    def domain_scores(self, need: Vector, domains: DomainView) -> Floats:
        return self._tightness(need, domains) * (MAX_SCORE * self.arguments.weight)

    def sees_world(self, task: Task) -> bool:
        if not self._tiers or not self.arguments.weight:
            return False
        if task.job is not None and task.job.group.close:
            return True
        return self.arguments.normal_pods

    def world_scores(self, task: Task, nodes: NodeView) -> Floats | None:
        if not self.sees_world(task):
            return None
        job = task.job
        if job is None or not job.group.close:
            score = nodes.column(self._filling(task))
        else:
            nearness = self._nearness(job)
            score = _packing(task, job, nodes) + (0.0 if nearness is None else nodes.column(nearness))
        return score * (MAX_SCORE * self.arguments.weight)

    def _tightness(self, need: Vector, domains: DomainView) -> Floats:
        return tightness(need, domains, lambda place: self._weights.get(place, 0))

    def _nearness(self, job: Job) -> Floats | None:
        """Scores by the lowest tier that connects a node with the placed pods, and by how many are near or on it."""
        count = self._table.count
        members = np.zeros(count)
        for task in job.tasks.values():
            if task.row >= 0 and task.status in CHARGED:
                members[task.row] += 1
        placed = np.flatnonzero(members)
        if not len(placed):
            return None
        lowest, highest = self._tiers[0].number, self._tiers[-1].number
        score = np.zeros(count)
        for tier in reversed(self._tiers):
            worth = (highest - tier.number) / (highest - lowest) if highest > lowest else 1.0
            for place in np.flatnonzero(tier.holding(placed)):
                score[tier.domains[place].rows] = worth
        beside = np.append(self._tiers[0].sums(members), 0.0) / len(job.tasks)
        return score + beside[self._tiers[0].owners] + members / len(job.tasks)

    def _filling(self, task: Task) -> Floats:
        """Scores by how full the hyper nodes above each node would be with the task; outside all of them is best."""
        count = self._table.count
        total, weight_sum = np.zeros(count), 0.0
        for tier in self._tiers:
            weight = self.arguments.fading ** max(tier.number - 1, 0)
            total += weight * np.append(self._fullness(task, tier), 1.0)[tier.owners]
            weight_sum += weight
        return total / (weight_sum or 1.0)

    def _fullness(self, task: Task, tier: Tier) -> Floats:
        return np.minimum(self._tightness(task.needs.request, DomainView(self._table, tier)), 1.0)


def _packing(task: Task, job: Job, nodes: NodeView) -> Floats:
    """The share of the job's waiting pods that each node would take, because pods on one node are closest."""
    waiting = max(len(job.pending), 1)
    share: Floats = np.minimum(copies_at_most(task, nodes), waiting) / waiting
    return share
