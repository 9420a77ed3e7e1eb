"""The simulator's own books: who holds which card, how much is free, and how much of that is fragmented.

They are deliberately separate from the engine's ledger. The simulator measures use and fragmentation here, and ends the
run if a plan allocates more of a card than exists.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from baton.engine.cards.fragmentation import WHOLE_CARD, Shape, TargetWorkload, fragments, typical
from baton.engine.objects import CardGrant, Node
from baton.model.ids import CardId, GroupKey, NodeName
from baton.sim.run.translation import model_of


class DefectError(RuntimeError):
    """The engine made an impossible plan. It is a bug and not a user's mistake, so it keeps its traceback."""


class CardBooks:
    """Cards and their holders. A claim on a card is counted in milli, or in slots when cards are time-shared."""

    def __init__(self, nodes: Sequence[Node], shapes: Iterable[Shape], *, slots_per_card: int) -> None:
        self._room = slots_per_card if slots_per_card > 1 else WHOLE_CARD
        self._by_slot = slots_per_card > 1
        self._place = {
            card.id: (row, position) for row, node in enumerate(nodes) for position, card in enumerate(node.cards)
        }
        self._rows = {node.name: row for row, node in enumerate(nodes)}
        self.memory_mib = {card.id: card.memory_mib for node in nodes for card in node.cards}
        self.capacity_milli = len(self._place) * WHOLE_CARD
        self.held_milli = 0
        self._used: Counter[CardId] = Counter()
        self.holders: defaultdict[CardId, dict[GroupKey, None]] = defaultdict(dict)
        models = list(dict.fromkeys(model_of(node) for node in nodes))
        # Typical shapes without their CPU: public traces of timed jobs do not say what else a job needs.
        self._workload = TargetWorkload.of(typical(shape._replace(cpu_milli=0) for shape in shapes), models)
        self._model = np.array([models.index(model_of(node)) for node in nodes], dtype=np.int64)
        width = max((len(node.cards) for node in nodes), default=0) or 1
        self._free = np.zeros((len(nodes), width), dtype=np.int64)
        for row, node in enumerate(nodes):
            self._free[row, : len(node.cards)] = WHOLE_CARD
        self._down: dict[int, bool] = {}

    def reserve(self, grants: Iterable[CardGrant]) -> None:
        """Claim cards for pods that stay for the whole simulation."""
        for grant in grants:
            self._claim(grant.card, 1 if self._by_slot else min(grant.share_milli or WHOLE_CARD, WHOLE_CARD))

    def take(self, holder: GroupKey, cards: Iterable[CardId], milli: int) -> None:
        """Record that the holder has this part of each card."""
        for card in cards:
            self._claim(card, 1 if self._by_slot else milli)
            self.held_milli += WHOLE_CARD // self._room if self._by_slot else milli
            if self._used[card] > self._room:
                raise DefectError(f"{card} is over-committed: {holder} joins {', '.join(self.holders[card])}")
            self.holders[card][holder] = None

    def give_back(self, holder: GroupKey, cards: Iterable[CardId], milli: int) -> None:
        """Record that the holder has released the cards."""
        for card in cards:
            self._claim(card, -1 if self._by_slot else -milli)
            self.held_milli -= WHOLE_CARD // self._room if self._by_slot else milli
            self.holders[card].pop(holder, None)

    def set_down(self, node: NodeName, *, down: bool) -> None:
        """Mark a node as down; it then has no free capacity."""
        self._down[self._rows[node]] = down

    def fragmented_milli(self) -> float:
        """Free capacity, in thousandths of a card, that the typical task cannot use."""
        if not self._workload.weight:
            return 0.0
        free = self._free
        if gone := [row for row, down in self._down.items() if down]:
            free = free.copy()
            free[gone] = 0
        found = fragments(self._workload, np.zeros(len(free), dtype=np.int64), free, self._model)
        return float(found.sum()) / self._workload.weight

    def _claim(self, card: CardId, amount: int) -> None:
        self._used[card] += amount
        row, position = self._place[card]
        self._free[row, position] = WHOLE_CARD * max(0, self._room - self._used[card]) // self._room
