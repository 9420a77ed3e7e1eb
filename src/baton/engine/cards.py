"""The card ledger: who holds how much of which card, as a transaction log over arrays.

Every change is a move of one holder from one holding to another (`None` is "holds nothing"). A move is logged with
both ends, so a checkpoint is a position in the log and a rollback plays it backwards: a discarded gang leaves no trace,
whatever mixture of charges, promises, evictions and releases it was made of.

A holding has a stage: HELD counts now and later, LEAVING (being evicted) only now, PROMISED (pipelined) only later.
Usage is kept for both planes, see `columns`. What a pod is charged for a card is the largest sum over its phases: each
init container runs alone with the sidecars before it, then all other containers run together.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import combinations, islice
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from baton.engine.columns import BOTH, FUTURE, Array, Columns, Rows
from baton.engine.demands import CardPlan, Demand
from baton.engine.objects import KIND_BIT, WHOLE_CARD_MILLI, Card, CardGrant, CardId, CardKind, PodKey
from baton.engine.resources import CARD_MILLI, SLOTS, VGPU_CORES, VGPU_MEMORY, VGPU_NUMBER

MEMORY, SHARE, SLOT, EXCLUSIVE, CLAIMS = range(5)
COMBINATIONS_TRIED = 64

Charge = tuple[int, int, int, int, int]
"""(card position on the node, memory MiB, share milli, slots, 1 if nobody else may join)."""


class Stage(IntEnum):
    HELD = 0
    LEAVING = 1
    PROMISED = 2


_PLANES = (slice(0, 2), slice(0, 1), slice(1, 2))
"""By stage."""


class Grant(NamedTuple):
    """One card for one container, by position; `CardGrant` is the same with the card's id."""

    container: str
    position: int
    kind: CardKind
    memory_mib: int
    share_milli: int


class Assignment(NamedTuple):
    charges: tuple[Charge, ...]
    grants: tuple[Grant, ...]


NOTHING = Assignment((), ())


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
        self.models: list[str] = [""]
        self._model_of: dict[str, int] = {"": 0}
        self.modes: list[str] = [""]
        self._mode_of: dict[str, int] = {"": 0}
        self.numbers: dict[CardId, int] = {}
        self.ids: list[CardId] = [CardId("")]
        self.holders: dict[PodKey, Holding] = {}
        self._log: list[Move] = []
        self._by_card = self.usage.transpose(3, 2, 0, 1)
        """The same numbers, card first: a view of [planes, quantities] by two plain indices."""
        self._deltas: dict[tuple[int, int, int, int], npt.NDArray[np.int32]] = {}

    def set_cards(self, row: int, cards: tuple[Card, ...]) -> None:
        """Write what the cards are. The row must be held by nobody: the caller lifts holders and puts them back."""
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
            self.load[:, position, row] = (
                card.utilisation_percent,
                card.memory_used_percent,
                card.temperature_c,
                card.power_percent,
            )

    def totals(self, row: int) -> list[tuple[str, int]]:
        """What the row's healthy cards add to the cluster, by the resource names that queues are given in."""
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
        """Undo every move since the checkpoint, the latest first."""
        while len(self._log) > checkpoint:
            key, before, after = self._log.pop()
            self._replace(key, after, before)

    def commit(self) -> None:
        """Forget the log: what has been done stays."""
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
        """Which cards (any shape) have room for one unit of the demand."""
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
        """Concrete cards of the row for every container of the plan, or None when there is no way."""
        if not plan.demands:
            return NOTHING
        cards = _RowCards(self, row, plane, order, allowed, scores)
        return cards.assign(plan)

    def foresee(
        self, row: int, plan: CardPlan, steps: int, *, order: str = "", allowed: Sequence[bool] | None = None
    ) -> tuple[list[Assignment], Array]:
        """What `pick` would answer `steps` times in a row if each answer were charged, and the usage after each.

        The usage is [quantities, cards, states]; state 0 is the present one. Nothing is changed.
        """
        present = self.usage[FUTURE, :, :, row]
        if not plan.demands or not steps:
            found = [NOTHING] * steps if not plan.demands else []
            return found, np.repeat(present[:, :, np.newaxis], len(found) + 1, axis=2)
        cards = _RowCards(self, row, FUTURE, order, allowed, None)
        found = cards.assign_repeatedly(plan, steps)
        change = np.zeros((5, self.cards_per_node, len(found) + 1), dtype=np.int32)
        charged = [(step, *charge, 1) for step, item in enumerate(found, start=1) for charge in item.charges]
        if charged:
            steps_, positions, *amounts = np.array(charged, dtype=np.intp).T
            change[:, positions, steps_] = amounts
        return found, present[:, :, np.newaxis] + change.cumsum(axis=2, dtype=np.int32)

    def content(self, row: int) -> bytes:
        """Equal for rows on which `foresee` answers alike, where no card is excluded by a rule."""
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
        return b"".join(part.tobytes() for part in parts)

    def assignment_of(self, row: int, grants: Iterable[CardGrant], plan: CardPlan) -> Assignment:
        """Rebuild what a running pod holds from the grants it was bound with; cards that are gone are skipped."""
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
        """Charges from grants, by the phases of the containers they belong to."""
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
        peak = _sum_charges([charge for _, charge in main])
        for container, charges in by_container.items():
            demand = demands.get(container)
            if demand is not None and demand.init is not None:
                beside = [charge for other, charge in main if other is not None and other.starts_before(demand)]
                _raise_to(peak, _sum_charges([*beside, *charges]))
        return tuple(_as_charge(position, peak[position]) for position in sorted(peak))

    @staticmethod
    def card_grants(cards: tuple[Card, ...], assignment: Assignment) -> tuple[CardGrant, ...]:
        """The grants by card id; `cards` are the node's."""
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


class _RowCards:
    """The cards of one row while one pod is being fitted in; plain lists, because a node has few cards."""

    def __init__(
        self,
        ledger: CardLedger,
        row: int,
        plane: int,
        order: str,
        allowed: Sequence[bool] | None,
        scores: Sequence[float] | None,
    ) -> None:
        planes = ledger.usage[:, :, :, row]
        usage: list[list[int]] = (planes.max(axis=0) if plane == BOTH else planes[plane]).tolist()
        self.memory, self.share, self.slots, self.exclusive, self.claims = usage
        capacity: list[list[int]] = ledger.capacity[:, :, row].tolist()
        self.memory_cap, self.share_cap, self.slots_cap = capacity
        self.physical: list[int] = ledger.physical_mib[:, row].tolist()
        self.kinds: list[int] = ledger.kinds[:, row].tolist()
        self.fixed: list[bool] | None = ledger.fixed[:, row].tolist() if ledger.any_fixed else None
        self.numa: list[int] | None = ledger.numa[:, row].tolist() if ledger.any_numa else None
        self.order = order
        self.allowed = allowed
        self.scores = scores

    def assign_repeatedly(self, plan: CardPlan, steps: int) -> list[Assignment]:
        """One assignment after the other, each taken before the next, until there is no room or `steps` are found."""
        demand = plan.demands[0]
        near = self.numa is not None and demand.cards > 1
        if len(plan.demands) == 1 and demand.init is None and demand.exclusive and not near:
            # Empty cards stay as they are until taken, so their order holds for all steps.
            ordered = self._candidates(demand, {}, ())
            number = min(steps, len(ordered) // demand.cards)
            return [
                self._granted(demand, ordered[step * demand.cards : (step + 1) * demand.cards])
                for step in range(number)
            ]
        found: list[Assignment] = []
        while len(found) < steps:
            assignment = self.assign(plan)
            if assignment is None:
                break
            self.take(assignment)
            found.append(assignment)
        return found

    def take(self, assignment: Assignment) -> None:
        for position, memory, share, slots, exclusive in assignment.charges:
            self.memory[position] += memory
            self.share[position] += share
            self.slots[position] += slots
            self.exclusive[position] += exclusive
            self.claims[position] += 1

    def assign(self, plan: CardPlan) -> Assignment | None:
        if len(plan.demands) == 1 and plan.demands[0].init is None:
            chosen = self._choose(plan.demands[0], {}, ())
            return None if chosen is None else self._granted(plan.demands[0], chosen)
        return self._assign_phases(plan)

    def _granted(self, demand: Demand, positions: Sequence[int]) -> Assignment:
        charges = tuple([self._charge(demand, position) for position in positions])
        return Assignment(charges, tuple([self._grant(demand, charge) for charge in charges]))

    def _assign_phases(self, plan: CardPlan) -> Assignment | None:
        main = [demand for demand in plan.demands if demand.init is None]
        found = self._search(main, {}, ())
        if found is None:
            return None
        grants = list(found)
        peak = _sum_charges([charge for _, charge in found])
        for demand in plan.demands:
            if demand.init is None:
                continue
            beside = [item for item in found if item[0].starts_before(demand)]
            chosen = self._choose(demand, _sum_charges([charge for _, charge in beside]), tuple(peak))
            if chosen is None:
                return None
            alone = [(demand, self._charge(demand, position)) for position in chosen]
            grants.extend(alone)
            _raise_to(peak, _sum_charges([charge for _, charge in [*beside, *alone]]))
        ordered = sorted(grants, key=lambda item: item[0].place)
        return Assignment(
            tuple(_as_charge(position, peak[position]) for position in sorted(peak)),
            tuple(self._grant(demand, charge) for demand, charge in ordered),
        )

    def _search(
        self, demands: Sequence[Demand], own: Mapping[int, Sequence[int]], preferred: tuple[int, ...]
    ) -> list[tuple[Demand, Charge]] | None:
        """Cards for all demands at once: hardest demand first, other combinations when a later one finds no room."""
        if not demands:
            return []
        ordered = sorted(demands, key=lambda demand: demand.ease)
        head, rest = ordered[0], ordered[1:]
        candidates = self._candidates(head, own, preferred)
        if len(candidates) < head.cards:
            return None
        for chosen in islice(combinations(candidates, head.cards), COMBINATIONS_TRIED if rest else 1):
            mine = [(head, self._charge(head, position)) for position in chosen]
            taken = {position: list(amounts) for position, amounts in own.items()}
            for _, charge in mine:
                _add_charge(taken, charge)
            others = self._search(rest, taken, preferred)
            if others is not None:
                return mine + others
        return None

    def _choose(self, demand: Demand, own: Mapping[int, Sequence[int]], preferred: tuple[int, ...]) -> list[int] | None:
        fitting = self._fitting(demand, own)
        if len(fitting) < demand.cards:
            return None
        if demand.cards == 1 and not preferred:
            return [min(fitting, key=self._rank)] if len(fitting) > 1 else fitting
        ordered = self._ordered(fitting, preferred)
        return (self._near_each_other(demand, ordered) or ordered)[: demand.cards]

    def _near_each_other(self, demand: Demand, ordered: Sequence[int]) -> list[int] | None:
        """The cards of the NUMA node that has enough of them with the fewest to spare."""
        if self.numa is None or demand.cards < 2:
            return None
        by_numa: dict[int, list[int]] = {}
        for position in ordered:
            by_numa.setdefault(self.numa[position], []).append(position)
        enough = [(len(group), numa) for numa, group in by_numa.items() if numa >= 0 and len(group) >= demand.cards]
        return by_numa[min(enough)[1]] if enough else None

    def _candidates(self, demand: Demand, own: Mapping[int, Sequence[int]], preferred: tuple[int, ...]) -> list[int]:
        """Cards with room, best first. `own` is what other containers of the pod take in the same phase."""
        return self._ordered(self._fitting(demand, own), preferred)

    def _fitting(self, demand: Demand, own: Mapping[int, Sequence[int]]) -> list[int]:
        bit, claims = demand.kind_bit, self.claims
        served = [position for position, kinds in enumerate(self.kinds) if kinds & bit]
        if self.allowed is not None:
            served = [position for position in served if self.allowed[position]]
        if demand.exclusive and not own:
            served = [position for position in served if not claims[position]]
            if not demand.memory_mib:
                return served
        return [position for position in served if self._has_room(demand, position, own.get(position))]

    def _ordered(self, fitting: list[int], preferred: tuple[int, ...]) -> list[int]:
        if len(fitting) > 1:
            fitting.sort(key=self._rank)
            if preferred:
                fitting.sort(key=lambda position: position not in preferred)
        return fitting

    def _rank(self, position: int) -> tuple[float, ...]:
        size = self.memory_cap[position] if self.fixed and self.fixed[position] else 0
        if self.scores is not None:
            return (size, -self.scores[position], position)
        if self.order == "binpack":
            return (size, -self.memory[position], -self.share[position], -self.claims[position], position)
        if self.order == "spread":
            return (size, self.claims[position], self.memory[position], self.share[position], position)
        return (size, position)

    def _has_room(self, demand: Demand, position: int, own: Sequence[int] | None) -> bool:
        mine_memory, mine_share, mine_slots, mine_exclusive = own if own is not None else (0, 0, 0, 0)
        need = demand.memory_on(self.physical[position])
        if demand.exclusive:
            return self.claims[position] == 0 and own is None and self.memory_cap[position] >= need
        if self.exclusive[position] or mine_exclusive:
            return False
        if self.fixed and self.fixed[position] and (self.claims[position] or own is not None):
            return False
        if self.memory[position] + mine_memory + need > self.memory_cap[position]:
            return False
        share = self.share[position] + mine_share
        if demand.share_milli:
            if share + demand.share_milli > self.share_cap[position]:
                return False
        elif demand.kind is CardKind.VGPU and share >= self.share_cap[position]:
            return False
        return not demand.slots or self.slots[position] + mine_slots < self.slots_cap[position]

    def _charge(self, demand: Demand, position: int) -> Charge:
        if demand.kind is CardKind.WHOLE or (self.fixed and self.fixed[position]):
            return (position, self.memory_cap[position], self.share_cap[position], self.slots_cap[position], 1)
        memory = demand.memory_on(self.physical[position])
        return (position, memory, demand.share_milli, demand.slots, int(demand.exclusive))

    def _grant(self, demand: Demand, charge: Charge) -> Grant:
        memory = charge[1] if demand.kind is CardKind.WHOLE else demand.memory_on(self.physical[charge[0]])
        share = charge[2] if demand.kind is CardKind.WHOLE else demand.share_milli
        return Grant(demand.container, charge[0], demand.kind, memory, share)


def _sum_charges(charges: Iterable[Charge]) -> dict[int, list[int]]:
    total: dict[int, list[int]] = {}
    for charge in charges:
        _add_charge(total, charge)
    return total


def _add_charge(total: dict[int, list[int]], charge: Charge) -> None:
    position, memory, share, slots, exclusive = charge
    have = total.get(position)
    if have is None:
        total[position] = [memory, share, slots, exclusive]
    else:
        total[position] = [have[0] + memory, have[1] + share, have[2] + slots, max(have[3], exclusive)]


def _raise_to(peak: dict[int, list[int]], phase: Mapping[int, Sequence[int]]) -> None:
    for position, amounts in phase.items():
        have = peak.get(position)
        peak[position] = list(amounts) if have is None else [max(a, b) for a, b in zip(have, amounts, strict=True)]


def _as_charge(position: int, amounts: Sequence[int]) -> Charge:
    return (position, amounts[0], amounts[1], amounts[2], amounts[3])


def _intern(name: str, names: list[str], number_of: dict[str, int]) -> int:
    number = number_of.get(name)
    if number is None:
        number = number_of[name] = len(names)
        names.append(name)
    return number
