"""Which cards of one node a pod gets: the search over its containers, phases and preferences.

A pod is charged for a card by the largest sum over its phases: each init container runs alone with the sidecars
before it, then all other containers run together.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import TYPE_CHECKING, NamedTuple

from baton.engine.cards.demands import CardPlan, Demand
from baton.engine.objects import CardKind
from baton.engine.state.columns import BOTH

if TYPE_CHECKING:
    from baton.engine.cards.ledger import CardLedger

COMBINATIONS_TRIED = 64

Charge = tuple[int, int, int, int, int]
"""(card position on the node, memory MiB, share milli, slots, 1 if the card is taken exclusively)."""


class Grant(NamedTuple):
    """One card for one container, by position; `CardGrant` has the card's id instead."""

    container: str
    position: int
    kind: CardKind
    memory_mib: int
    share_milli: int


class Assignment(NamedTuple):
    charges: tuple[Charge, ...]
    grants: tuple[Grant, ...]


NOTHING = Assignment((), ())


class RowCards:
    """The cards of one row while a pod is fitted in; plain lists, because a node has few cards."""

    def __init__(
        self,
        ledger: "CardLedger",
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
        self._bandwidths = (lambda: ledger.bandwidths(row)) if ledger.links else None
        self.order = order
        self.allowed = allowed
        self.scores = scores

    def assign_repeatedly(self, plan: CardPlan, steps: int) -> list[Assignment]:
        """Up to `steps` assignments, each taken before the next is chosen; fewer when the room runs out."""
        demand = plan.demands[0]
        near = (self.numa is not None or self._bandwidths is not None) and demand.cards > 1
        if len(plan.demands) == 1 and demand.init is None and demand.exclusive and not near:
            # Empty cards do not change until they are taken, so one order is valid for all steps.
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
        peak = sum_charges([charge for _, charge in found])
        for demand in plan.demands:
            if demand.init is None:
                continue
            beside = [item for item in found if item[0].starts_before(demand)]
            chosen = self._choose(demand, sum_charges([charge for _, charge in beside]), tuple(peak))
            if chosen is None:
                return None
            alone = [(demand, self._charge(demand, position)) for position in chosen]
            grants.extend(alone)
            raise_to(peak, sum_charges([charge for _, charge in [*beside, *alone]]))
        ordered = sorted(grants, key=lambda item: item[0].place)
        return Assignment(
            tuple(as_charge(position, peak[position]) for position in sorted(peak)),
            tuple(self._grant(demand, charge) for demand, charge in ordered),
        )

    def _search(
        self, demands: Sequence[Demand], own: Mapping[int, Sequence[int]], preferred: tuple[int, ...]
    ) -> list[tuple[Demand, Charge]] | None:
        """Cards for all demands at once: hardest first, with other combinations if a later demand finds no room."""
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
                add_charge(taken, charge)
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
        return list(self._near_each_other(demand, ordered) or ordered)[: demand.cards]

    def _near_each_other(self, demand: Demand, ordered: Sequence[int]) -> Sequence[int] | None:
        """Cards of one NUMA node, if one has enough of them, and among these the cards with the fastest links."""
        if demand.cards < 2:
            return None
        pool = self._on_one_numa_node(demand, ordered)
        if self._bandwidths is not None and len(pool or ordered) > demand.cards:
            return self._best_linked(demand.cards, pool or ordered, self._bandwidths())
        return pool

    def _on_one_numa_node(self, demand: Demand, ordered: Sequence[int]) -> list[int] | None:
        """The cards of the NUMA node that has enough of them and the fewest to spare."""
        if self.numa is None:
            return None
        by_numa: dict[int, list[int]] = {}
        for position in ordered:
            by_numa.setdefault(self.numa[position], []).append(position)
        enough = [(len(group), numa) for numa, group in by_numa.items() if numa >= 0 and len(group) >= demand.cards]
        return by_numa[min(enough)[1]] if enough else None

    @staticmethod
    def _best_linked(number: int, pool: Sequence[int], bandwidths: Sequence[Sequence[int]]) -> list[int]:
        """Grow a set from each card by adding the best connected one, and return the best set; ties go to the first."""

        def grown(first: int) -> tuple[int, list[int]]:
            chosen, total = [first], 0
            while len(chosen) < number:
                gains = [(sum(bandwidths[item][held] for held in chosen), item) for item in pool if item not in chosen]
                gain, best = max(gains, key=lambda entry: entry[0])
                chosen.append(best)
                total += gain
            return total, chosen

        return max((grown(first) for first in pool), key=lambda entry: entry[0])[1]

    def _candidates(self, demand: Demand, own: Mapping[int, Sequence[int]], preferred: tuple[int, ...]) -> list[int]:
        """Cards with room, best first. `own` is the amount that other containers of the pod take in the same phase."""
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


def sum_charges(charges: Iterable[Charge]) -> dict[int, list[int]]:
    total: dict[int, list[int]] = {}
    for charge in charges:
        add_charge(total, charge)
    return total


def add_charge(total: dict[int, list[int]], charge: Charge) -> None:
    position, memory, share, slots, exclusive = charge
    have = total.get(position)
    if have is None:
        total[position] = [memory, share, slots, exclusive]
    else:
        total[position] = [have[0] + memory, have[1] + share, have[2] + slots, max(have[3], exclusive)]


def raise_to(peak: dict[int, list[int]], phase: Mapping[int, Sequence[int]]) -> None:
    for position, amounts in phase.items():
        have = peak.get(position)
        peak[position] = list(amounts) if have is None else [max(a, b) for a, b in zip(have, amounts, strict=True)]


def as_charge(position: int, amounts: Sequence[int]) -> Charge:
    return (position, amounts[0], amounts[1], amounts[2], amounts[3])
