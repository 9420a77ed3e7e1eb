"""The agent on a real kubelet: the cases that Kubernetes' own node tests have for device plugins, by their names."""

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from baton.agent.kubelet.records import over_committed
from baton.agent.offers.slots import card_of
from baton.agent.proto import podresources_pb2
from testbed.errors import BedError
from tests.cluster.agent.conftest import CARDS, CONFIG, GPU, SLOTS, TELL, AgentOnNode, GpuNode, container

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

KILLS = 50
EXITING = ("sh", "-c", f"{TELL}; sleep 1; exit 1")


def test_can_schedule_a_pod_that_requires_a_device(node: GpuNode, agent: AgentOnNode) -> None:
    """Through the scheduler this time: the node's capacity is what lets it be placed."""
    node.create("pod", nodeName=None)
    node.running("pod")
    (slot,) = node.slots("pod")
    environment = node.environment("pod")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == card_of(slot)
    assert environment["BATON_SLOTS"] == slot
    assert environment["LD_PRELOAD"] == "/usr/lib/baton/libbaton.so"


def test_keeps_device_plugin_assignments_across_pod_restarts(node: GpuNode, agent: AgentOnNode) -> None:
    node.create("pod", command=EXITING, restartPolicy="Always")
    node.running("pod")
    before = node.slots("pod")
    node.bed.wait_for(
        lambda: node.pod("pod")["status"]["containerStatuses"][0]["restartCount"] >= 1, "the container to start again"
    )
    node.running("pod")
    node.until_slots("pod", before)
    assert node.environment("pod")["BATON_SLOTS"] == ",".join(before)


def test_keeps_device_plugin_assignments_across_kubelet_restarts(node: GpuNode, agent: AgentOnNode) -> None:
    node.create("pod")
    node.running("pod")
    before = node.slots("pod")
    node.restart_kubelet()
    agent.until_registered()
    node.until_slots("pod", before)
    assert node.pod("pod")["status"]["phase"] == "Running"
    assert node.pod("pod")["status"]["containerStatuses"][0]["restartCount"] == 0
    node.create("next", SLOTS * CARDS - 1)
    node.running("next")
    node.audit()


def test_keeps_device_plugin_assignments_across_pod_and_kubelet_restarts(node: GpuNode, agent: AgentOnNode) -> None:
    node.create("pod", command=EXITING, restartPolicy="Always")
    node.running("pod")
    before = node.slots("pod")
    node.restart_kubelet()
    agent.until_registered()
    restarts = node.pod("pod")["status"]["containerStatuses"][0]["restartCount"]
    node.bed.wait_for(
        lambda: node.pod("pod")["status"]["containerStatuses"][0]["restartCount"] > restarts, "the next start", 90.0
    )
    node.until_slots("pod", before)


def test_will_not_attempt_to_admit_the_succeeded_pod_after_kubelet_restart_and_device_plugin_removed(
    node: GpuNode, agent: AgentOnNode
) -> None:
    node.create("pod", command=("true",))
    node.bed.wait_for_pod(node.namespace, "pod", "Succeeded")
    agent.process.terminate()
    node.restart_kubelet()
    assert node.pod("pod")["status"]["phase"] == "Succeeded"


def test_keeps_device_plugin_assignments_after_the_device_plugin_has_restarted(
    node: GpuNode, agent: AgentOnNode
) -> None:
    node.create("pod", command=EXITING, restartPolicy="Always")
    node.running("pod")
    before = node.slots("pod")
    agent.process.restart()
    restarts = node.pod("pod")["status"]["containerStatuses"][0]["restartCount"]
    node.bed.wait_for(
        lambda: node.pod("pod")["status"]["containerStatuses"][0]["restartCount"] > restarts, "the next start", 90.0
    )
    node.until_slots("pod", before)


def test_keeps_device_plugin_assignments_after_kubelet_restart_and_device_plugin_restart(
    node: GpuNode, agent: AgentOnNode
) -> None:
    node.create("pod")
    node.running("pod")
    before = node.slots("pod")
    agent.process.kill()
    node.restart_kubelet()
    agent.process.start()
    agent.process.wait_ready()
    node.until_slots("pod", before)
    assert node.pod("pod")["status"]["phase"] == "Running"


def test_orphaned_pods_deleted_while_kubelet_is_down_are_cleaned_up_and_their_slots_free(
    node: GpuNode, agent: AgentOnNode
) -> None:
    node.create("pod", SLOTS * CARDS)
    node.running("pod")
    node.node.kubelet.kill()
    node.bed.api.delete(f"/api/v1/namespaces/{node.namespace}/pods/pod", grace_s=0)
    node.node.kubelet.start()
    node.node.kubelet.wait_ready()
    agent.until_registered()
    node.until_admitted(SLOTS * CARDS)  # kubelet frees them when it has ended the orphan


def test_can_schedule_a_pod_with_a_restartable_init_container(node: GpuNode, agent: AgentOnNode) -> None:
    """A sidecar keeps its slots; they are not handed on to the main container."""
    node.create("pod", 1, initContainers=[container("sidecar", 1, restartPolicy="Always")])
    node.running("pod")
    held = {h.container: h.slots for h in node.holdings()}
    assert len(held["sidecar"]) == len(held["main"]) == 1
    assert not held["sidecar"] & held["main"]
    assert node.environment("pod", "sidecar")["BATON_SLOTS"] in held["sidecar"]
    node.audit()


def test_an_init_containers_slot_is_handed_on_to_the_main_container(node: GpuNode, agent: AgentOnNode) -> None:
    prepare = container("prepare", 1, command=("sh", "-c", TELL))
    node.create("pod", 2, initContainers=[prepare])
    node.running("pod")
    assert node.environment("pod", "prepare")["BATON_SLOTS"] in node.slots("pod")
    assert len(node.slots("pod")) == 2
    assert len({card_of(slot) for slot in node.slots("pod")}) == 2, "two slots are two cards"


def test_does_not_keep_assignments_across_node_reboots_if_it_fails_admission(node: GpuNode, agent: AgentOnNode) -> None:
    """After a reboot without the plugin, kubelet cannot admit the pod again; with the plugin the next pod runs."""
    node.create("pod", restartPolicy="Always")
    node.running("pod")
    agent.process.kill()
    node.node.reboot()
    assert "UnexpectedAdmissionError" in node.failed("pod")
    node.furnish()
    agent.process.enter = node.node.enter
    agent.process.start()
    agent.process.wait_ready()
    assert not node.holdings()
    node.create("next", SLOTS * CARDS)
    node.running("next")


def test_device_manager_pod_fails_with_admission_error_after_kubelet_restart_if_the_plugin_has_not_registered(
    node: GpuNode, agent: AgentOnNode
) -> None:
    agent.process.kill()
    node.restart_kubelet()
    node.create("pod")
    assert "UnexpectedAdmissionError" in node.failed("pod")


def test_plugin_stopped_after_provisioning_leaves_capacity_and_no_allocatable(
    node: GpuNode, agent: AgentOnNode
) -> None:
    node.until_allocatable(SLOTS * CARDS)
    agent.process.terminate()
    node.until_allocatable(0)
    assert node.capacity() == SLOTS * CARDS


def test_two_containers_of_a_pod_have_different_slots(node: GpuNode, agent: AgentOnNode) -> None:
    node.create("pod", containers=[container("one", 2), container("two", 2)])
    node.running("pod")
    held = {h.container: h.slots for h in node.holdings()}
    assert not held["one"] & held["two"]
    assert all(len({card_of(slot) for slot in slots}) == 2 for slots in held.values())
    node.audit()


def test_pod_resources_gives_the_same_answers_by_list_by_get_and_after_a_kubelet_restart(
    node: GpuNode, agent: AgentOnNode
) -> None:
    """A pod that has ended and one that asks for nothing have no slots; the running one has its own, however asked."""
    node.create("ended", 1, command=("true",))
    node.bed.wait_for_pod(node.namespace, "ended", "Succeeded")
    node.create("without", 0)
    node.create("pod", 2)
    node.running("without")
    node.running("pod")

    def by_get() -> set[str]:
        request = podresources_pb2.GetPodResourcesRequest(pod_name="pod", pod_namespace=node.namespace)
        found = node.ask_pod_resources("Get", request, podresources_pb2.GetPodResourcesResponse)
        return {slot.device_ids[0] for one in found.pod_resources.containers for slot in one.devices}

    before = node.slots("pod")
    assert {(holding.pod, holding.slots) for holding in node.holdings()} == {("pod", before)}
    assert by_get() == before
    node.restart_kubelet()
    node.until_slots("pod", before)
    assert by_get() == before


def test_a_request_larger_than_what_is_free_fails_that_pod_and_no_other(node: GpuNode, agent: AgentOnNode) -> None:
    node.create("first", SLOTS * CARDS - 1)
    node.running("first")
    node.create("large", 2)
    reason = node.failed("large")
    assert "UnexpectedAdmissionError" in reason or "OutOf" in reason
    node.create("last", 1)
    node.running("last")
    node.audit()


def test_spread_balances_pods_and_strict_spread_refuses_in_one_sentence(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    agents(CONFIG.replace("replicas: 4", "replicas: 4\n    policy: strict-spread"))
    for number in range(4):
        node.create(f"pod-{number}")
        node.running(f"pod-{number}")
    used = Counter(card_of(slot) for holding in node.holdings() for slot in holding.slots)
    assert list(used.values()) == [2, 2]
    node.create("greedy", 3)
    assert "policy strict-spread puts every slot of a container on a different card" in node.failed("greedy")


def test_ten_thousand_slots_are_registered_and_chosen_by_the_policy(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    """Had the agent not understood kubelet's question about all of them, kubelet would have chosen at random."""
    agents(CONFIG.replace("replicas: 4", "replicas: 5000"))
    node.bed.wait_for(lambda: len(node.healthy_slots()) == 10_000, "kubelet to have them all")
    taken: set[str] = set()
    for ordinal in (1, 2):
        node.create(f"pod-{ordinal}", 2)
        node.running(f"pod-{ordinal}")
        taken |= {f"{card}__{ordinal}" for card in node.cards}
        assert {slot for holding in node.holdings() for slot in holding.slots} == taken
    node.audit()


def test_a_rolling_update_with_overlap_ends_with_the_new_agent_registered(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    """The end of the old agent's stream makes kubelet drop the new one's client, although it is alive."""
    old = agents()
    node.create("pod")
    node.running("pod")
    new = agents(CONFIG, "upgraded")
    old.process.terminate()
    new.until_registered()
    node.until_admitted(1)
    assert node.pod("pod")["status"]["phase"] == "Running"
    node.audit()


def test_a_reloaded_configuration_changes_capacity_without_a_restart(node: GpuNode, agent: AgentOnNode) -> None:
    node.until_allocatable(SLOTS * CARDS)
    node.create("pod")
    node.running("pod")
    before = node.slots("pod")
    agent.write(CONFIG.replace("replicas: 4", "replicas: 6"))
    node.until_allocatable(6 * CARDS)
    agent.write(CONFIG.replace("replicas: 4", "replicas: 0"))
    node.bed.wait_for(lambda: "replicas" in agent.status().problem, "the mistake to be reported")
    assert agent.status().resources[0].slots == 6 * CARDS
    node.until_slots("pod", before)


def test_registration_through_the_plugin_registry_survives_kubelet_restarts(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    agent = agents(CONFIG + "\nkubelet: {registration: registry}\n")
    node.create("pod")
    node.running("pod")
    before = node.slots("pod")
    node.restart_kubelet()
    agent.until_registered()
    node.create("next")
    node.running("next")
    node.until_slots("pod", before)
    node.audit()


def test_an_agent_killed_at_random_moments_under_churn_loses_no_pod_and_gives_nothing_twice(
    node: GpuNode, agent: AgentOnNode
) -> None:
    """Pods that were admitted keep running with their slots; those that hit the gap fail and say so."""
    chance = random.Random(6)
    ended = threading.Event()

    def churn() -> None:
        for number in range(60):
            with contextlib.suppress(BedError):
                node.create(f"churn-{number}", chance.choice([1, 1, 2]), command=("sleep", str(chance.uniform(1, 4))))
            if ended.wait(chance.uniform(0.1, 0.4)):
                return

    node.create("steady", 2)
    node.running("steady")
    before = node.slots("steady")
    worker = threading.Thread(target=churn)
    worker.start()
    for _ in range(KILLS):
        ended.wait(chance.uniform(0.0, 0.8))
        agent.process.kill()
        agent.process.start()
        assert over_committed(node.holdings()) == []
    worker.join()
    agent.process.wait_ready()
    node.audit()
    node.until_slots("steady", before)
    assert node.pod("steady")["status"]["phase"] == "Running"
    pods = node.bed.api.get(f"/api/v1/namespaces/{node.namespace}/pods")["items"]
    failed = [pod["status"] for pod in pods if pod["status"].get("phase") == "Failed"]
    assert all(status.get("reason") in ("UnexpectedAdmissionError", "OutOfnvshare.com/gpu") for status in failed)
    node.bed.wait_for(lambda: {h.pod for h in node.holdings()} == {"steady"}, "the churned pods' slots to be free")
    node.create("all-the-rest", SLOTS * CARDS - 2)
    node.running("all-the-rest")
    assert sum(len(h.slots) for h in node.holdings() if h.resource == GPU) == SLOTS * CARDS
