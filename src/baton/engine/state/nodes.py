"""The node table: capacity and usage of every node, one array per property.

Plugins read it through a `NodeView`: all rows, some rows, or the states that one row would pass through if the same
pod were placed on it repeatedly (`hypothetical`), so that a run of equal pods is scored once per node instead of once
per pod.

A change of a row is appended to `changes`, and every cached mask or score catches up from its position in that log.
`token` identifies the content of a row: equal tokens mean equal content.
"""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from baton.engine.cards.ledger import CardLedger
from baton.engine.objects import Node, Taint
from baton.engine.state.columns import FUTURE, NOW, Array, Bools, Columns, Floats, Rows, padded, permuted
from baton.engine.state.resources import PODS, ResourceNames, Vector
from baton.model.ids import NodeName, PodKey

if TYPE_CHECKING:
    from baton.engine.state.jobs import Task

DEFAULT_POD_LIMIT = 110
CHANGES_KEPT = 500_000
WITHHELD = (Taint("node.kubernetes.io/unschedulable"), Taint("node.kubernetes.io/not-ready"))
"""A node that is unschedulable or not ready counts as tainted in this way, whether or not the taint is set."""
_NOT_READY = 2
"""The bit of the not-ready taint."""


class NodeTable(Columns):
    """Rows of nodes. `used` has two planes, see `columns`."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "allocatable",
        "used",
        "number",
        "withheld",
        "present",
        "taint_set",
        "image_set",
        "cpu_load",
        "memory_load",
        "token",
        "unsettled",
    )

    def __init__(self, resources: ResourceNames, ledger: CardLedger) -> None:
        self.resources = resources
        self.ledger = ledger
        self.count = 0
        self._size = 64
        width = resources.width
        self.allocatable: npt.NDArray[np.int64] = np.zeros((width, self._size), dtype=np.int64)
        self.used: npt.NDArray[np.int64] = np.zeros((2, width, self._size), dtype=np.int64)
        self.number: Array = np.zeros(self._size, dtype=np.int32)
        """Identifies the node as long as it is in the table, whatever its row."""
        self._last_number = 0
        self.withheld: Array = np.zeros(self._size, dtype=np.int8)
        """Bits of `WITHHELD`."""
        self.present: Bools = np.zeros(self._size, dtype=np.bool_)
        self.taint_set: Array = np.zeros(self._size, dtype=np.int32)
        self.image_set: Array = np.zeros(self._size, dtype=np.int32)
        self.cpu_load: Floats = np.zeros(self._size)
        self.memory_load: Floats = np.zeros(self._size)
        self.token: npt.NDArray[np.int64] = np.zeros(self._size, dtype=np.int64)
        self.unsettled: Array = np.zeros(self._size, dtype=np.int32)
        """The number of tasks on the row that are being evicted or are promised: where it is 0, both planes agree."""
        self.nodes: list[Node | None] = []
        self.tasks: list[dict[PodKey, Task]] = []
        self.row_of: dict[NodeName, int] = {}
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self._taint_set_of: dict[tuple[Taint, ...], int] = {(): 0}
        self.image_sets: list[dict[str, int]] = [{}]
        self._image_set_of: dict[tuple[tuple[str, int], ...], int] = {(): 0}
        self._labels: dict[str, Array] = {}
        self._label_values: dict[str, dict[str, int]] = {}
        self.changes: list[int] = []
        self.epoch = 0
        """Grows whenever rows move or the log is truncated; caches of another epoch start over."""
        self._last_token = 0
        self._unsorted = False
        self.capacity_total: Vector = resources.zeros()
        resources.on_widen(self._widen)
        ledger.grow(self._size)

    def _widen(self, width: int) -> None:
        have = self.allocatable.shape[0]
        self.allocatable = np.concatenate([self.allocatable, np.zeros((width - have, self._size), np.int64)])
        self.used = np.concatenate([self.used, np.zeros((2, width - have, self._size), np.int64)], axis=1)
        self.capacity_total = np.concatenate([self.capacity_total, np.zeros(width - have, np.int64)])

    def put(self, node: Node) -> int:
        """Write a node's own properties and return its row. If the cards changed, they must have no holders."""
        row = self.row_of.get(node.name)
        amounts = self.resources.vector(node.allocatable)
        if not any(name == "pods" for name, _ in node.allocatable):
            amounts[PODS] = DEFAULT_POD_LIMIT
        if row is None:
            row = self._new_row(node.name)
            previous = None
        else:
            previous = self.nodes[row]
            removed = self.capacity_of(row)
            self.capacity_total -= removed
        self.nodes[row] = node
        self.allocatable[:, row] = amounts
        self.present[row] = True
        self.withheld[row] = node.unschedulable + _NOT_READY * (not node.ready)
        self.taint_set[row] = self._taint_id(node.taints)
        self.image_set[row] = self._image_id(node.images)
        self.cpu_load[row] = node.cpu_used_percent
        self.memory_load[row] = node.memory_used_percent
        self._put_labels(row, node, previous)
        if previous is None or previous.cards != node.cards:
            self.ledger.set_cards(row, node.cards)
        added = self.capacity_of(row)
        self.capacity_total += added
        self.touch(row)
        return row

    def capacity_of(self, row: int) -> Vector:
        """What a ready node adds to the cluster's capacity: its resources and the sums over its cards."""
        if not self.present[row] or self.withheld[row] & _NOT_READY:
            return self.resources.zeros()
        card_sums = self.ledger.totals(row)
        places = [(self.resources.position(name), amount) for name, amount in card_sums]
        total: Vector = self.allocatable[:, row].copy()
        for place, amount in places:
            if total[place] == 0:
                total[place] = amount
        return total

    def counts(self) -> Bools:
        """Which rows count towards the cluster's capacity, see `capacity_of`."""
        result: Bools = self.present[: self.count] & (self.withheld[: self.count] & _NOT_READY == 0)
        return result

    def remove(self, row: int) -> None:
        """Clear the row, which must have no holders; the next `settle` removes it from the table."""
        self.capacity_total -= self.capacity_of(row)
        del self.row_of[self.name(row)]
        self.ledger.set_cards(row, ())
        self.nodes[row] = None
        self.present[row] = False
        self.withheld[row] = 0
        self.used[:, :, row] = 0
        self.allocatable[:, row] = 0
        self.tasks[row] = {}
        self._unsorted = True
        self.touch(row)

    def settle(self) -> bool:
        """Sort the rows by name; true when rows moved."""
        if len(self.changes) > CHANGES_KEPT:
            self.changes = []
            self.epoch += 1
        if not self._unsorted:
            return False
        names = sorted(self.row_of)
        order = np.array([self.row_of[name] for name in names], dtype=np.intp)
        size = max(64, 1 << (len(names) - 1).bit_length() if names else 64)
        self.permute(order, size)
        self.ledger.permute(order, size)
        self._labels = {key: permuted(column, order, size) for key, column in self._labels.items()}
        self.nodes = [self.nodes[row] for row in order]
        self.tasks = [self.tasks[row] for row in order]
        self.row_of = {name: row for row, name in enumerate(names)}
        self.count = len(names)
        self._size = size
        self.changes = []
        self.epoch += 1
        self._unsorted = False
        return True

    def touch(self, row: int) -> None:
        """The content of the row changed: give it a new token."""
        self._last_token += 1
        self.token[row] = self._last_token
        self.changes.append(row)

    def fresh_tokens(self, number: int) -> range:
        """Tokens for contents that do not exist yet; see `signatures`."""
        first = self._last_token + 1
        self._last_token += number
        return range(first, first + number)

    def name(self, row: int) -> NodeName:
        node = self.nodes[row]
        assert node is not None
        return node.name

    def node(self, row: int) -> Node:
        node = self.nodes[row]
        assert node is not None
        return node

    def label_column(self, key: str) -> Array:
        """The value numbers of one label over all rows; 0 where the label is absent."""
        column = self._labels.get(key)
        if column is None:
            column = np.zeros(self._size, dtype=np.int32)
            values: dict[str, int] = {}
            self._label_values[key] = values
            self._labels[key] = column
            for row, node in enumerate(self.nodes):
                if node is not None:
                    for name, value in node.labels:
                        if name == key:
                            column[row] = values.setdefault(value, len(values) + 1)
        return column

    def label_values(self, key: str) -> dict[str, int]:
        self.label_column(key)
        return self._label_values[key]

    def view(self, rows: Rows | None = None, plane: int = FUTURE) -> "NodeView":
        return NodeView(self, rows, plane)

    def _new_row(self, name: NodeName) -> int:
        row = self.count
        if row >= self._size:
            self._size *= 2
            self.grow(self._size)
            self.ledger.grow(self._size)
            self._labels = {key: padded(column, self._size) for key, column in self._labels.items()}
        self.count += 1
        if self.nodes and not self._unsorted:
            last = self.nodes[-1]
            self._unsorted = last is None or last.name > name
        self.nodes.append(None)
        self.tasks.append({})
        self.row_of[name] = row
        self._last_number += 1
        self.number[row] = self._last_number
        self.epoch += 1
        return row

    def _put_labels(self, row: int, node: Node, previous: Node | None) -> None:
        if previous is not None and previous.labels == node.labels:
            return
        labels = dict(node.labels)
        for key, column in self._labels.items():
            value = labels.get(key)
            values = self._label_values[key]
            column[row] = 0 if value is None else values.setdefault(value, len(values) + 1)

    def _taint_id(self, taints: tuple[Taint, ...]) -> int:
        number = self._taint_set_of.get(taints)
        if number is None:
            number = self._taint_set_of[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        return number

    def _image_id(self, images: tuple[tuple[str, int], ...]) -> int:
        number = self._image_set_of.get(images)
        if number is None:
            number = self._image_set_of[images] = len(self.image_sets)
            self.image_sets.append(dict(images))
        return number


class NodeView:
    """Some rows of the table, as a plugin sees them. `rows` is None for all."""

    def __init__(
        self,
        table: NodeTable,
        rows: Rows | None,
        plane: int = FUTURE,
        used: npt.NDArray[np.int64] | None = None,
        card_usage: Array | None = None,
    ) -> None:
        self.table = table
        self.ledger = table.ledger
        self.rows = rows
        self.plane = plane
        self.size = table.count if rows is None else len(rows)
        self._used = used
        self._card_usage = card_usage
        self._columns: dict[int, tuple[Array, Array]] = {}
        self._used_columns: dict[int, Array] = {}
        self._allocatable_columns: dict[int, Array] = {}
        self.memo: dict[object, Array] = {}
        """Results that several readers of this view share."""

    def column(self, array: Array) -> Array:
        """Any array of the table or the ledger, for these rows; read once per view."""
        known = self._columns.get(id(array))
        if known is None:
            # Keep the array alive, too: the id of a freed array would soon belong to another one.
            known = self._columns[id(array)] = (array, self._rows_of(array))
        return known[1]

    def _rows_of(self, array: Array) -> Array:
        if self.rows is None:
            return array[..., : self.table.count]
        result: Array = array.take(self.rows, axis=-1)
        return result

    def names(self) -> list[NodeName]:
        rows = range(self.table.count) if self.rows is None else self.rows
        return [self.table.name(int(row)) for row in rows]

    def true(self) -> Bools:
        return np.ones(self.size, dtype=np.bool_)

    def allocatable(self, place: int) -> Array:
        known = self._allocatable_columns.get(place)
        if known is None:
            known = self._allocatable_columns[place] = self._rows_of(self.table.allocatable[place])
        return known

    def used(self, place: int) -> Array:
        if self._used is not None:
            hypothetical: Array = self._used[place]
            return hypothetical
        known = self._used_columns.get(place)
        if known is None:
            known = self._used_columns[place] = self._rows_of(self.table.used[self.plane, place])
        return known

    def label(self, key: str) -> Array:
        return self.column(self.table.label_column(key))

    def card_usage(self) -> Array:
        """[memory, share, slots, exclusive, claims] x cards x rows."""
        if self._card_usage is None:
            self._card_usage = self._rows_of(self.ledger.usage[self.plane])
        return self._card_usage

    def card_capacity(self) -> Array:
        """[memory, share, slots] x cards x rows."""
        return self.column(self.ledger.capacity)

    def on_plane(self, plane: int) -> "NodeView":
        return NodeView(self.table, self.rows, plane)

    def planes_differ(self) -> bool:
        """Whether any task on these rows is being evicted or promised."""
        return bool(self.column(self.table.unsettled).any())


__all__ = ["DEFAULT_POD_LIMIT", "FUTURE", "NOW", "NodeTable", "NodeView"]
