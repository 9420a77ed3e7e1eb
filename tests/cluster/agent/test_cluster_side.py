"""What the cluster is told of the node, and what the scheduler's choice of cards does, on a real API server."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from baton.model import card_annotations
from tests.cluster.agent.conftest import CONFIG, AgentOnNode, GpuNode, container

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TOLD = CONFIG.replace("api: {enabled: false}", "api: {load-every-s: 1}")
VGPU = TOLD.replace(
    "name: nvshare.com/gpu\n    replicas: 4", "name: volcano.sh/vgpu-number\n    kind: vgpu\n    memory-unit-mib: 1024"
).replace("lock: {supervise: false}", "")
NUMBER = "volcano.sh/vgpu-number"


def node_object(node: GpuNode) -> dict[str, Any]:
    found: dict[str, Any] = node.bed.api.get(f"/api/v1/nodes/{node.node.name}")
    return found


def condition(node: GpuNode) -> dict[str, str]:
    conditions = node_object(node)["status"]["conditions"]
    return next((one for one in conditions if one["type"] == "BatonGpusHealthy"), {})


def share(card: str, memory: int) -> str:
    return f"{card},NVIDIA,{memory},0:"


def vgpu_pod(node: GpuNode, name: str, card: str, memory: int) -> None:
    spec = container("main", 1, resource=NUMBER)
    node.create(name, containers=[spec], metadata={"annotations": {card_annotations.ASSIGNED: share(card, memory)}})


def annotation(node: GpuNode, pod: str, name: str) -> str:
    return str(node.pod(pod)["metadata"]["annotations"].get(name, ""))


def given(node: GpuNode, name: str) -> str:
    return node.environment(name)["BATON_CARDS"]


def test_labels_load_and_condition_say_what_the_node_has_and_how_it_is(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    agents(TOLD)
    node.bed.wait_for(lambda: condition(node).get("status") == "True", "the condition")
    wanted = {"baton.dev/gpu.product": "Tesla-T4", "baton.dev/gpu.count": "2"}
    node.bed.wait_for(lambda: wanted.items() <= node_object(node)["metadata"]["labels"].items(), f"the labels {wanted}")
    node.bed.wait_for(lambda: "baton.dev/load" in node_object(node)["metadata"]["annotations"], "the load")
    load = json.loads(node_object(node)["metadata"]["annotations"]["baton.dev/load"])
    assert set(load) == set(node.cards)
    node.inject(1, "lost")
    node.bed.wait_for(lambda: condition(node).get("status") == "False", "the condition to tell of the fault")
    assert node.cards[1] in condition(node)["message"]
    node.inject(1, "heal")
    node.bed.wait_for(lambda: condition(node).get("status") == "True", "the condition to tell of the return")
    events = "/api/v1/namespaces/default/events?fieldSelector=reason=CardUnhealthy"
    node.bed.wait_for(
        lambda: any(event["involvedObject"]["name"] == node.node.name for event in node.bed.api.get(events)["items"]),
        "the event",
    )


def test_volcanos_annotation_and_resources_are_there(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    agents(VGPU)
    for resource, count in ((NUMBER, 20), ("volcano.sh/vgpu-memory", 2 * 15), ("volcano.sh/vgpu-cores", 200)):
        node.until_allocatable(count, resource)
    text = "".join(f"{card},10,15,NVIDIA-Tesla T4,true,hami-core:" for card in node.cards)
    node.bed.wait_for(
        lambda: node_object(node)["metadata"]["annotations"][card_annotations.REGISTER] == text,
        f"the annotation {text}",
    )


def test_the_schedulers_card_wins_over_the_policy(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    """Spread would alternate; the annotation says card 1 each time."""
    agents(VGPU)
    for number in range(3):
        vgpu_pod(node, f"pod-{number}", node.cards[1], 2)
        node.running(f"pod-{number}")
        assert given(node, f"pod-{number}") == node.cards[1]


def test_a_pod_that_got_another_card_is_told_and_the_books_are_corrected(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    """Card 1 is out of service when the pod comes: kubelet can give only card 0, which has room."""
    agents(VGPU)
    node.until_allocatable(20, NUMBER)
    node.inject(1, "lost")
    node.until_allocatable(10, NUMBER)
    vgpu_pod(node, "pod", node.cards[1], 2)
    node.running("pod")
    node.bed.wait_for(
        lambda: annotation(node, "pod", card_annotations.ACTUAL_CARDS) == f"main={node.cards[0]}",
        "the pod to carry the cards it has",
    )
    assert annotation(node, "pod", card_annotations.ASSIGNED) == share(node.cards[0], 2)


def test_a_swap_that_would_over_commit_a_card_is_refused_until_there_is_room(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    agent = agents(VGPU)
    node.until_allocatable(20, NUMBER)
    vgpu_pod(node, "first", node.cards[0], 10)
    node.running("first")
    node.inject(1, "lost")
    node.until_allocatable(10, NUMBER)
    vgpu_pod(node, "swapped", node.cards[1], 10)

    def message() -> str:
        statuses = node.pod("swapped")["status"].get("containerStatuses", [{}])
        return str(statuses[0].get("state", {}).get("waiting", {}).get("message", ""))

    def refusals() -> int:
        return agent.process.log.read_text().count("start refused")

    node.bed.wait_for(lambda: "would promise" in message(), "the refusal to be shown on the pod")
    seen = refusals()
    node.nudge("swapped")
    node.bed.wait_for(lambda: refusals() > seen, "kubelet to ask again and to be refused again")
    assert annotation(node, "swapped", card_annotations.ASSIGNED) == share(node.cards[1], 10)
    assert node.pod("first")["status"]["phase"] == "Running"
    node.delete("first")
    node.nudge("swapped")
    node.running("swapped")
    corrected = share(node.cards[0], 10)
    node.bed.wait_for(
        lambda: annotation(node, "swapped", card_annotations.ASSIGNED) == corrected, "the books to be corrected"
    )
    node.audit()
