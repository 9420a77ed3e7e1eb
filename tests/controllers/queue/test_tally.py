"""The running counts of PodGroups equal a full count after any changes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from baton.controllers.queue.tally import GroupTally
from baton.kube.store import Store
from baton.model.ids import Key
from baton.model.meta import Metadata
from baton.model.names import PodGroupPhase
from baton.model.volcano import PodGroup, PodGroupSpec, PodGroupStatus

QUEUES = ("a", "b")
changes = st.lists(
    st.tuples(
        st.sampled_from("xyz"), st.sampled_from(QUEUES), st.sampled_from([*PodGroupPhase, "", "?"]), st.booleans()
    )
)


@given(changes)
def test_counts_agree_with_counting(steps: list[tuple[str, str, str, bool]]) -> None:
    groups, tally = Store[PodGroup](), GroupTally()
    groups.subscribe(tally.follow)
    for version, (name, queue, phase, removed) in enumerate(steps):
        if removed:
            groups.remove(Key(f"ns/{name}"))
            continue
        metadata = Metadata(name=name, namespace="ns", uid=name, resource_version=str(version))
        groups.put(PodGroup(metadata, PodGroupSpec(queue=queue), PodGroupStatus(phase=phase)))
    for queue in QUEUES:
        mine = [group for group in groups if group.spec.queue == queue]
        words = Counter({"": "Pending", "?": "Unknown"}.get(group.status.phase, group.status.phase) for group in mine)
        assert {phase.value: count for phase, count in tally.counts(queue).items() if count} == dict(words)
        assert tally.groups(queue) == len(mine)
    rows = {(row.family.name, *row.labels): row.value for row in tally.rows()}
    assert rows.get(("volcano_queue_pod_group_running_count", "a"), 0) == sum(
        group.spec.queue == "a" and group.status.phase == "Running" for group in groups
    )
