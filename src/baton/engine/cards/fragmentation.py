"""How much of a node's free GPU capacity the expected workload cannot use, and how a placement changes that amount.

Fragmentation is measured against a *target workload*: a set of request shapes with their popularity. A free part of a
card is a fragment for a shape when that shape could not run on it: the node lacks cards with enough room, or CPU, or
the right model; or the free part of the card is smaller than the shape's share. A node's fragmentation is the
expectation over the workload, a cluster's the sum over its nodes. Fragmentation gradient descent (FGD, Weng et al.,
USENIX ATC'23) places a task where this number grows least.

Everything here is batched over nodes and exact: popularity stays an integer count, so all amounts are integers (held
in float64 below 2**53, which lets the sums run as matrix products). Exactness is not cosmetic: a placement that changes
nothing must score exactly the middle, or rounding decides the winner. The score is a coarse integer for the same
reason. Equal scores are meant to be common, and a tie goes to the first node in a fixed order, which keeps tasks
together; a finer score or a random tie-break loses most of the method's advantage.

Amounts are in milli-cards (1000 = one whole card). Rows of `card_free` are padded with zeros to one width.
"""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Amounts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Weighted = npt.NDArray[np.float64]

WHOLE_CARD = 1000
TYPICAL_SHARE = 0.95
MAX_SCORE = 100


class Shape(NamedTuple):
    """A task's request: CPU, and `cards` cards of one of `models` (empty: any) with `milli` free on each."""

    cpu_milli: int
    milli: int
    cards: int
    models: tuple[str, ...] = ()

    @property
    def total_milli(self) -> int:
        return self.milli * self.cards


@dataclass(frozen=True)
class TargetWorkload:
    """Shapes and their counts as arrays. `weight` is the sum of all counts; amounts divided by it are milli-cards."""

    shapes: tuple[Shape, ...]
    counts: Amounts
    weight: int
    models: Mapping[str, int]
    levels: Amounts
    gpu_cpu_milli: Amounts
    gpu_cards: Amounts
    gpu_level: Amounts
    gpu_allowed: Mask
    gpu_count_by_level: Weighted

    @classmethod
    def of(
        cls,
        counted: Sequence[tuple[Shape, int]],
        models: Iterable[str],
        accepts: Callable[[Sequence[str], str], bool] = operator.contains,
    ) -> "TargetWorkload":
        """The workload of these shapes, for nodes whose models are numbered in the order of `models`.

        `accepts` tells whether a shape that names models accepts a given model.
        """
        number = {model: index for index, model in enumerate(dict.fromkeys(models))}
        # A shape without cards sees every free card as a fragment, so it needs no arithmetic beyond its weight.
        asking = [(shape, count) for shape, count in counted if shape.total_milli]
        levels = np.unique(np.array([shape.milli for shape, _ in asking], dtype=np.int64))
        level = np.searchsorted(levels, [shape.milli for shape, _ in asking]).astype(np.int64)
        by_level = np.zeros((len(asking), len(levels)))
        by_level[np.arange(len(asking)), level] = [count for _, count in asking]
        allowed = np.ones((len(number), len(asking)), dtype=bool)
        for column, (shape, _) in enumerate(asking):
            if shape.models:
                allowed[:, column] = [accepts(shape.models, model) for model in number]
        return cls(
            shapes=tuple(shape for shape, _ in counted),
            counts=np.array([count for _, count in counted], dtype=np.int64),
            weight=sum(count for _, count in counted),
            models=number,
            levels=levels,
            gpu_cpu_milli=np.array([shape.cpu_milli for shape, _ in asking], dtype=np.int64),
            gpu_cards=np.array([shape.cards for shape, _ in asking], dtype=np.int64),
            gpu_level=level,
            gpu_allowed=allowed,
            gpu_count_by_level=by_level,
        )


def typical(shapes: Iterable[Shape] | Mapping[Shape, int], share: float = TYPICAL_SHARE) -> list[tuple[Shape, int]]:
    """The most common shapes, most common first, that together cover `share` of all tasks; with their counts."""
    counts = Counter(shapes)
    ranked = sorted(counts.items(), key=lambda item: (item[1], *item[0]), reverse=True)
    needed = share * sum(counts.values())
    chosen: list[tuple[Shape, int]] = []
    reached = 0
    for shape, count in ranked:
        if reached >= needed:
            break
        chosen.append((shape, count))
        reached += count
    return chosen


def fragments(workload: TargetWorkload, cpu_free: Amounts, card_free: Amounts, model: Amounts) -> Weighted:
    """Expected fragment of each node in milli-cards times `workload.weight`; one row of `card_free` per node."""
    total = card_free.sum(axis=1)
    if not len(workload.levels):
        return np.asarray(total * float(workload.weight))
    room = card_free[:, :, None] >= workload.levels
    usable = np.matmul(card_free[:, None, :].astype(np.float64), room.astype(np.float64))[:, 0, :]
    fits = room.sum(axis=1, dtype=np.int64)[:, workload.gpu_level] >= workload.gpu_cards
    fits &= cpu_free[:, None] >= workload.gpu_cpu_milli
    fits &= workload.gpu_allowed[model]
    fitting_by_level = fits.astype(np.float64) @ workload.gpu_count_by_level
    return np.asarray(total * float(workload.weight) - np.einsum("nl,nl->n", fitting_by_level, usable))


def descent_score(reduction: Weighted, weight: int) -> npt.NDArray[np.int64]:
    """The integer 0..100 of a placement that lowers the weighted fragment by `reduction`; 50 if it changes nothing."""
    steepness = np.clip(reduction / (weight * WHOLE_CARD), -500, 500)
    return np.floor(MAX_SCORE / (1.0 + np.exp(-steepness))).astype(np.int64)


class Descent(NamedTuple):
    """For each node the best score and the card it is for (-1: whole idle cards in order, or no card)."""

    score: npt.NDArray[np.int64]
    card: npt.NDArray[np.int64]


def descent(
    workload: TargetWorkload, shape: Shape, cpu_free: Amounts, card_free: Amounts, model: Amounts, before: Weighted
) -> Descent:
    """Score placing `shape` on each of these nodes, all of which must have room for it.

    `before` is the result of `fragments` for the nodes as they are. A share of one card is tried on every card with
    room (once per group of equally free cards, on the first of them); several cards go to the first with room.
    """
    nodes = len(card_free)
    if not shape.total_milli:
        if not shape.cpu_milli:
            return Descent(np.full(nodes, MAX_SCORE, dtype=np.int64), np.full(nodes, -1, dtype=np.int64))
        after = fragments(workload, cpu_free - shape.cpu_milli, card_free, model)
        return Descent(descent_score(before - after, workload.weight), np.full(nodes, -1, dtype=np.int64))
    room = card_free >= shape.milli
    if shape.cards > 1 or shape.milli == WHOLE_CARD:
        taken = room & (np.cumsum(room, axis=1) <= shape.cards)
        after = fragments(workload, cpu_free - shape.cpu_milli, card_free - taken * shape.milli, model)
        return Descent(descent_score(before - after, workload.weight), np.full(nodes, -1, dtype=np.int64))
    scores = share_scores(workload, shape, cpu_free, card_free, model, before)
    best = scores.argmax(axis=1)
    return Descent(scores[np.arange(nodes), best], best)


def share_scores(
    workload: TargetWorkload, shape: Shape, cpu_free: Amounts, card_free: Amounts, model: Amounts, before: Weighted
) -> npt.NDArray[np.int64]:
    """For a share of one card: the score of each card of each node, -1 where there is no room."""
    nodes, width = card_free.shape
    first_equal = (card_free[:, :, None] == card_free[:, None, :]).argmax(axis=2)
    room = card_free >= shape.milli
    node, card = np.nonzero(room & (first_equal == np.arange(width)))
    tried = card_free[node]
    tried[np.arange(len(node)), card] -= shape.milli
    after = fragments(workload, cpu_free[node] - shape.cpu_milli, tried, model[node])
    scores = np.full((nodes, width), -1, dtype=np.int64)
    scores[node, card] = descent_score(before[node] - after, workload.weight)
    return np.take_along_axis(scores, first_equal, axis=1)
