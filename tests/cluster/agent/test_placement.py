"""Placement on a real kubelet: a sample of the random courses that the policies' own tests run by the thousand."""

import random
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from baton.agent.offers.slot_choice import Policy, PreferenceRequest, prefer, violation
from baton.agent.offers.slots import CardSlots, Pool, SlotId, card_of
from baton.gpu import profiles, simulated
from baton.model.ids import CardId
from tests.cluster.agent.conftest import CONFIG, SLOTS, AgentOnNode, GpuNode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

REQUESTS = 9


def taken(node: GpuNode) -> set[SlotId]:
    return {SlotId(slot) for holding in node.holdings() for slot in holding.slots}


def until_decided(node: GpuNode, name: str) -> None:
    """Until kubelet has admitted or refused the pod; its container need not have started."""

    def decided() -> bool:
        return bool(node.slots(name)) or node.pod(name)["status"].get("phase") == "Failed"

    node.bed.wait_for(decided, f"kubelet to decide about {name}")


def remove(node: GpuNode, name: str) -> None:
    node.delete(name)
    node.bed.wait_for(lambda: not node.slots(name), f"the slots of {name} to be free")


@pytest.mark.parametrize("policy", [Policy.SPREAD, Policy.STRICT_SPREAD, Policy.PACKED])
def test_kubelet_takes_what_the_policy_says_whatever_the_course_of_requests(
    policy: Policy, node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    agents(CONFIG.replace("replicas: 4", f"replicas: 4\n    policy: {policy}"))
    pool = Pool(CardSlots.of(CardId(card), index, SLOTS) for index, card in enumerate(node.cards))
    chance = random.Random(4)
    pods: list[str] = []
    for number in range(REQUESTS):
        if len(pods) > 2 and chance.random() < 0.4:
            remove(node, pods.pop(chance.randrange(len(pods))))
        free = frozenset(set(pool.slots) - taken(node))
        name, size = f"pod-{number}", chance.choice([1, 1, 2, 3])
        node.create(name, size, command=("sleep", "3600"))
        until_decided(node, name)
        wanted = prefer(policy, pool, PreferenceRequest(pool.marks(free), (), size))
        if len(wanted) < size or violation(policy, pool, wanted):
            assert not node.slots(name), f"{size} of {sorted(free)}"
            continue
        assert node.slots(name) == set(wanted), f"{size} of {sorted(free)}"
        pods.append(name)
        used = Counter(card_of(slot) for slot in node.slots(name))
        if policy is Policy.STRICT_SPREAD:
            assert set(used.values()) == {1}
    node.audit()


def test_cards_of_one_container_are_on_one_numa_node(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    """Four cards, in turn on one NUMA node and on the other."""
    place = "/run/baton/two-numa-nodes"
    machine = node.node.path(place)
    simulated.start([msgspec.structs.replace(profiles.find("t4"), numa_nodes=(0, 1))] * 4, machine)
    cards = [card.uuid for card in simulated.status(machine).cards]
    agents(CONFIG.replace("replicas: 4", "replicas: 1\n    policy: aligned"), machine=place)
    node.until_allocatable(len(cards))

    def given(name: str, size: int) -> set[CardId]:
        node.create(name, size, command=("sleep", "3600"))
        until_decided(node, name)
        return {card_of(slot) for slot in node.slots(name)}

    (alone,) = given("alone", 1)
    side = cards.index(alone) % 2
    assert given("pair", 2) == {cards[1 - side], cards[3 - side]}
    assert given("rest", 1) == {cards[side], cards[2 + side]} - {alone}
