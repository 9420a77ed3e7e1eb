"""An attempt in a session: its placements, promises and evictions, until they are committed or discarded.

The attempt changes the state directly, so that later queries see its effects; the journal of the state is the undo log.
Discarding restores the state exactly, cards included.
"""

from typing import TYPE_CHECKING

from baton.engine.cards.choice import Assignment
from baton.engine.state.cluster import Checkpoint, ClusterState, pod_status
from baton.engine.state.jobs import Status, Task

if TYPE_CHECKING:
    from baton.engine.search.places import Placement, Places
    from baton.engine.session.decisions import Decisions


class Statement:
    """The operations of one attempt. `checkpoint` and `rollback` undo a part of it."""

    __slots__ = ("_decisions", "_mark", "_places", "_state", "allocated", "evicted", "pipelined")

    def __init__(self, state: ClusterState, places: "Places", decisions: "Decisions") -> None:
        self._state = state
        self._places = places
        self._decisions = decisions
        self._mark = self._state.checkpoint()
        self.allocated: list[tuple[Task, int, Assignment]] = []
        self.pipelined: list[tuple[Task, int]] = []
        self.evicted: list[tuple[Task, str, Task | None]] = []

    def place(self, task: Task, placement: "Placement") -> None:
        """Allocate room that is free now, or promise room that will become free."""
        row, assignment, later = placement
        if later:
            self._state.move(task, Status.PIPELINED, row, assignment)
            self.pipelined.append((task, row))
        else:
            self._state.move(task, Status.ALLOCATED, row, assignment)
            self._places.placed(task, row)
            self.allocated.append((task, row, assignment))

    def evict(self, victim: Task, reason: str, for_task: Task | None = None) -> None:
        self._state.move(victim, Status.RELEASING, victim.row)
        self._decisions.evicting[victim.key] = victim
        self.evicted.append((victim, reason, for_task))

    def spare(self, victim: Task) -> None:
        """Undo one eviction of this statement."""
        self.evicted = [item for item in self.evicted if item[0] is not victim]
        self._decisions.evicting.pop(victim.key, None)
        self._state.move(victim, pod_status(victim.pod), victim.row)

    def checkpoint(self) -> tuple[Checkpoint, int, int, int]:
        return self._state.checkpoint(), len(self.allocated), len(self.pipelined), len(self.evicted)

    def rollback(self, mark: tuple[Checkpoint, int, int, int]) -> None:
        checkpoint, allocated, pipelined, evicted = mark
        self._state.rollback(checkpoint)
        for victim, _, _ in self.evicted[evicted:]:
            self._decisions.evicting.pop(victim.key, None)
        del self.allocated[allocated:]
        del self.pipelined[pipelined:]
        del self.evicted[evicted:]

    def discard(self) -> None:
        self.rollback((self._mark, 0, 0, 0))

    def commit(self) -> None:
        """Make the attempt part of the plan. Promises last until the session ends."""
        self._decisions.accept(self)

    def keep_promises(self) -> None:
        """Bind nothing, but keep promises and evictions reserved until the session closes."""
        self._decisions.keep_promises(self)
