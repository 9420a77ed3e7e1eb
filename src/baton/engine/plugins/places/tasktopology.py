"""Roles of one job together or apart, and in an order: workers beside their server, servers on different nodes."""

import msgspec
import numpy as np

from baton.engine.framework import MAX_SCORE, ON_NODE, Floats, Job, NodeView, OrderKey, Plugin, Scope, Task


class TaskTopologyArguments(msgspec.Struct, frozen=True):
    weight: int = msgspec.field(default=1, name="task-topology.weight")


class TaskTopologyPlugin(Plugin[TaskTopologyArguments]):
    name = "task-topology"
    arguments_type = TaskTopologyArguments
    scope = Scope.JOB

    def task_key(self, task: Task) -> OrderKey:
        """The job's order of roles; roles that are not listed come last."""
        order = task.job.group.topology_order if task.job is not None else ()
        return (order.index(task.pod.role) if task.pod.role in order else len(order),)

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        job = task.job
        if job is None or not (job.group.topology_affinity or job.group.topology_anti_affinity):
            return None
        by_row = _attraction(job, task.pod.role)
        rows = range(nodes.table.count) if nodes.rows is None else nodes.rows.tolist()
        raw = np.array([by_row.get(row, 0) for row in rows], dtype=np.float64)
        return raw * (MAX_SCORE * self.arguments.weight / max(len(job.tasks), 1))


def _attraction(job: Job, role: str) -> dict[int, int]:
    """By row: the number of the job's tasks there that attract this role, minus those that it avoids."""
    friends = {other for group in job.group.topology_affinity if role in group for other in group}
    strangers = {other for group in job.group.topology_anti_affinity if role in group for other in group}
    by_row: dict[int, int] = {}
    for task in job.tasks.values():
        if task.status in ON_NODE:
            pull = (task.pod.role in friends) - (task.pod.role in strangers)
            if pull:
                by_row[task.row] = by_row.get(task.row, 0) + pull
    return by_row
