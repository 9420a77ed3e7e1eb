"""Node groups of queues: a queue's affinity to groups of nodes, by the label volcano.sh/nodegroup-name."""

from collections.abc import Iterator

import msgspec
import numpy as np

from baton.engine.framework import MAX_SCORE, Bools, Check, Floats, NodeView, Plugin, Queue, Scope, SessionView, Task

GROUP_LABEL = "volcano.sh/nodegroup-name"


class NodeGroupArguments(msgspec.Struct, frozen=True):
    strict: bool = True
    """If true, a queue without any affinity may not use nodes that belong to a group."""


class NodeGroupPlugin(Plugin[NodeGroupArguments]):
    name = "nodegroup"
    arguments_type = NodeGroupArguments
    scope = Scope.QUEUE

    def revision(self, session: SessionView) -> object:
        """The queues' affinities, so that results for earlier affinities are dropped."""
        return tuple((name, said) for name, share in session.state.queues.items() if any(said := _groups(share.queue)))

    def filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        queue = _queue(task)
        if queue is None:
            return
        groups = nodes.label(GROUP_LABEL)
        wanted = (*queue.node_groups, *queue.preferred_node_groups)
        if wanted:
            ok = _among(wanted, nodes) | (~self._strict_mask(groups) if not queue.node_groups else False)
        elif self.arguments.strict:
            ok = groups == 0
        else:
            ok = nodes.true()
        if queue.excluded_node_groups:
            ok = ok & ~_among(queue.excluded_node_groups, nodes)
        yield Check("belonged to a node group that the queue may not use", ok, resolvable=False)

    def _strict_mask(self, groups: Bools) -> Bools:
        return groups != 0 if self.arguments.strict else np.zeros(len(groups), dtype=np.bool_)

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        queue = _queue(task)
        if queue is None or not (queue.preferred_node_groups or queue.avoided_node_groups or queue.node_groups):
            return None
        total = np.zeros(nodes.size)
        total[_among(queue.node_groups, nodes)] = MAX_SCORE
        total[_among(queue.preferred_node_groups, nodes)] = MAX_SCORE / 2
        total[_among(queue.avoided_node_groups, nodes)] = -MAX_SCORE
        return total


def _groups(queue: Queue) -> tuple[tuple[str, ...], ...]:
    return (queue.node_groups, queue.preferred_node_groups, queue.excluded_node_groups, queue.avoided_node_groups)


def _queue(task: Task) -> Queue | None:
    return task.job.queue.queue if task.job is not None and task.job.queue is not None else None


def _among(names: tuple[str, ...], nodes: NodeView) -> Bools:
    values = nodes.table.label_values(GROUP_LABEL)
    numbers = [values[name] for name in names if name in values]
    return np.isin(nodes.label(GROUP_LABEL), numbers)
