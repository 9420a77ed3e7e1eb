"""How much free card capacity a typical workload could not use: the measure of fragmentation gradient descent (FGD).

For a node with free CPU c and free shares R (one per card, in thousandths), a pod of the typical workload cannot use
the node at all when it does not fit (all free share is a fragment for it), and cannot use cards with less than it
needs when it does. The node's fragment is the mean over the workload, weighted by how common each pod is. Pods
without cards see all free share as fragment, which makes the measure value nodes that keep CPU for cards.

The score of a placement is the drop of the node's fragment, squeezed to an integer from 0 to 100. Both the coarse
integer and ties that always go the same way are essential: with exact values or random ties the result is measurably
worse.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baton.engine.cards import SHARE
from baton.engine.columns import Array, Floats
from baton.engine.demands import Needs
from baton.engine.nodes import NodeView
from baton.engine.objects import WHOLE_CARD_MILLI
from baton.engine.resources import CPU

COVERED = 0.95
"""The workload is cut to the most common pods that make up this part of it."""
SCALE_MILLI = 1000.0


class TypicalPod(NamedTuple):
    cpu_milli: int
    share_milli: int
    cards: int
    models: tuple[str, ...] = ()


class Workload:
    """Typical pods and how common they are, as arrays."""

    def __init__(self, counted: Iterable[tuple[TypicalPod, int]], *, covered: float = COVERED) -> None:
        kinds = sorted(
            counted,
            key=lambda item: (-item[1], -item[0].cpu_milli, -item[0].share_milli, -item[0].cards, item[0].models),
        )
        everything = sum(count for _, count in kinds)
        kept: list[tuple[TypicalPod, int]] = []
        seen = 0
        for pod, count in kinds:
            if seen >= covered * everything:
                break
            kept.append((pod, count))
            seen += count
        self.pods = tuple(pod for pod, _ in kept)
        with_cards = [(pod, count) for pod, count in kept if pod.cards and pod.share_milli]
        self.cpu: npt.NDArray[np.int64] = np.array([pod.cpu_milli for pod, _ in with_cards], dtype=np.int64)
        self.cards: npt.NDArray[np.int64] = np.array([pod.cards for pod, _ in with_cards], dtype=np.int64)
        self.popularity: Floats = np.array([count / max(seen, 1) for _, count in with_cards])
        self.models = [pod.models for pod, _ in with_cards]
        self.any_models = any(self.models)
        thresholds = sorted({pod.share_milli for pod, _ in with_cards})
        self.thresholds: npt.NDArray[np.int64] = np.array(thresholds, dtype=np.int64)
        self.threshold_of: npt.NDArray[np.intp] = np.array(
            [thresholds.index(pod.share_milli) for pod, _ in with_cards], dtype=np.intp
        )

    @classmethod
    def of(cls, needs: Iterable[tuple[Needs, int]], *, covered: float = COVERED) -> "Workload":
        """From the pods that a cluster has."""
        counted: dict[TypicalPod, int] = {}
        for item, count in needs:
            pod = typical(item)
            counted[pod] = counted.get(pod, 0) + count
        return cls(counted.items(), covered=covered)


def typical(needs: Needs) -> TypicalPod:
    demands = [demand for demand in needs.cards.demands if demand.init is None]
    cards = sum(demand.cards for demand in demands)
    share = max((WHOLE_CARD_MILLI if demand.exclusive else demand.share_milli for demand in demands), default=0)
    return TypicalPod(int(needs.request[CPU]), share, cards if share else 0, needs.spec.card_rules.models)


def free_shares(nodes: NodeView) -> Array:
    """Free share of every usable card, [cards, rows]."""
    free = nodes.card_capacity()[SHARE] - nodes.card_usage()[SHARE]
    usable: Array = np.where(nodes.column(nodes.ledger.kinds) != 0, np.maximum(free, 0), 0).astype(np.int64)
    return usable


def allowed_models(workload: Workload, nodes: NodeView) -> npt.NDArray[np.bool_] | None:
    """[typical pods, rows], by the model of the node's first card; None when no typical pod minds."""
    if not workload.any_models:
        return None
    ledger = nodes.ledger
    table = np.array(
        [
            [not wanted or any(part.lower() in model.lower() for part in wanted) for model in ledger.models]
            for wanted in workload.models
        ],
        dtype=np.bool_,
    ).reshape(len(workload.models), len(ledger.models))
    result: npt.NDArray[np.bool_] = table[:, nodes.column(ledger.model[0])]
    return result


class _Tally(NamedTuple):
    """Per threshold: how many cards reach it and how much free share they have. Any shape behind the first axis."""

    cards: Array
    share: Array


def _tally(free: Array, thresholds: npt.NDArray[np.int64]) -> _Tally:
    reach = free[np.newaxis] >= thresholds[:, np.newaxis, np.newaxis]
    return _Tally(reach.sum(axis=1), np.where(reach, free[np.newaxis], 0).sum(axis=1))


def fragment(
    workload: Workload, cpu: Array, total: Array, tally: _Tally, allowed: npt.NDArray[np.bool_] | None
) -> Floats:
    """The mean fragment; `cpu` is [rows], the others may have [cards, rows]."""
    if not len(workload.cpu):
        result: Floats = total.astype(np.float64)
        return result
    extra: tuple[Any, ...] = (np.newaxis,) * (total.ndim - 1)
    fits = tally.cards[workload.threshold_of] >= workload.cards[(slice(None), np.newaxis, *extra)]
    room = cpu[np.newaxis] >= workload.cpu[:, np.newaxis]
    if allowed is not None:
        room = room & allowed
    fits &= room[(slice(None), *extra)] if extra else room
    usable = np.where(fits, tally.share[workload.threshold_of], 0)
    return np.asarray(total - np.tensordot(workload.popularity, usable, axes=1), dtype=np.float64)


def squeeze(drop: Floats) -> Floats:
    """The integer score of a drop of the fragment."""
    return np.floor(100.0 / (1.0 + np.exp(-drop / SCALE_MILLI)))


def card_and_node_scores(workload: Workload, needs: Needs, nodes: NodeView) -> tuple[Floats, Floats | None]:
    """Per row the best score, and for a pod on one shared card the score of each card (-1 where it has no room)."""
    pod = typical(needs)
    free = free_shares(nodes)
    cpu = nodes.allocatable(CPU) - nodes.used(CPU)
    total = free.sum(axis=0)
    allowed = allowed_models(workload, nodes)
    tally = _tally(free, workload.thresholds)
    before = fragment(workload, cpu, total, tally, allowed)
    cpu_after = cpu - pod.cpu_milli
    if not pod.cards:
        if not pod.cpu_milli:
            return np.full(nodes.size, 100.0), None
        return squeeze(before - fragment(workload, cpu_after, total, tally, allowed)), None
    if pod.cards == 1 and pod.share_milli < WHOLE_CARD_MILLI:
        return _shared_card(workload, pod, free, before, cpu_after, total, tally, allowed)
    taken = _first_fitting(free, pod)
    left = free - taken
    after = fragment(workload, cpu_after, left.sum(axis=0), _tally(left, workload.thresholds), allowed)
    return squeeze(before - after), None


def _shared_card(
    workload: Workload,
    pod: TypicalPod,
    free: Array,
    before: Floats,
    cpu_after: Array,
    total: Array,
    tally: _Tally,
    allowed: npt.NDArray[np.bool_] | None,
) -> tuple[Floats, Floats]:
    """Try every card: only its own contribution to each threshold changes."""
    room = free >= pod.share_milli
    left = np.maximum(free - pod.share_milli, 0)
    thresholds = workload.thresholds[:, np.newaxis, np.newaxis]
    reached, reaches = free[np.newaxis] >= thresholds, left[np.newaxis] >= thresholds
    cards = tally.cards[:, np.newaxis] - reached + reaches
    share = tally.share[:, np.newaxis] - np.where(reached, free, 0) + np.where(reaches, left, 0)
    totals = np.broadcast_to(total - pod.share_milli, free.shape)
    after = fragment(workload, cpu_after, totals, _Tally(cards, share), allowed)
    by_card: Floats = np.where(room, squeeze(before - after), -1.0)
    return by_card.max(axis=0), by_card


def _first_fitting(free: Array, pod: TypicalPod) -> Array:
    """What the pod takes of each card when it goes to the first ones with room."""
    room = free >= pod.share_milli
    order = np.cumsum(room, axis=0)
    return np.where(room & (order <= pod.cards), pod.share_milli, 0)
