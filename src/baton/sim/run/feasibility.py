"""Whether a job can ever run: would all of its tasks fit the empty cluster?

A job that cannot is reported in the result and does not enter the run.
"""

from collections import Counter
from collections.abc import Sequence

from baton.engine.cards.fragmentation import WHOLE_CARD
from baton.engine.objects import Node
from baton.sim.run.translation import MIB, model_of
from baton.sim.traces.workload import TraceJob

_MOST_PODS = 1000


class EmptyCluster:
    """The number of nodes of each kind, and the answers for each shape of job."""

    def __init__(self, nodes: Sequence[Node], *, slots_per_card: int) -> None:
        self._slots = slots_per_card
        self._kinds = Counter(
            (
                tuple(sorted(node.allocatable)),
                len(node.cards),
                model_of(node),
                min((card.memory_mib for card in node.cards), default=0),
            )
            for node in nodes
        )
        self._known: dict[tuple[object, ...], int] = {}

    def fits(self, job: TraceJob) -> bool:
        """Whether every task of the job fits."""
        shape = (job.shape, job.memory_mib, job.card_memory_mib)
        if shape not in self._known:
            self._known[shape] = self._tasks(job)
        return self._known[shape] >= job.tasks

    def _tasks(self, job: TraceJob) -> int:
        total = 0
        for (allocatable, cards, model, card_memory_mib), number in self._kinds.items():
            if job.cards > cards or (job.models and model not in job.models):
                continue
            if job.cards and job.card_memory_mib > card_memory_mib:
                continue
            room = dict(allocatable)
            limits = [room.get("pods", _MOST_PODS)]
            if job.cpu_milli:
                limits.append(room.get("cpu", 0) // job.cpu_milli)
            if job.memory_mib:
                limits.append(room.get("memory", 0) // (job.memory_mib * MIB))
            if job.cards:
                limits.append(cards * (self._slots if self._slots > 1 else WHOLE_CARD // job.milli) // job.cards)
            total += number * min(limits)
        return total
