"""One pod all the way: `kubectl apply` of a Volcano Job, and a CUDA program runs under the lock, on a real kubelet.

Nothing is bound or started by the test. The job goes through admission, the controller makes its PodGroup and pods, the
scheduler places them together and records their cards, kubelet asks the agent, the hook in the container finds the
lock. While all four pods work, everybody who keeps accounts is asked who has what: the scheduler, the pods'
annotations, kubelet, the agent, the lock, and the program itself. Then the pods may end, and the job is complete.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from baton.agent.offers.slots import card_of
from baton.model import card_annotations
from testbed.bed import Bed, BedOptions
from testbed.images import WORKLOAD
from tests.cluster.agent.conftest import AgentOnNode, GpuNode
from tests.cluster.programs import EXAMPLES, BatonPrograms
from tests.cluster.workloads import WORK, raw

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NODES = 2
PODS = 4
DOOR = "/var/lib/baton/door"
"""A directory of the node that pods see: they work until a file `end` lies in it."""

AGENT = """
resources:
  - {name: nvshare.com/gpu, replicas: 2, only-listed-cards: true, cards: [{index: 0}]}
  - {name: volcano.sh/vgpu-number, kind: vgpu, replicas: 4, only-listed-cards: true, cards: [{index: 1}]}
"""


class Holder(msgspec.Struct, frozen=True, order=True):
    """Who has which card: what all the accounts are brought to."""

    pod: str
    node: str
    card: str


class Fleet:
    """Two real nodes with cards and agents, and Baton's programs."""

    def __init__(self, bed: Bed, baton: BatonPrograms) -> None:
        self.bed = bed
        self.baton = baton
        self.nodes = {name: GpuNode(bed, node) for name, node in sorted(bed.nodes.items())}
        self.agents: dict[str, AgentOnNode] = {}

    def start_agents(self) -> None:
        for name, node in self.nodes.items():
            node.node.path(DOOR).mkdir(parents=True)
            node.furnish()
            self.agents[name] = AgentOnNode(node, AGENT)
        for node in self.nodes.values():
            node.until_allocatable(2, "nvshare.com/gpu")
            node.until_allocatable(4, "volcano.sh/vgpu-number")

    def open_door(self) -> None:
        for node in self.nodes.values():
            (node.node.path(DOOR) / "end").touch()

    def close_door(self) -> None:
        for node in self.nodes.values():
            (node.node.path(DOOR) / "end").unlink(missing_ok=True)

    def lock_status(self, node: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "baton.cli.main", "lock", "status", "-o", "json"]
        found: dict[str, Any] = json.loads(self.nodes[node].node.run(words).stdout)
        return found

    def kubelets_account(self, namespace: str) -> list[Holder]:
        found = set()
        for name, node in self.nodes.items():
            for holding in node.all_holdings():
                if holding.namespace == namespace:
                    found |= {Holder(holding.pod, name, card_of(slot)) for slot in holding.slots if "__" in slot}
        return sorted(found)

    def agents_account(self, namespace: str) -> list[Holder]:
        return sorted(
            Holder(pod.partition("/")[2], name, card.id)
            for name, agent in self.agents.items()
            for card in agent.status().cards
            for pod in card.pods
            if pod.startswith(f"{namespace}/")
        )

    def locks_account(self, namespace: str) -> list[Holder]:
        return sorted(
            Holder(client["pod"], name, client["gpu"])
            for name in self.nodes
            for client in self.lock_status(name)["clients"]
            if client["namespace"] == namespace
        )


@pytest.fixture(scope="module")
def fleet(needs_kubelets: None) -> Iterator[Fleet]:
    with (
        Bed(BedOptions(kubelets=NODES, controller_manager=True, images=(WORKLOAD,))) as bed,
        BatonPrograms(bed) as baton,
    ):
        made = Fleet(bed, baton)
        made.start_agents()
        yield made
        for agent in made.agents.values():
            agent.process.kill()


@pytest.fixture
def namespace(fleet: Fleet) -> Iterator[str]:
    fleet.close_door()
    with fleet.bed.namespace("one-pod") as name:
        yield name
    fleet.open_door()


def working_job(example: str, **limits: int) -> str:
    """An example with our program in its containers, which needs our image and the node's door."""
    job = yaml.safe_load((EXAMPLES / example).read_text())
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    container = pod["containers"][0]
    container.update(image=WORKLOAD, imagePullPolicy="Never", command=["python3", "-c", WORK, "/door/end", "0.05"])
    container["volumeMounts"] = [{"name": "door", "mountPath": "/door"}]
    container["resources"]["limits"].update(limits)
    pod["volumes"] = [{"name": "door", "hostPath": {"path": DOOR, "type": "Directory"}}]
    pod["terminationGracePeriodSeconds"] = 0
    return yaml.safe_dump(job)


def works(fleet: Fleet, namespace: str, pod: str) -> dict[str, Any]:
    """What the program in a pod says of its card, once it has done work on it."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"

    def said() -> list[str]:
        return [line for line in str(fleet.bed.api.get(path)).splitlines() if line.startswith("works ")]

    fleet.bed.wait_for(lambda: bool(said()), f"{pod} to work on its card", 90.0)
    found: dict[str, Any] = json.loads(said()[0].removeprefix("works "))
    return found


def started_together(fleet: Fleet, namespace: str, job: str) -> list[dict[str, Any]]:
    """The running pods of a job of which none was bound before all of them were there to be placed."""
    pods = fleet.baton.until_pods(namespace, job, PODS, "Running", 120.0)
    requests = fleet.baton.requests(namespace)
    created = [r.at for r in requests if (r.verb, r.resource, r.subresource) == ("create", "pods", "")]
    bound = fleet.baton.bindings(namespace, f"{job}-")
    assert len(created) == PODS
    assert sorted(request.name for request in bound) == [pod["metadata"]["name"] for pod in pods], "each bound once"
    assert max(created) < min(request.at for request in bound), "no member is bound before all of them can be"
    return pods


def finish(fleet: Fleet, namespace: str, job: str) -> None:
    """Let the programs end: the job completes, and nobody has anything of it in the books any more."""
    fleet.open_door()
    done = fleet.baton.until_phase(namespace, job, "Completed", 120.0)
    assert done["status"]["succeeded"] == PODS
    fleet.bed.wait_for(lambda: not fleet.locks_account(namespace), "the lock to have no client of it")
    fleet.bed.wait_for(lambda: not fleet.agents_account(namespace), "the agents to have no pod of it", 90.0)
    fleet.bed.wait_for(
        lambda: not fleet.baton.scheduled_cards(namespace), "the scheduler to charge no card for it", 90.0
    )


def test_a_job_with_shared_gpus_goes_all_the_way(fleet: Fleet, namespace: str) -> None:
    """Four pods with `nvshare.com/gpu`, two slots per card: every slot of both nodes."""
    fleet.baton.apply(namespace, working_job("shared-gpus.yaml"))
    pods = started_together(fleet, namespace, "shared-gpus")
    told = {}
    for pod in pods:
        (cards,) = card_annotations.our_cards(pod["metadata"]["annotations"][card_annotations.OUR_CARDS]).values()
        (told[pod["metadata"]["name"]],) = cards
    recorded = sorted(
        Holder(pod["metadata"]["name"], pod["spec"]["nodeName"], told[pod["metadata"]["name"]]) for pod in pods
    )
    assert sorted(holder.card for holder in recorded) == sorted(2 * [node.cards[0] for node in fleet.nodes.values()])
    for holder in recorded:
        report = works(fleet, namespace, holder.pod)
        assert (report["card"], report["cards"]) == (raw(holder.card), 1), "the program sees the card that was recorded"
    assert fleet.baton.scheduled_cards(namespace) == {holder.pod: [holder.card] for holder in recorded}
    assert fleet.kubelets_account(namespace) == recorded
    fleet.bed.wait_for(lambda: fleet.agents_account(namespace) == recorded, "the agents to know all four")
    fleet.bed.wait_for(lambda: fleet.locks_account(namespace) == recorded, "the lock to know all four")
    finish(fleet, namespace, "shared-gpus")


def test_a_job_with_gpu_memory_goes_all_the_way(fleet: Fleet, namespace: str) -> None:
    """Four pods with 6000 MiB of a 16 GiB card each: two fit on a card, so both nodes are needed."""
    limit_mib = 6000
    fleet.baton.apply(namespace, working_job("gpu-memory.yaml", **{"volcano.sh/vgpu-memory": limit_mib}))
    pods = started_together(fleet, namespace, "gpu-memory")
    recorded = []
    for pod in pods:
        ((share,),) = card_annotations.assigned_shares(pod["metadata"]["annotations"][card_annotations.ASSIGNED])
        assert share.memory_mib == limit_mib
        assert pod["metadata"]["annotations"][card_annotations.ASSIGNED_NODE] == pod["spec"]["nodeName"]
        recorded.append(Holder(pod["metadata"]["name"], pod["spec"]["nodeName"], share.card))
    assert sorted(holder.card for holder in recorded) == sorted(2 * [node.cards[1] for node in fleet.nodes.values()])
    for holder in recorded:
        report = works(fleet, namespace, holder.pod)
        assert (report["card"], report["cards"]) == (raw(holder.card), 1)
        assert report["total_mib"] == limit_mib, "the program sees its part of the card as the whole"
    assert fleet.baton.scheduled_cards(namespace) == {holder.pod: [holder.card] for holder in recorded}
    assert fleet.kubelets_account(namespace) == recorded
    fleet.bed.wait_for(lambda: fleet.agents_account(namespace) == recorded, "the agents to know all four")
    fleet.bed.wait_for(lambda: fleet.locks_account(namespace) == recorded, "the lock to know all four")
    limits = {
        c["memory_limit_bytes"]
        for n in fleet.nodes
        for c in fleet.lock_status(n)["clients"]
        if c["namespace"] == namespace
    }
    assert limits == {limit_mib << 20}
    finish(fleet, namespace, "gpu-memory")
