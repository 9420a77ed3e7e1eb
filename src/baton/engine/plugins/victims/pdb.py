"""Evictions respect pod disruption budgets: a victim is only evicted while its budget allows it.

A pod that several budgets cover is never evicted, because the API server refuses such evictions.
"""

from collections.abc import Sequence

from baton.engine.framework import Budget, NoArguments, Plugin, SessionView, Task


class PdbPlugin(Plugin[NoArguments]):
    name = "pdb"

    def open(self, session: SessionView) -> None:
        self._by_namespace: dict[str, list[Budget]] = {}
        for budget in session.state.budgets.values():
            self._by_namespace.setdefault(budget.namespace, []).append(budget)
        self._session = session

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task]:
        return self._allowed(victims)

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task]:
        return self._allowed(victims)

    def _allowed(self, victims: Sequence[Task]) -> list[Task]:
        """The allowed victims, in order; each one uses up one disruption of the budget that covers it."""
        left = self._session.disruptions_left()
        chosen = []
        for victim in victims:
            labels = dict(victim.pod.labels)
            covering = [
                budget for budget in self._by_namespace.get(victim.pod.namespace, ()) if budget.selector.matches(labels)
            ]
            if len(covering) <= 1 and all(left[budget.namespace, budget.name] > 0 for budget in covering):
                for budget in covering:
                    left[budget.namespace, budget.name] -= 1
                chosen.append(victim)
        return chosen
