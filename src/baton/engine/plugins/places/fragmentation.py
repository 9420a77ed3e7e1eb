"""Place tasks where the least card capacity becomes unusable (FGD), by node scores and card scores.

The typical workload is learned from the pods of the cluster, and learned again when their number has changed by a
tenth; a simulator or a test can pin it.
"""

import msgspec
import numpy as np

from baton.engine.framework import (
    TYPICAL_SHARE,
    Floats,
    Needs,
    NodeView,
    Plugin,
    SessionView,
    Task,
    Workload,
    card_and_node_scores,
)


class FragmentationArguments(msgspec.Struct, frozen=True):
    weight: int = msgspec.field(default=1, name="fragmentation.weight")
    covered: float = msgspec.field(default=TYPICAL_SHARE, name="fragmentation.workload-covered")
    """The share of all pods that the typical workload covers, most common pods first."""


class FragmentationPlugin(Plugin[FragmentationArguments]):
    name = "fragmentation"
    arguments_type = FragmentationArguments

    def __init__(self, arguments: FragmentationArguments, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._pinned = False
        self._workload = Workload([])
        self._learned_from = 0
        self._revision = 0

    def pin(self, workload: Workload) -> None:
        """Always use this workload."""
        self._workload, self._pinned = workload, True
        self._revision += 1

    def open(self, session: SessionView) -> None:
        state = session.state
        self._table = state.table
        number = len(state.tasks)
        if self._pinned or abs(number - self._learned_from) * 10 <= self._learned_from:
            return
        counts: dict[int, int] = {}
        needs: dict[int, Needs] = {}
        for task in state.tasks.values():
            needs[task.needs.number] = task.needs
            counts[task.needs.number] = counts.get(task.needs.number, 0) + 1
        self._workload = Workload.of(
            ((needs[item], count) for item, count in counts.items()), covered=self.arguments.covered
        )
        self._learned_from = number
        self._revision += 1

    def revision(self, session: SessionView) -> object:
        return self._revision

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        return card_and_node_scores(self._workload, task.needs, nodes)[0] * self.arguments.weight

    def card_scores(self, task: Task, row: int) -> list[float] | None:
        view = self._table.view(np.array([row], dtype=np.intp))
        by_card = card_and_node_scores(self._workload, task.needs, view)[1]
        return None if by_card is None else [float(value) for value in by_card[:, 0]]
