"""Measured load: skip nodes and cards that are hot, busy or short of free memory, and score the others by idleness.

The adapter puts measurements into `Node` and `Card`; a change of a measurement is a change of the node. A node above a
threshold is rejected, as is a node with too few cards that have room for the task and are below their thresholds;
weights order the rest. Inside a node, cards above a threshold come last.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from baton.engine.framework import Check, Floats, NodeView, Plugin, SessionView, Task, fitting_cards

UTILISATION, MEMORY, TEMPERATURE, POWER = range(4)
HOT = 1e6
"""More than any difference between cards below the thresholds."""


class UsageArguments(msgspec.Struct, frozen=True):
    weight: int = msgspec.field(default=5, name="usage.weight")
    cpu_weight: int = msgspec.field(default=1, name="cpu.weight")
    memory_weight: int = msgspec.field(default=1, name="memory.weight")
    thresholds: dict[str, float] = msgspec.field(default_factory=dict)
    """`cpu` and `mem` in percent of the node; the default is 80."""
    gpu_weight: int = msgspec.field(default=1, name="gpu.weight")
    gpu_memory_weight: int = msgspec.field(default=1, name="gpu-memory.weight")
    gpu_temperature_weight: int = msgspec.field(default=0, name="gpu-temperature.weight")
    gpu_power_weight: int = msgspec.field(default=0, name="gpu-power.weight")
    gpu_threshold: float = msgspec.field(default=100.0, name="gpu.threshold")
    gpu_memory_threshold: float = msgspec.field(default=100.0, name="gpu-memory.threshold")
    gpu_temperature_threshold_c: float = msgspec.field(default=90.0, name="gpu-temperature.threshold")
    gpu_power_threshold: float = msgspec.field(default=100.0, name="gpu-power.threshold")


class UsagePlugin(Plugin[UsageArguments]):
    name = "usage"
    arguments_type = UsageArguments
    needs_load = True

    def open(self, session: SessionView) -> None:
        self._table = session.state.table

    def filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        limits = self.arguments.thresholds
        yield Check(
            "had more CPU load than the threshold", nodes.column(nodes.table.cpu_load) <= limits.get("cpu", 80.0)
        )
        yield Check(
            "had more memory load than the threshold", nodes.column(nodes.table.memory_load) <= limits.get("mem", 80.0)
        )
        if task.needs.cards.demands:
            cool = self._cool(nodes)
            for demand in task.needs.cards.demands:
                fitting = fitting_cards(task, demand, nodes)
                enough = (fitting & cool).sum(axis=0) >= demand.cards
                # If too few cards have room, whatever their load, report that reason instead.
                yield Check(
                    "had too few cards below the load thresholds", enough | (fitting.sum(axis=0) < demand.cards)
                )

    def _cool(self, nodes: NodeView) -> npt.NDArray[np.bool_]:
        arguments, load = self.arguments, nodes.column(nodes.ledger.load)
        cool: npt.NDArray[np.bool_] = nodes.column(nodes.ledger.kinds) != 0
        cool &= load[UTILISATION] <= arguments.gpu_threshold
        cool &= load[MEMORY] <= arguments.gpu_memory_threshold
        cool &= load[TEMPERATURE] <= arguments.gpu_temperature_threshold_c
        cool &= load[POWER] <= arguments.gpu_power_threshold
        return cool

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        arguments = self.arguments
        total = arguments.cpu_weight * (100.0 - nodes.column(nodes.table.cpu_load))
        total = total + arguments.memory_weight * (100.0 - nodes.column(nodes.table.memory_load))
        weights = arguments.cpu_weight + arguments.memory_weight
        card_weights = self._card_weights()
        if task.needs.cards.demands and any(card_weights):
            idle = self._card_idleness(nodes, card_weights)
            total = total + sum(card_weights) * np.where(np.isneginf(idle.max(axis=0)), 0.0, idle.max(axis=0))
            weights += sum(card_weights)
        result: Floats = total * (arguments.weight / max(weights, 1))
        return result

    def card_scores(self, task: Task, row: int) -> list[float] | None:
        view = self._table.view(np.array([row], dtype=np.intp))
        preference = np.where(self._cool(view), 0.0, -HOT)
        weights = self._card_weights()
        if any(weights):
            preference += self._card_idleness(view, weights)
        return [float(value) for value in preference[:, 0]]

    def _card_weights(self) -> tuple[int, int, int, int]:
        arguments = self.arguments
        return (
            arguments.gpu_weight,
            arguments.gpu_memory_weight,
            arguments.gpu_temperature_weight,
            arguments.gpu_power_weight,
        )

    def _card_idleness(self, nodes: NodeView, weights: tuple[int, int, int, int]) -> Floats:
        """100 is idle and cold; cards that serve no kind of request are -inf."""
        load = nodes.column(nodes.ledger.load)
        idle = sum(weight * (100.0 - load[which]) for which, weight in enumerate(weights) if weight) / sum(weights)
        result: Floats = np.where(nodes.column(nodes.ledger.kinds) != 0, idle, -np.inf)
        return result
