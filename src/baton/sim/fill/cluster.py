"""The cluster of a fill as arrays: free CPU, memory and cards per node, in the order that breaks ties."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from baton.engine.cards.fragmentation import WHOLE_CARD, Amounts, Shape
from baton.sim.traces.workload import TraceJob, TraceNode

# The study's limit per node; it is never reached, but it is part of the filter.
MAX_PODS_PER_NODE = 1001


@dataclass
class Cluster:
    """Nodes as arrays. `changes` holds the clock of each node's last change, which tells whether a score is stale."""

    names: tuple[str, ...]
    model_names: tuple[str, ...]
    cpu_free: Amounts
    memory_free: Amounts
    card_free: Amounts
    model: Amounts
    cards: Amounts
    pods: Amounts
    total_free: Amounts
    capacity_milli: int
    changes: Amounts
    clock: int = 0

    @classmethod
    def of(cls, nodes: Sequence[TraceNode], order: npt.NDArray[np.int64] | None = None) -> "Cluster":
        """The empty cluster of these nodes, in `order`."""
        listed = list(nodes) if order is None else [nodes[index] for index in order]
        model_names = tuple(dict.fromkeys(node.model for node in nodes))
        number = {name: index for index, name in enumerate(model_names)}
        width = max(node.cards for node in nodes)
        cards = np.array([node.cards for node in listed], dtype=np.int64)
        card_free = np.where(np.arange(width) < cards[:, None], WHOLE_CARD, 0).astype(np.int64)
        return cls(
            names=tuple(node.name for node in listed),
            model_names=model_names,
            cpu_free=np.array([node.cpu_milli for node in listed], dtype=np.int64),
            memory_free=np.array([node.memory_mib for node in listed], dtype=np.int64),
            card_free=card_free,
            model=np.array([number[node.model] for node in listed], dtype=np.int64),
            cards=cards,
            pods=np.zeros(len(listed), dtype=np.int64),
            total_free=card_free.sum(axis=1),
            capacity_milli=int(cards.sum()) * WHOLE_CARD,
            changes=np.zeros(len(listed), dtype=np.int64),
        )

    def with_room(self, pod: "Pod") -> npt.NDArray[np.bool_]:
        """The nodes that have room for the pod."""
        fits = (self.cpu_free >= pod.shape.cpu_milli) & (self.memory_free >= pod.memory_mib)
        fits &= self.pods < MAX_PODS_PER_NODE
        if pod.shape.total_milli:
            if pod.shape.models:
                fits &= pod.allowed[self.model]
            fits &= (self.card_free >= pod.shape.milli).sum(axis=1) >= pod.shape.cards
        return fits

    def place(self, pod: "Pod", node: int, cards: Sequence[int]) -> None:
        """Give the pod its share of these cards of this node."""
        self.clock += 1
        self.changes[node] = self.clock
        self.cpu_free[node] -= pod.shape.cpu_milli
        self.memory_free[node] -= pod.memory_mib
        self.pods[node] += 1
        for card in cards:
            self.card_free[node, card] -= pod.shape.milli
        self.total_free[node] -= pod.shape.milli * len(cards)


class Pod(msgspec.Struct, frozen=True):
    """An arrival: its shape, its memory and the models it may run on, in the cluster's numbering."""

    shape: Shape
    memory_mib: int
    allowed: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, job: TraceJob, model_names: Sequence[str]) -> "Pod":
        allowed = np.array([not job.models or model in job.models for model in model_names], dtype=bool)
        return cls(job.shape, job.memory_mib, allowed)
