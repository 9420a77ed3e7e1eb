"""GPU programs in containers on a real kubelet: the agent's answer, the hook and the lock, on simulated cards."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from baton.agent.offers.slots import card_of
from testbed.images import WORKLOAD
from tests.cluster import workloads
from tests.cluster.agent.conftest import CONFIG, GPU, AgentOnNode, GpuNode, container

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SHARED = CONFIG.replace("lock: {supervise: false}", "")
VGPU = """
resources:
  - {name: volcano.sh/vgpu-number, kind: vgpu, replicas: 4, memory-unit-mib: 1024}
health: {settle-s: 0.1, heal-s: 0.3, probe-every-s: 0.2}
api: {labels: false, condition: false, events: false}
"""
BUSY = ("python3", "-c", workloads.WORK, "/never", "0")


def result(node: GpuNode, name: str) -> list[dict[str, Any]]:
    node.bed.wait_for_pod(node.namespace, name, "Succeeded", 90.0)
    lines = node.log(name).splitlines()
    return [json.loads(line.removeprefix("report ")) for line in lines if line.startswith("report ")]


def test_a_container_uses_its_card_and_sees_no_other(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    agents(SHARED)
    node.create("one", 1, image=WORKLOAD, command=("python3", "-c", workloads.REPORT))
    (report,) = result(node, "one")
    assert len(report["cards"]) == 1
    assert report["codes"] == [0]


def test_a_container_with_two_cards_uses_both(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    agents(SHARED)
    node.create("two", 2, image=WORKLOAD, command=("python3", "-c", workloads.REPORT))
    (report,) = result(node, "two")
    assert set(report["cards"]) == {workloads.raw(card) for card in node.cards}
    assert report["codes"] == [0, 0]


def test_a_pod_with_a_memory_limit_gets_out_of_memory_at_its_limit(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    """4 GiB of a 16 GiB card: 3 GiB more than the first 64 MiB fit, 5 GiB do not. All come at once, and the limits are
    each pod's own: with 8 GiB the 5 GiB fit, and without a limit, too."""
    agents(VGPU)
    for name, want_mib, limit in (
        ("too-much", 5120, 4),
        ("larger", 5120, 8),
        ("fits", 3072, 4),
        ("unlimited", 5120, 0),
    ):
        command = ("python3", "-c", workloads.REPORT, str(want_mib))
        spec = container("main", 0, image=WORKLOAD, command=command)
        given = {"volcano.sh/vgpu-number": "1"} | ({"volcano.sh/vgpu-memory": str(limit)} if limit else {})
        node.create(name, containers=[{**spec, "resources": {"limits": given}}])
    assert result(node, "too-much")[1]["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert [result(node, name)[1]["code"] for name in ("larger", "fits", "unlimited")] == [0, 0, 0]


def test_two_pods_on_one_card_take_turns(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    """Watched in the lock's own records: one holder at a time, now the one pod, now the other, again and again."""
    agent = agents(SHARED.replace("replicas: 4", "replicas: 4\n    policy: packed"))
    names = ("first", "second")
    for name in names:
        node.create(name, 1, image=WORKLOAD, command=BUSY)
        node.running(name)
    (card,) = {card_of(slot) for name in names for slot in node.slots(name)}
    node.set_lock(card, quantum="0.2", mode="serial")
    pods = {node.pod(name)["metadata"]["uid"] for name in names}
    seen = node.lock_view(card, turns=8)
    assert len(seen.holders[card]) <= 1
    assert len(seen.turns) == 8
    assert set(seen.turns) == pods
    node.audit()

    def measured() -> bool:
        metrics = agent.metrics()
        return all(
            metrics["baton_container_lock_held_seconds_total", name] > 0
            and metrics["baton_container_lock_waited_seconds_total", name] > 0
            and metrics["baton_container_lock_turns_total", name] >= 2
            for name in names
        )

    node.bed.wait_for(measured, "the metrics to tell of both pods' turns")
    node.set_lock(card, quantum="auto", mode="auto")


def test_a_pod_that_sets_its_own_cards_does_not_break_anything(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    """Kubelet lets a pod's own environment win; BATON_CARDS still says what it was given, and an event says so too."""
    agents(SHARED.replace("api: {enabled: false}", ""))
    node.create("honest", 1)
    node.running("honest")
    own = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    node.create("greedy", containers=[container("main", 1, env=own)])
    node.running("greedy")
    environment = node.environment("greedy")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    (slot,) = node.slots("greedy")
    assert environment["BATON_CARDS"] == card_of(slot)
    assert GPU in {holding.resource for holding in node.holdings()}
    node.audit()
    events = f"/api/v1/namespaces/{node.namespace}/events?fieldSelector=reason=CardsOverridden"
    node.bed.wait_for(lambda: bool(node.bed.api.get(events)["items"]), "the event that tells of it")


def test_load_prefers_sleepers_over_one_busy_pod_and_falls_back_when_the_lock_daemon_hangs(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    """The limit is wide here, so that a busy machine does not decide; its own test has the real one."""
    agents(SHARED.replace("replicas: 4", "replicas: 8\n    policy: load") + "\nlock: {load-limit-s: 5.0}\n")
    node.create("busy", image=WORKLOAD, command=BUSY)
    node.running("busy")
    node.bed.wait_for(lambda: any(node.lock_view().holders.values()), "the busy pod to hold its card")
    (slot,) = node.slots("busy")
    busy_card = card_of(slot)
    for number in range(5):
        node.create(f"sleeper-{number}")
        node.running(f"sleeper-{number}")
        assert {card_of(slot) for slot in node.slots(f"sleeper-{number}")} != {busy_card}
    daemon = node.lock_view().pid
    node.node.run(["sh", "-c", f"kill -STOP {daemon}"])
    try:
        node.create("after")
        node.running("after")
    finally:
        node.node.run(["sh", "-c", f"kill -CONT {daemon}"])
    assert {card_of(slot) for slot in node.slots("after")} == {busy_card}, "as spread: one slot there, five elsewhere"
