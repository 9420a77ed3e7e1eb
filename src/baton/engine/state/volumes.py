"""Volumes of placed pods: those attached to each node, and the users of claims that only one pod may use.

A node attaches a limited number of volumes of a CSI driver. A volume counts once per node however many pods use it
there, so unlike other resources this is not a sum of requests: each driver has a column of limits and, for each plane,
one of distinct volumes; each volume has its rows with the number of its users there. Checking all nodes for a pod takes
a few array operations, and pods without counted volumes skip it.
"""

from collections.abc import Iterator

import numpy as np

from baton.engine.objects import Pairs
from baton.engine.state.columns import Array, Bools
from baton.engine.state.jobs import FINISHED, Status, Task
from baton.engine.state.nodes import NodeTable, NodeView
from baton.model.ids import PodKey
from baton.model.quantities import Amounts

_NO_LIMIT = int(np.iinfo(np.int32).max)


class Attachments:
    """Distinct volumes by driver, row and plane; `count` follows every placement."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._limits: dict[str, Array] = {}
        self._counts: dict[str, Array] = {}
        self._users: dict[tuple[str, str], dict[int, list[int]]] = {}

    def clear(self) -> None:
        """Rows have moved: forget all users, and read the limits again."""
        self._limits, self._counts, self._users = {}, {}, {}
        for row, node in enumerate(self._table.nodes):
            if node is not None:
                self.set_limits(row, node.volume_limits)

    def set_limits(self, row: int, limits: Amounts) -> None:
        for driver in self._limits:
            self._limits_of(driver)[row] = _NO_LIMIT
        for driver, limit in limits:
            self._limits_of(driver)[row] = min(max(limit, 0), _NO_LIMIT)

    def count(self, volumes: Pairs, row: int, planes: slice, amount: int) -> None:
        """A user of the volumes was added to the row (`amount` 1) or removed from it (-1), on these planes."""
        for volume in volumes:
            rows = self._users.setdefault(volume, {})
            users = rows.setdefault(row, [0, 0])
            counts = self._counts_of(volume[0])
            for plane in range(2)[planes]:
                before = users[plane] > 0
                users[plane] += amount
                counts[plane, row] += (users[plane] > 0) - before
            if not any(users):
                del rows[row]
                if not rows:
                    del self._users[volume]

    def room(self, volumes: Pairs, nodes: NodeView) -> Iterator[tuple[str, Bools, Array]]:
        """For each driver with a limit on any node: which nodes can attach the missing volumes, and the limits.

        Volumes that are already attached to a node cost nothing there, even if the node exceeds its limit.
        """
        by_driver: dict[str, list[tuple[str, str]]] = {}
        for volume in volumes:
            by_driver.setdefault(volume[0], []).append(volume)
        for driver, wanted in by_driver.items():
            if driver not in self._limits:
                continue
            limits = nodes.column(self._limits_of(driver))
            lacking = sum((~self._has(volume, nodes) for volume in wanted), np.zeros(nodes.size, dtype=np.int64))
            taken = nodes.column(self._counts_of(driver))[nodes.plane]
            yield driver, (lacking == 0) | (taken + lacking <= limits), limits

    def distinct(self) -> dict[tuple[str, int], list[int]]:
        """The number of volumes of each row by driver, on each plane; for tests."""
        return {
            (driver, int(row)): counts[:, row].tolist()
            for driver, counts in self._counts.items()
            for row in np.flatnonzero(counts.any(axis=0))
        }

    def _has(self, volume: tuple[str, str], nodes: NodeView) -> Bools:
        there = np.zeros(nodes.table.count, dtype=np.bool_)
        there[[row for row, users in self._users.get(volume, {}).items() if users[nodes.plane]]] = True
        return there if nodes.rows is None else there[nodes.rows]

    def _limits_of(self, driver: str) -> Array:
        return self._column(self._limits, driver, (), _NO_LIMIT)

    def _counts_of(self, driver: str) -> Array:
        return self._column(self._counts, driver, (2,), 0)

    def _column(self, kept: dict[str, Array], driver: str, planes: tuple[int, ...], nothing: int) -> Array:
        """The driver's array, grown to the length of the table's arrays."""
        size = len(self._table.present)
        column = kept.get(driver)
        if column is None or column.shape[-1] < size:
            longer = np.full((*planes, size), nothing, dtype=np.int64)
            if column is not None:
                longer[..., : column.shape[-1]] = column
            column = kept[driver] = longer
        return column


class SoleClaims:
    """Claims of access mode ReadWriteOncePod, and the tasks that use them."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[PodKey, Task]] = {}

    def add(self, task: Task) -> None:
        for claim in task.needs.spec.sole_claims:
            self._tasks.setdefault(claim, {})[task.key] = task

    def remove(self, task: Task) -> None:
        for claim in task.needs.spec.sole_claims:
            tasks = self._tasks[claim]
            del tasks[task.key]
            if not tasks:
                del self._tasks[claim]

    def user(self, claim: str, task: Task, *, foreseen: bool) -> PodKey | None:
        """The pod that keeps the task from using the claim; if `foreseen`, pods that are leaving do not count."""
        users = (
            other.key
            for other in self._tasks.get(claim, {}).values()
            if other is not task and _is_on_node(other) and not (foreseen and other.status is Status.RELEASING)
        )
        return min(users, default=None)


def _is_on_node(task: Task) -> bool:
    """Whether the pod is on a node, even one that is not known (any more): a pod that runs there may still write."""
    return task.row >= 0 or (task.pod.node is not None and task.status not in FINISHED)
