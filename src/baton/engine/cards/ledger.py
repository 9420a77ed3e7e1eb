"""The card ledger: which pod holds how much of which card, as a transaction log over arrays.

Every change is a move of one holder from one holding to another (`None` is "holds nothing"). The log keeps both ends of
a move, so a checkpoint is a position in the log and a rollback plays it backwards: a discarded gang leaves no trace,
whatever mixture of charges, promises, evictions and releases it was made of.

A holding has a stage: HELD counts now and later, LEAVING (being evicted) only now, PROMISED (pipelined) only later.
Usage is kept for both planes, see `columns`. `choice` decides which cards a pod gets.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from baton.engine.cards.choice import NOTHING, Assignment, Charge, Grant, RowCards, as_charge, raise_to, sum_charges
from baton.engine.cards.demands import CardPlan, Demand
from baton.engine.objects import KIND_BIT, WHOLE_CARD_MILLI, Card, CardGrant, CardKind
from baton.engine.state.columns import FUTURE, Array, Columns, Rows
from baton.engine.state.resources import CARD_MILLI, SLOTS, VGPU_CORES, VGPU_MEMORY, VGPU_NUMBER
from baton.model.ids import CardId, PodKey

MEMORY, SHARE, SLOT, EXCLUSIVE, CLAIMS = range(5)


class Stage(IntEnum):
    HELD = 0
    LEAVING = 1
    PROMISED = 2


_PLANES = (slice(0, 2), slice(0, 1), slice(1, 2))
"""By stage."""


class Holding(NamedTuple):
    row: int
    stage: Stage
    assignment: Assignment


Move = tuple[PodKey, Holding | None, Holding | None]


class CardLedger(Columns):
    """Arrays over [cards of a node] x [nodes]; `usage` adds planes and quantities in front."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "capacity",
        "usage",
        "physical_mib",
        "kinds",
        "model",
        "mode",
        "compute",
        "fixed",
        "number",
        "numa",
        "load",
    )

    def __init__(self, *, memory_overcommit: float = 1.0, share_overcommit: float = 1.0) -> None:
        self.memory_overcommit = memory_overcommit
        self.share_overcommit = share_overcommit
        self.cards_per_node = 1
        self.capacity: npt.NDArray[np.int32] = np.zeros((3, 1, 0), dtype=np.int32)
        self.usage: npt.NDArray[np.int32] = np.zeros((2, 5, 1, 0), dtype=np.int32)
        self.physical_mib: npt.NDArray[np.int32] = np.zeros((1, 0), dtype=np.int32)
        self.kinds: npt.NDArray[np.int32] = np.zeros((1, 0), dtype=np.int32)
        self.model: npt.NDArray[np.int32] = np.zeros((1, 0), dtype=np.int32)
        self.mode: npt.NDArray[np.int32] = np.zeros((1, 0), dtype=np.int32)
        self.compute: npt.NDArray[np.int32] = np.zeros((1, 0), dtype=np.int32)
        self.fixed: npt.NDArray[np.bool_] = np.zeros((1, 0), dtype=np.bool_)
        self.number: npt.NDArray[np.int32] = np.zeros((1, 0), dtype=np.int32)
        self.numa: npt.NDArray[np.int32] = np.zeros((1, 0), dtype=np.int32)
        self.any_numa = False
        self.load: npt.NDArray[np.float32] = np.zeros((4, 1, 0), dtype=np.float32)
        self.any_fixed = False
        self.links: dict[int, dict[CardId, int]] = {}
        """By the number of a card that has links: bandwidth class to other cards."""
        self.models: list[str] = [""]
        self._model_of: dict[str, int] = {"": 0}
        self.modes: list[str] = [""]
        self._mode_of: dict[str, int] = {"": 0}
        self.numbers: dict[CardId, int] = {}
        self.ids: list[CardId] = [CardId("")]
        self.holders: dict[PodKey, Holding] = {}
        self._log: list[Move] = []
        self._by_card = self.usage.transpose(3, 2, 0, 1)
        """A view of `usage` with the card first: two plain indices give [planes, quantities]."""
        self._deltas: dict[tuple[int, int, int, int], npt.NDArray[np.int32]] = {}

    def set_cards(self, row: int, cards: tuple[Card, ...]) -> None:
        """Write the cards' properties. The row must have no holders: the caller removes them and puts them back."""
        if len(cards) > self.cards_per_node:
            self._add_positions(len(cards))
        self.usage[..., row] = 0
        self.kinds[:, row] = 0
        self.capacity[..., row] = 0
        self.number[:, row] = 0
        for position, card in enumerate(cards):
            self.physical_mib[position, row] = card.memory_mib
            self.capacity[:, position, row] = (
                int(card.memory_mib * self.memory_overcommit),
                int(card.share_milli * self.share_overcommit),
                card.slots,
            )
            bits = sum(KIND_BIT[kind] for kind in card.serves)
            self.kinds[position, row] = bits if card.healthy else 0
            self.model[position, row] = _intern(card.model, self.models, self._model_of)
            self.mode[position, row] = _intern(card.mode, self.modes, self._mode_of)
            self.compute[position, row] = card.compute_capability
            self.fixed[position, row] = card.fixed
            self.any_fixed = self.any_fixed or card.fixed
            self.number[position, row] = self._number(card.id)
            self.numa[position, row] = card.numa
            self.any_numa = self.any_numa or card.numa >= 0
            if card.links:
                self.links[self._number(card.id)] = dict(card.links)
            else:
                self.links.pop(self._number(card.id), None)
            self.load[:, position, row] = (
                card.utilisation_percent,
                card.memory_used_percent,
                card.temperature_c,
                card.power_percent,
            )

    def totals(self, row: int) -> list[tuple[str, int]]:
        """What the row's healthy cards add to the cluster, by the resource names that queues use."""
        healthy = self.kinds[:, row] != 0
        if not healthy.any():
            return []
        memory, share, slots = (int(self.capacity[quantity, healthy, row].sum()) for quantity in range(3))
        return [
            (VGPU_NUMBER, slots),
            (VGPU_MEMORY, memory),
            (VGPU_CORES, share // 10),
            (SLOTS, slots),
            (CARD_MILLI, share),
        ]

    def checkpoint(self) -> int:
        return len(self._log)

    def rollback(self, checkpoint: int) -> None:
        """Undo every move since the checkpoint, latest first."""
        while len(self._log) > checkpoint:
            key, before, after = self._log.pop()
            self._replace(key, after, before)

    def commit(self) -> None:
        """Clear the log; the moves in it can no longer be undone."""
        self._log.clear()

    def charge(self, key: PodKey, row: int, assignment: Assignment) -> None:
        self._move(key, Holding(row, Stage.HELD, assignment))

    def promise(self, key: PodKey, row: int, assignment: Assignment) -> None:
        self._move(key, Holding(row, Stage.PROMISED, assignment))

    def leave(self, key: PodKey) -> None:
        """The holder is being evicted: its cards are free later, not now."""
        self._restage(key, Stage.LEAVING)

    def stay(self, key: PodKey) -> None:
        self._restage(key, Stage.HELD)

    def release(self, key: PodKey) -> None:
        self._move(key, None)

    def _restage(self, key: PodKey, stage: Stage) -> None:
        holding = self.holders.get(key)
        if holding is not None and holding.stage is not stage:
            self._move(key, holding._replace(stage=stage))

    def _move(self, key: PodKey, after: Holding | None) -> None:
        before = self.holders.get(key)
        if before is None and after is None:
            return
        self._replace(key, before, after)
        self._log.append((key, before, after))

    def _replace(self, key: PodKey, before: Holding | None, after: Holding | None) -> None:
        if before is not None:
            self._add(before, -1)
        if after is None:
            self.holders.pop(key, None)
        else:
            self._add(after, 1)
            self.holders[key] = after

    def _add(self, holding: Holding, sign: int) -> None:
        planes = _PLANES[holding.stage]
        by_card = self._by_card
        for position, memory, share, slots, exclusive in holding.assignment.charges:
            amounts = (memory, share, slots, exclusive)
            delta = self._deltas.get(amounts)
            if delta is None:
                delta = self._deltas[amounts] = np.array([*amounts, 1], dtype=np.int32)
            of_card = by_card[holding.row, position][planes]
            if sign > 0:
                of_card += delta
            else:
                of_card -= delta

    def fits(
        self, demand: Demand, usage: Array, capacity: Array, physical_mib: Array, kinds: Array, fixed: Array | None
    ) -> npt.NDArray[np.bool_]:
        """Which cards (arrays of any shape) have room for one unit of the demand."""
        served: npt.NDArray[np.bool_] = (kinds & demand.kind_bit) != 0
        need = demand.memory_need(physical_mib)
        if demand.exclusive:
            served &= usage[CLAIMS] == 0
            if need is not None:
                served &= capacity[MEMORY] >= need
            return served
        served &= usage[EXCLUSIVE] == 0
        if need is not None:
            served &= capacity[MEMORY] - usage[MEMORY] >= need
        if demand.share_milli:
            served &= capacity[SHARE] - usage[SHARE] >= demand.share_milli
        elif demand.kind is CardKind.VGPU:
            served &= usage[SHARE] < capacity[SHARE]
        if demand.slots:
            served &= capacity[SLOT] > usage[SLOT]
        if fixed is not None:
            served &= ~fixed | (usage[CLAIMS] == 0)
        return served

    def pick(
        self,
        row: int,
        plan: CardPlan,
        plane: int,
        *,
        order: str = "",
        allowed: Sequence[bool] | None = None,
        scores: Sequence[float] | None = None,
    ) -> Assignment | None:
        """Concrete cards of the row for every container of the plan, or None when they do not fit."""
        if not plan.demands:
            return NOTHING
        cards = RowCards(self, row, plane, order, allowed, scores)
        return cards.assign(plan)

    def foresee(
        self, row: int, plan: CardPlan, steps: int, *, order: str = "", allowed: Sequence[bool] | None = None
    ) -> tuple[list[Assignment], Array]:
        """What `pick` would return `steps` times in a row if each result were charged, and the usage after each.

        The usage is [quantities, cards, states]; state 0 is the present one. The ledger itself does not change.
        """
        present = self.usage[FUTURE, :, :, row]
        if not plan.demands or not steps:
            found = [NOTHING] * steps if not plan.demands else []
            return found, np.repeat(present[:, :, np.newaxis], len(found) + 1, axis=2)
        cards = RowCards(self, row, FUTURE, order, allowed, None)
        found = cards.assign_repeatedly(plan, steps)
        change = np.zeros((5, self.cards_per_node, len(found) + 1), dtype=np.int32)
        charged = [(step, *charge, 1) for step, item in enumerate(found, start=1) for charge in item.charges]
        if charged:
            steps_, positions, *amounts = np.array(charged, dtype=np.intp).T
            change[:, positions, steps_] = amounts
        return found, present[:, :, np.newaxis] + change.cumsum(axis=2, dtype=np.int32)

    def content(self, row: int) -> bytes:
        """Equal for rows on which `foresee` returns the same, as long as no rule excludes a card."""
        parts: list[Array] = [
            self.usage[FUTURE, :, :, row],
            self.capacity[:, :, row],
            self.physical_mib[:, row],
            self.kinds[:, row],
        ]
        if self.any_fixed:
            parts.append(self.fixed[:, row])
        if self.any_numa:
            parts.append(self.numa[:, row])
        if self.links:
            parts.append(np.array(self.bandwidths(row)))
        return b"".join(part.tobytes() for part in parts)

    def bandwidths(self, row: int) -> list[list[int]]:
        """The link class of each pair of cards of the row: the better of what the two cards report; 0 for no link."""
        numbers: list[int] = self.number[:, row].tolist()
        known = [self.links.get(number, {}) for number in numbers]
        return [
            [max(mine.get(self.ids[there], 0), known[at].get(self.ids[here], 0)) for at, there in enumerate(numbers)]
            for mine, here in zip(known, numbers, strict=True)
        ]

    def assignment_of(self, row: int, grants: Iterable[CardGrant], plan: CardPlan) -> Assignment:
        """Rebuild a running pod's holding from the grants it was bound with; cards that are gone are skipped."""
        position_of = {
            self.ids[number]: position for position, number in enumerate(self.number[:, row].tolist()) if number
        }
        placed: list[Grant] = []
        for grant in grants:
            position = position_of.get(grant.card)
            if position is not None:
                placed.append(Grant(grant.container, position, grant.kind, grant.memory_mib, grant.share_milli))
        return Assignment(self._charges_of(row, placed, plan), tuple(placed))

    def _charges_of(self, row: int, grants: Sequence[Grant], plan: CardPlan) -> tuple[Charge, ...]:
        """The charges for these grants, by the phases of their containers."""
        by_container: dict[str, list[Charge]] = {}
        for grant in grants:
            if grant.kind is CardKind.WHOLE or self.fixed[grant.position, row]:
                memory, share, slots = self.capacity[:, grant.position, row].tolist()
                charge = (grant.position, memory, share, slots, 1)
            else:
                slots = 1 if grant.kind in (CardKind.SLOT, CardKind.VGPU) else 0
                exclusive = int(grant.share_milli >= WHOLE_CARD_MILLI)
                charge = (grant.position, grant.memory_mib, grant.share_milli, slots, exclusive)
            by_container.setdefault(grant.container, []).append(charge)
        demands = {demand.container: demand for demand in plan.demands}
        main = [
            (demands.get(container), charge)
            for container, charges in by_container.items()
            for charge in charges
            if (known := demands.get(container)) is None or known.init is None
        ]
        peak = sum_charges([charge for _, charge in main])
        for container, charges in by_container.items():
            demand = demands.get(container)
            if demand is not None and demand.init is not None:
                beside = [charge for other, charge in main if other is not None and other.starts_before(demand)]
                raise_to(peak, sum_charges([*beside, *charges]))
        return tuple(as_charge(position, peak[position]) for position in sorted(peak))

    @staticmethod
    def card_grants(cards: tuple[Card, ...], assignment: Assignment) -> tuple[CardGrant, ...]:
        """The grants by card id; `cards` are the cards of the node."""
        return tuple(
            [
                CardGrant(container, cards[position].id, kind, memory_mib, share_milli)
                for container, position, kind, memory_mib, share_milli in assignment.grants
            ]
        )

    def grow(self, size: int) -> None:
        super().grow(size)
        self._by_card = self.usage.transpose(3, 2, 0, 1)

    def permute(self, order: Rows, size: int) -> None:
        super().permute(order, size)
        self._by_card = self.usage.transpose(3, 2, 0, 1)
        moved = {int(old): new for new, old in enumerate(order)}
        self.holders = {
            key: holding._replace(row=moved[holding.row])
            for key, holding in self.holders.items()
            if holding.row in moved
        }

    def _number(self, card: CardId) -> int:
        number = self.numbers.get(card)
        if number is None:
            number = self.numbers[card] = len(self.ids)
            self.ids.append(card)
        return number

    def _add_positions(self, number: int) -> None:
        extra = number - self.cards_per_node
        for name in self.COLUMNS:
            array = getattr(self, name)
            pad = [(0, 0)] * array.ndim
            pad[-2] = (0, extra)
            setattr(self, name, np.pad(array, pad))
        self.cards_per_node = number
        self._by_card = self.usage.transpose(3, 2, 0, 1)


def _intern(name: str, names: list[str], number_of: dict[str, int]) -> int:
    number = number_of.get(name)
    if number is None:
        number = number_of[name] = len(names)
        names.append(name)
    return number
