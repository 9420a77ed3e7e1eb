"""PodGroups and queues in the engine's terms."""

import msgspec

from baton.mapping.cluster import group_of, queue_of
from baton.model import volcano
from baton.model.names import PodGroupPhase


def test_groups_and_queues_are_translated() -> None:
    text = b"""{"metadata":{"name":"g","namespace":"team","annotations":{"volcano.sh/sla-waiting-time":"1h30m"}},
      "spec":{"minMember":3,"minTaskMember":{"w":2,"m":1},"queue":"q","minResources":{"cpu":"3"}},
      "status":{"phase":"Inqueue"}}"""
    group = group_of(msgspec.json.decode(text, type=volcano.PodGroup), 7)
    assert (group.key, group.queue, group.min_member, group.priority) == ("team/g", "q", 3, 7)
    assert group.min_role_members == (("m", 1), ("w", 2))
    assert (group.min_resources, group.sla_waiting_s, group.phase) == ((("cpu", 3000),), 5400.0, PodGroupPhase.INQUEUE)
    text = b'{"metadata":{"name":"q"},"spec":{"weight":4,"parent":"root","capability":{"cpu":"2"},"reclaimable":false}}'
    queue = queue_of(msgspec.json.decode(text, type=volcano.Queue))
    assert (queue.weight, queue.parent, queue.capability, queue.reclaimable) == (4, "root", (("cpu", 2000),), False)


def test_a_group_of_volcanos_asks_for_resources_and_not_for_quotas() -> None:
    text = b"""{"metadata":{"name":"g"},"spec":{"minResources":{"cpu":"2","pods":"1","count/pods":"1",
      "requests.cpu":"2","limits.cpu":"2","requests.nvidia.com/gpu":"1","nvidia.com/gpu":"1"}}}"""
    group = group_of(msgspec.json.decode(text, type=volcano.PodGroup), 0)
    assert group.min_resources == (("cpu", 2000), ("nvidia.com/gpu", 1), ("pods", 1))
