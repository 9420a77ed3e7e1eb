"""The six placement policies of the FGD study, each an integer score per node and a choice of cards.

A policy receives the nodes that have room and returns one of them and the cards to use. Ties go to the first node in
the cluster's order. Random placement is the exception: it draws the node and the cards.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from baton.engine.cards import fragmentation
from baton.engine.cards.fragmentation import WHOLE_CARD, Shape, TargetWorkload
from baton.sim.fill.cluster import Cluster, Pod

# The largest node of the study; the baselines scale CPU and cards by it.
LARGEST_CPU_MILLI = 128_000
LARGEST_CARDS_MILLI = 8_000

Scores = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Chooser(Protocol):
    """A policy at work on one cluster."""

    def __init__(self, cluster: Cluster, workload: TargetWorkload, rng: np.random.Generator) -> None: ...

    def choose(self, pod: Pod, fits: Mask) -> tuple[int, Sequence[int]]:
        """One of the nodes that fit, and its cards to use."""
        ...

    def placed(self, pod: Pod, node: int, fragment: float) -> None:
        """Called after each placement with the node's new weighted fragmentation."""
        ...


def cards_in_order(cluster: Cluster, node: int, shape: Shape) -> list[int]:
    """The first cards with room."""
    return [int(card) for card in np.flatnonzero(cluster.card_free[node] >= shape.milli)[: shape.cards]]


def tightest_cards(cluster: Cluster, node: int, shape: Shape) -> list[int]:
    """The cards with the least sufficient room; ties go to the first."""
    if not shape.total_milli:
        return []
    free = cluster.card_free[node]
    tight = np.argsort(free, kind="stable")
    return [int(card) for card in tight[free[tight] >= shape.milli][: shape.cards]]


class RandomFit:
    """Any node with room, any card with room."""

    def __init__(self, cluster: Cluster, workload: TargetWorkload, rng: np.random.Generator) -> None:  # noqa: ARG002  # the form of a policy
        self._cluster = cluster
        self._rng = rng

    def choose(self, pod: Pod, fits: Mask) -> tuple[int, Sequence[int]]:
        node = int(self._rng.choice(np.flatnonzero(fits)))
        if not pod.shape.total_milli:
            return node, []
        with_room = np.flatnonzero(self._cluster.card_free[node] >= pod.shape.milli)
        return node, [int(card) for card in self._rng.permutation(with_room)[: pod.shape.cards]]

    def placed(self, pod: Pod, node: int, fragment: float) -> None:
        pass


class ScoredFit:
    """A policy that scores all nodes at once and takes the tightest cards of the best node."""

    def __init__(self, cluster: Cluster, workload: TargetWorkload, rng: np.random.Generator) -> None:  # noqa: ARG002  # the form of a policy
        self._cluster = cluster

    def scores(self, pod: Pod) -> Scores:
        raise NotImplementedError

    def choose(self, pod: Pod, fits: Mask) -> tuple[int, Sequence[int]]:
        node = int(np.where(fits, self.scores(pod), -1).argmax())
        return node, tightest_cards(self._cluster, node, pod.shape)

    def placed(self, pod: Pod, node: int, fragment: float) -> None:
        pass


class DotProduct(ScoredFit):
    """Like Tetris: the smaller the product of the request and the free capacity, the better."""

    def scores(self, pod: Pod) -> Scores:
        cpu = self._cluster.cpu_free / LARGEST_CPU_MILLI * (pod.shape.cpu_milli / LARGEST_CPU_MILLI)
        cards = self._cluster.total_free / LARGEST_CARDS_MILLI * (pod.shape.total_milli / LARGEST_CARDS_MILLI)
        return (100 * (1 - (cpu + cards) / 2)).astype(np.int64)


class BestFit(ScoredFit):
    """The node with the least left over; CPU and cards have equal weight."""

    def scores(self, pod: Pod) -> Scores:
        cpu = (self._cluster.cpu_free - pod.shape.cpu_milli) / LARGEST_CPU_MILLI
        cards = (self._cluster.total_free - pod.shape.total_milli) / LARGEST_CARDS_MILLI
        return (100 * (1 - 0.5 * cpu - 0.5 * cards)).astype(np.int64)


class Packing(ScoredFit):
    """Cards in use first, then idle cards of nodes in use, then idle nodes."""

    def scores(self, pod: Pod) -> Scores:
        free = self._cluster.card_free
        if not pod.shape.total_milli:
            return np.zeros(len(free), dtype=np.int64)
        idle = free == WHOLE_CARD
        idle_count = idle.sum(axis=1)
        partly = np.sort(np.where((free >= pod.shape.milli) & ~idle, free, WHOLE_CARD), axis=1)[:, : pod.shape.cards]
        opened = (partly == WHOLE_CARD).sum(axis=1)
        on_used_cards = np.maximum(100 - (partly * 100 // WHOLE_CARD).sum(axis=1) // 10, 50)
        on_used_node = np.maximum(50 - opened, 33)
        on_idle_node = np.maximum(33 - idle_count, idle_count)
        cards = self._cluster.cards
        scores: Scores = np.where(idle_count == cards, on_idle_node, np.where(opened > 0, on_used_node, on_used_cards))
        return scores


class Clustering(ScoredFit):
    """Groups pods by request class: first nodes with only that class, then mixed nodes, then empty nodes."""

    def __init__(self, cluster: Cluster, workload: TargetWorkload, rng: np.random.Generator) -> None:
        super().__init__(cluster, workload, rng)
        self._hosted: dict[int, Mask] = {}
        self._classes = np.zeros(len(cluster.names), dtype=np.int64)

    @staticmethod
    def request_class(shape: Shape) -> int:
        """0 for a share of a card, else the number of cards."""
        return 0 if shape.milli < WHOLE_CARD else shape.cards

    def scores(self, pod: Pod) -> Scores:
        if not pod.shape.total_milli:
            return np.zeros(len(self._classes), dtype=np.int64)
        hosts = self._hosted.get(self.request_class(pod.shape), np.zeros(len(self._classes), dtype=bool))
        rank = np.where(hosts, np.where(self._classes == 1, 75, 50), np.where(self._classes == 0, 25, 0))
        scores: Scores = rank + 25 * (LARGEST_CARDS_MILLI - self._cluster.total_free) // LARGEST_CARDS_MILLI
        return scores

    def placed(self, pod: Pod, node: int, fragment: float) -> None:  # noqa: ARG002  # the form of a policy
        if not pod.shape.total_milli:
            return
        hosts = self._hosted.setdefault(self.request_class(pod.shape), np.zeros(len(self._classes), dtype=bool))
        self._classes[node] += not hosts[node]
        hosts[node] = True


class GradientDescent:
    """FGD. Scores are kept per shape and updated only for nodes that have changed since the shape's last arrival."""

    def __init__(self, cluster: Cluster, workload: TargetWorkload, rng: np.random.Generator) -> None:  # noqa: ARG002  # the form of a policy
        self._cluster = cluster
        self._workload = workload
        self._fragment = fragmentation.fragments(workload, cluster.cpu_free, cluster.card_free, cluster.model)
        self._known: dict[Shape, tuple[Scores, Scores, npt.NDArray[np.int64]]] = {}

    def choose(self, pod: Pod, fits: Mask) -> tuple[int, Sequence[int]]:
        shape, cluster = pod.shape, self._cluster
        if shape not in self._known:
            blank = np.full(len(fits), -1, dtype=np.int64)
            self._known[shape] = (blank, blank.copy(), blank.copy())
        score, card, seen = self._known[shape]
        # A node without room keeps its stale score: it is not a candidate, and it changes before it becomes one.
        stale = np.flatnonzero(fits & (seen < cluster.changes))
        if len(stale):
            found = fragmentation.descent(
                self._workload,
                shape,
                cluster.cpu_free[stale],
                cluster.card_free[stale],
                cluster.model[stale],
                self._fragment[stale],
            )
            score[stale], card[stale] = found
            seen[stale] = cluster.changes[stale]
        node = int(np.where(fits, score, -1).argmax())
        if not shape.total_milli:
            return node, []
        return node, [int(card[node])] if card[node] >= 0 else cards_in_order(cluster, node, shape)

    def placed(self, pod: Pod, node: int, fragment: float) -> None:  # noqa: ARG002  # the form of a policy
        self._fragment[node] = fragment


POLICIES: dict[str, type[Chooser]] = {
    "random": RandomFit,
    "dotprod": DotProduct,
    "clustering": Clustering,
    "packing": Packing,
    "bestfit": BestFit,
    "fgd": GradientDescent,
}
