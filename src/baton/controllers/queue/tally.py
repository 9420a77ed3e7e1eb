"""How many PodGroups of each phase are in each queue, updated with every change.

A queue may have thousands of groups, and each changes its phase a few times. Counting all of them at every change would
take quadratic time.
"""

from collections import Counter
from collections.abc import Iterator

from baton.kube.store import Delta
from baton.mapping.cluster import group_queue
from baton.model.names import PodGroupPhase
from baton.model.volcano import PodGroup
from baton.observe.metrics import Family, Row

_FAMILY_OF = {
    phase: Family(
        "gauge",
        f"volcano_queue_pod_group_{phase.lower()}_count",
        f"PodGroups of a queue that are {phase}.",
        ("queue_name",),
    )
    for phase in PodGroupPhase
}
FAMILIES = tuple(_FAMILY_OF.values())


def phase_of(group: PodGroup) -> PodGroupPhase:
    """The phase of a group. A new one is Pending; an unrecognised phase counts as Unknown."""
    try:
        return PodGroupPhase(group.status.phase or PodGroupPhase.PENDING)
    except ValueError:
        return PodGroupPhase.UNKNOWN


class GroupTally:
    """The counts, and Volcano's metrics of them. A queue without groups has no counts, so its series end."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[PodGroupPhase]] = {}

    def follow(self, delta: Delta[PodGroup]) -> None:
        """Count a change. Subscribe this to the store of PodGroups."""
        if delta.new is not None:
            self._counts.setdefault(group_queue(delta.new), Counter())[phase_of(delta.new)] += 1
        if delta.old is not None:
            name = group_queue(delta.old)
            counts = self._counts[name]
            counts[phase_of(delta.old)] -= 1
            if not any(counts.values()):
                del self._counts[name]

    def counts(self, queue: str) -> Counter[PodGroupPhase]:
        return self._counts.get(queue, Counter())

    def groups(self, queue: str) -> int:
        """All groups, including finished ones: a queue is Closed only when its last PodGroup is gone."""
        return sum(self.counts(queue).values())

    def rows(self) -> Iterator[Row]:
        for queue, counts in self._counts.items():
            for phase, family in _FAMILY_OF.items():
                yield Row(family, (queue,), counts[phase])
