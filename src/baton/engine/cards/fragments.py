"""Applies the measure in `fragmentation` to the engine's nodes and tasks.

Models match as in a pod's card rules: any part of the name, in any case. The model of the node's first card counts.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from baton.engine.cards.demands import Needs
from baton.engine.cards.fragmentation import (
    TYPICAL_SHARE,
    Amounts,
    Shape,
    TargetWorkload,
    descent,
    fragments,
    share_scores,
    typical,
)
from baton.engine.cards.ledger import SHARE
from baton.engine.objects import WHOLE_CARD_MILLI
from baton.engine.state.columns import Floats
from baton.engine.state.nodes import NodeView
from baton.engine.state.resources import CPU


class Workload:
    """Typical shapes, and their arrays for the models that the cluster has."""

    def __init__(self, counted: Iterable[tuple[Shape, int]], *, covered: float = TYPICAL_SHARE) -> None:
        self.counted = typical(dict(counted), covered)
        self._known: tuple[str, ...] | None = None
        self._target = TargetWorkload.of([], ())

    @classmethod
    def of(cls, needs: Iterable[tuple[Needs, int]], *, covered: float = TYPICAL_SHARE) -> "Workload":
        """The workload of these pods."""
        counted: dict[Shape, int] = {}
        for item, count in needs:
            shape = shape_of(item)
            counted[shape] = counted.get(shape, 0) + count
        return cls(counted.items(), covered=covered)

    def target(self, models: Sequence[str]) -> TargetWorkload:
        """The arrays, rebuilt when the list of models has changed."""
        known = tuple(models)
        if known != self._known:
            self._target = TargetWorkload.of(self.counted, known, accepts=_accepts)
            self._known = known
        return self._target


def shape_of(needs: Needs) -> Shape:
    demands = [demand for demand in needs.cards.demands if demand.init is None]
    cards = sum(demand.cards for demand in demands)
    share = max((WHOLE_CARD_MILLI if demand.exclusive else demand.share_milli for demand in demands), default=0)
    return Shape(int(needs.request[CPU]), share, cards if share else 0, needs.spec.card_rules.models)


def card_and_node_scores(workload: Workload, needs: Needs, nodes: NodeView) -> tuple[Floats, Floats | None]:
    """The best score of each row and, for a pod on one shared card, the score of each card (-1 without room)."""
    shape = shape_of(needs)
    target = workload.target(nodes.ledger.models)
    free = _free_shares(nodes)
    cpu = (nodes.allocatable(CPU) - nodes.used(CPU)).astype(np.int64)
    model = nodes.column(nodes.ledger.model[0]).astype(np.int64)
    before = fragments(target, cpu, free, model)
    if shape.cards == 1 and shape.milli < WHOLE_CARD_MILLI:
        by_card = share_scores(target, shape, cpu, free, model, before).T.astype(np.float64)
        return by_card.max(axis=0), by_card
    return descent(target, shape, cpu, free, model, before).score.astype(np.float64), None


def _free_shares(nodes: NodeView) -> Amounts:
    """Free share of every usable card, one row per node."""
    free = nodes.card_capacity()[SHARE] - nodes.card_usage()[SHARE]
    usable = np.where(nodes.column(nodes.ledger.kinds) != 0, np.maximum(free, 0), 0)
    return np.ascontiguousarray(usable.T, dtype=np.int64)


def _accepts(parts: Sequence[str], model: str) -> bool:
    return any(part.lower() in model.lower() for part in parts)
