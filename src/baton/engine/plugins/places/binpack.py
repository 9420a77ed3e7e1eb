"""Fill nodes: a node scores higher the fuller it is with the task on it."""

from typing import ClassVar

import msgspec
import numpy as np

from baton.engine.framework import CPU, MAX_SCORE, MEMORY, Floats, NodeView, Plugin, SessionView, Task


class BinpackArguments(msgspec.Struct, frozen=True):
    weight: int = msgspec.field(default=1, name="binpack.weight")
    """Multiplies the score, 0 to 100 for one unit."""
    cpu: int = msgspec.field(default=1, name="binpack.cpu")
    memory: int = msgspec.field(default=1, name="binpack.memory")
    resources: str = msgspec.field(default="", name="binpack.resources")
    """Comma-separated list of further resource names that count."""
    by_resource: dict[str, int] = msgspec.field(default_factory=dict, name="binpack.resources.*")
    """binpack.resources.NAME: weight of that resource, 1 if it is listed without a weight."""


class BinpackPlugin(Plugin[BinpackArguments]):
    name = "binpack"
    arguments_type = BinpackArguments
    argument_prefixes: ClassVar[dict[str, str]] = {"binpack.resources.": "by_resource"}

    def open(self, session: SessionView) -> None:
        arguments = self.arguments
        further = session.state.resources.weights(arguments.resources, arguments.by_resource)
        self._weights = {CPU: arguments.cpu, MEMORY: arguments.memory, **further}

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        arguments = self.arguments
        if not arguments.weight:
            return None
        total, weight_sum = np.zeros(nodes.size), 0
        for place in task.needs.places:
            weight = self._weights.get(place, 0)
            if not weight:
                continue
            capacity = nodes.allocatable(place)
            after = nodes.used(place) + task.needs.request[place]
            total += weight * (after / np.maximum(capacity, 1))
            weight_sum += weight
        if not weight_sum:
            return None
        return total * (MAX_SCORE * arguments.weight / weight_sum)
