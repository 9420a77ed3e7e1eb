"""One cycle of decisions over the live state, in three parts: votes, places and decisions.

Actions use the parts directly. Plugins see the session as a `SessionView`.
"""

from collections.abc import Iterable

from baton.engine.cards.choice import Assignment
from baton.engine.search.places import Places
from baton.engine.search.signatures import SignatureCache
from baton.engine.session.decisions import Decisions
from baton.engine.session.nominees import Nominees
from baton.engine.session.plugin import Check, OrderKey
from baton.engine.session.rejections import Rejections
from baton.engine.session.statement import Statement
from baton.engine.session.tiers import Tiers
from baton.engine.session.turns import Turns
from baton.engine.session.votes import Votes
from baton.engine.state.cluster import ClusterState
from baton.engine.state.columns import Rows
from baton.engine.state.jobs import Job, Task
from baton.engine.state.nodes import NodeView


class Session:
    """The parts of a cycle."""

    def __init__(
        self,
        state: ClusterState,
        tiers: Tiers,
        cache: SignatureCache,
        now_s: float,
        turns: Turns | None = None,
        rejections: Rejections | None = None,
    ) -> None:
        state.settle()
        self.state = state
        self.tiers = tiers
        self.now_s = now_s
        self.turns = turns or Turns()
        self.places = Places(state, tiers, cache)
        self.nominees = Nominees(state, self.places)
        self.votes = Votes(tiers, self.nominees, rejections or Rejections(state))
        self.decisions = Decisions(state, tiers, self.votes, self.turns, now_s)
        for plugin in tiers.plugins:
            plugin.open(self)
        cache.start_session(tuple(plugin.revision(self) for plugin in tiers.plugins))

    def statement(self) -> Statement:
        """A new attempt."""
        return Statement(self.state, self.places, self.decisions)

    def close(self) -> None:
        """Release promises; bindings and evictions stay assumed."""
        self.nominees.close()
        self.decisions.give_back()
        for plugin in self.tiers.plugins:
            plugin.close(self)
        self.state.commit()

    # The rest of `SessionView`, besides the state and the time.

    @property
    def foreseeing(self) -> bool:
        return self.places.foreseeing

    def task_key(self, task: Task) -> OrderKey:
        return self.votes.task_key(task)

    def checks(self, task: Task, nodes: NodeView) -> Iterable[Check]:
        return self.places.checks(task, nodes)

    def pick_cards(self, task: Task, row: int, plane: int) -> Assignment | None:
        return self.places.pick_cards(task, row, plane)

    def copies_that_fit(self, task: Task, row: int, most: int) -> int:
        return self.places.copies_that_fit(task, row, most)

    def could_hold(self, job: Job) -> list[Rows] | None:
        return self.places.domains.could_hold(job)

    def disruptions_left(self) -> dict[tuple[str, str], int]:
        return self.decisions.disruptions_left()
