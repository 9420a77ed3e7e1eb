"""Faults of cards, as kubelet and the pod's owner see them, and the way back."""

import pytest

from baton.agent.offers.slots import card_of
from tests.cluster.agent.conftest import CARDS, SLOTS, AgentOnNode, GpuNode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

FAULTS = {
    "xid fatal": ("xid", {"xid": 79.0}),
    "off the bus": ("lost", {}),
    "uncorrectable ECC": ("ecc", {}),
    "slow link": ("slow-link", {"factor": 0.1}),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_fault_takes_every_slot_of_that_card_and_return_to_service_brings_them_back(
    node: GpuNode, agent: AgentOnNode, fault: str
) -> None:
    name, details = FAULTS[fault]
    node.inject(0, name, **details)
    node.bed.wait_for(lambda: node.healthy_cards() == {node.cards[1]}, "card 0 to be unhealthy")
    node.create("pod", 2)
    node.running("pod")
    assert {card_of(slot) for slot in node.slots("pod")} == {node.cards[1]}
    node.inject(0, "heal")
    node.bed.wait_for(lambda: node.healthy_cards() == set(node.cards), "card 0 to be healthy again")
    node.create("next", 1)
    node.running("next")
    assert {card_of(slot) for slot in node.slots("next")} == {node.cards[0]}


def test_an_application_error_takes_nothing_away(node: GpuNode, agent: AgentOnNode) -> None:
    node.bed.wait_for(lambda: node.healthy_cards() == set(node.cards), "kubelet to have both cards")
    node.inject(0, "xid", xid=31)
    node.inject(1, "xid", xid=79)
    node.bed.wait_for(lambda: node.healthy_cards() != set(node.cards), "the fatal one to be seen")
    assert node.healthy_cards() == {node.cards[0]}


def test_allocatable_is_lowered_by_the_unhealthy_and_back_while_capacity_stays(
    node: GpuNode, agent: AgentOnNode
) -> None:
    node.until_allocatable(SLOTS * CARDS)
    node.inject(1, "lost")
    node.until_allocatable(SLOTS)
    assert node.capacity() == SLOTS * CARDS
    node.inject(1, "heal")
    node.until_allocatable(SLOTS * CARDS)


def shown_health(node: GpuNode, name: str) -> str:
    """What a pod's status says of its device."""
    statuses = node.pod(name)["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
    return next((device["health"] for one in statuses for device in one["resources"]), "")


def test_a_running_pods_status_shows_the_health_of_its_device(node: GpuNode, agent: AgentOnNode) -> None:
    node.create("pod")
    node.running("pod")
    (slot,) = node.slots("pod")
    node.inject(node.cards.index(card_of(slot)), "lost")
    node.bed.wait_for(lambda: shown_health(node, "pod") == "Unhealthy", "the pod's status to show it")
    assert node.pod("pod")["status"]["phase"] == "Running", "nobody is killed for it"
    node.inject(node.cards.index(card_of(slot)), "heal")
    node.bed.wait_for(lambda: shown_health(node, "pod") == "Healthy", "the pod's status to show the return")


def test_a_failed_pods_status_shows_the_health_its_device_had(node: GpuNode, agent: AgentOnNode) -> None:
    """Whoever asks later why a pod failed finds it there."""
    node.create("pod")
    node.running("pod")
    (slot,) = node.slots("pod")
    node.inject(node.cards.index(card_of(slot)), "lost")
    node.bed.wait_for(lambda: shown_health(node, "pod") == "Unhealthy", "the pod's status to show it")
    path = f"/api/v1/namespaces/{node.namespace}/pods/pod"
    node.bed.api.patch(path, {"spec": {"activeDeadlineSeconds": 1}})
    assert "DeadlineExceeded" in node.failed("pod")
    assert shown_health(node, "pod") == "Unhealthy"
