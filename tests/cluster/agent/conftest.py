"""A real node with simulated cards and our agent on it.

`node` is the shared one, with no agent; `agents` starts agents on it that end with the test. Pods are bound to the node
directly, because these tests are about kubelet and the agent; the scheduler has its own.
"""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.agent.kubelet.endpoint import LOCAL_CHANNEL
from baton.agent.kubelet.podresources import PodResources
from baton.agent.kubelet.records import Holding
from baton.agent.offers.slots import card_of
from baton.agent.proto import podresources_pb2
from baton.agent.status import Status, ask
from baton.gpu import profiles, simulated
from baton.model.quantities import scaled
from testbed.bed import Bed, BedOptions
from testbed.errors import BedError
from testbed.images import BUSYBOX, WORKLOAD
from testbed.nodes import Node
from testbed.processes import Component, wait_until
from tests.cluster.agent.audit import LOOK, LockView, problems

REPOSITORY = Path(__file__).parents[3]
GPU = "nvshare.com/gpu"
CARDS = 2
SLOTS = 4
MACHINE = "/run/baton/simgpu"
END = "that is all"
TELL = f"env; echo {END}"
"""A container's environment line by line, and then that it is complete: a log may be read while it is written."""
CONFIG = """
resources:
  - name: nvshare.com/gpu
    replicas: 4
health: {settle-s: 0.1, heal-s: 0.3, probe-every-s: 0.2}
api: {enabled: false}
lock: {supervise: false}
"""


class GpuNode:
    """One real node of a bed, with simulated cards."""

    def __init__(self, bed: Bed, node: Node, namespace: str = "") -> None:
        self.bed = bed
        self.node = node
        self.namespace = namespace
        self._nudges = 0

    @property
    def machine(self) -> Path:
        return self.node.path(MACHINE)

    def furnish(self) -> None:
        """Put the cards in."""
        self.machine.parent.mkdir(parents=True, exist_ok=True)
        simulated.start([profiles.find("t4")] * CARDS, self.machine)

    @property
    def cards(self) -> list[str]:
        return [card.uuid for card in simulated.status(self.machine).cards]

    def inject(self, card: int, fault: str, **details: float) -> None:
        simulated.inject(self.machine, card, fault, **details)

    def create(
        self,
        name: str,
        count: int = 1,
        *,
        command: Sequence[str] = ("sh", "-c", f"{TELL}; exec sleep 3600"),
        image: str = BUSYBOX,
        resource: str = GPU,
        **spec: Any,
    ) -> None:
        """A pod with one container that asks for slots; `spec` replaces parts of it."""
        self.bed.api.create(
            f"/api/v1/namespaces/{self.namespace}/pods",
            {
                "metadata": {"name": name, **spec.pop("metadata", {})},
                "spec": {
                    "nodeName": self.node.name,
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 0,
                    "containers": [container("main", count, command=command, image=image, resource=resource)],
                    **spec,
                },
            },
        )

    def pod(self, name: str) -> dict[str, Any]:
        return self.bed.pod(self.namespace, name)

    def nudge(self, name: str) -> None:
        """Make kubelet look at a pod now, and not when its back-off ends: a change of any kind does it."""
        self._nudges += 1
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.bed.api.patch(path, {"metadata": {"annotations": {"example.com/nudge": str(self._nudges)}}})

    def running(self, name: str) -> dict[str, Any]:
        return self.bed.wait_for_pod(self.namespace, name, "Running")

    def failed(self, name: str) -> str:
        """The reason and message with which a pod failed."""
        status = self.bed.wait_for_pod(self.namespace, name, "Failed")["status"]
        return f"{status.get('reason', '')}: {status.get('message', '')}"

    def until_admitted(self, count: int) -> None:
        """A pod gets so many slots, in time: one that comes before kubelet has them to give fails for good."""
        attempts = itertools.count()

        def admitted() -> bool:
            name = f"next-{next(attempts)}"
            self.create(name, count)
            self.bed.wait_for(
                lambda: self.pod(name)["status"]["phase"] in ("Running", "Failed"), f"{name} to be admitted"
            )
            return bool(self.pod(name)["status"]["phase"] == "Running")

        self.bed.wait_for(admitted, f"a pod to get {count} slots", poll_s=1.0)

    def delete(self, name: str) -> None:
        self.bed.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}", grace_s=0)
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        self.bed.wait_for(lambda: not self.bed.api.exists(path), f"pod {name} to be gone")

    def log(self, name: str, container: str = "main") -> str:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?container={container}"
        text: str = self.bed.api.get(path)
        return text

    def environment(self, name: str, container: str = "main") -> dict[str, str]:
        """What the container printed of its environment first."""
        printed = ""

        def whole() -> bool:
            nonlocal printed
            printed = self.log(name, container)
            return END in printed

        self.bed.wait_for(whole, f"{name} to print its environment")
        return dict(line.split("=", 1) for line in printed.partition(END)[0].splitlines() if "=" in line)

    def holdings(self) -> list[Holding]:
        """What kubelet says that containers have of our main resource."""
        return [holding for holding in self.all_holdings() if holding.resource == GPU]

    def all_holdings(self) -> list[Holding]:
        found = asyncio.run(PodResources(self.node.path("/var/lib/kubelet")).holdings(30.0))
        if found is None:
            raise ConnectionError("kubelet's PodResources socket does not answer")
        return found

    def slots(self, name: str) -> frozenset[str]:
        """What kubelet says that a pod has."""
        held = [h.slots for h in self.holdings() if (h.namespace, h.pod) == (self.namespace, name)]
        return frozenset().union(*held)

    def healthy_cards(self) -> set[str]:
        """The cards that kubelet would give slots of."""
        return {card_of(slot) for slot in self.healthy_slots()}

    def healthy_slots(self) -> set[str]:
        """The slots that kubelet would give."""
        call, answer = "GetAllocatableResources", podresources_pb2.AllocatableResourcesResponse
        found = self.ask_pod_resources(call, podresources_pb2.AllocatableResourcesRequest(), answer)
        return {slot for entry in found.devices if entry.resource_name == GPU for slot in entry.device_ids}

    def ask_pod_resources(self, call: str, request: Any, answer: Any) -> Any:
        """A call of kubelet's PodResources that the agent itself does not make."""
        return asyncio.run(_ask(self.node.path("/var/lib/kubelet/pod-resources/kubelet.sock"), call, request, answer))

    def until_slots(self, name: str, slots: frozenset[str]) -> None:
        """After a restart kubelet lists a pod only when it has heard of it from the API server again."""
        self.bed.wait_for(lambda: self.slots(name) == slots, f"{name} to have {sorted(slots)}")

    def allocatable(self, resource: str = GPU) -> int:
        status = self.bed.api.get(f"/api/v1/nodes/{self.node.name}")["status"]
        return scaled(status["allocatable"].get(resource, 0))

    def capacity(self, resource: str = GPU) -> int:
        status = self.bed.api.get(f"/api/v1/nodes/{self.node.name}")["status"]
        return scaled(status["capacity"].get(resource, 0))

    def until_allocatable(self, count: int, resource: str = GPU) -> None:
        self.bed.wait_for(lambda: self.allocatable(resource) == count, f"{count} allocatable {resource}", 60.0)

    def audit(self) -> None:
        """Nothing is given twice or that is not there; kubelet, annotations and the lock agree."""
        pods = self.bed.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName={self.node.name}")["items"]
        plugins = self.node.path("/var/lib/kubelet/device-plugins")
        found = problems(self.all_holdings(), pods, plugins, self.lock_view(), self.machine)
        assert found == []

    def lock_view(self, card: str = "", turns: int = 0) -> LockView:
        """What the node's lock daemon says, after it has given a card's lock to one pod after the other this often."""
        words = [sys.executable, "-c", LOOK, "/run/baton/lock", card, str(turns)]
        told = self.node.run(words, environment={"PYTHONPATH": str(REPOSITORY)}, timeout_s=120)
        return msgspec.json.decode(told.stdout, type=LockView)

    def set_lock(self, card: str, **settings: str) -> None:
        """Steer the lock of one card."""
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self.node.run([sys.executable, "-m", "baton.cli.main", "lock", "set", "--gpu", card, *words])

    def restart_kubelet(self) -> None:
        self.node.kubelet.restart()
        self.node.kubelet.wait_ready()


class AgentOnNode:
    """One agent process in a node."""

    def __init__(self, node: GpuNode, config: str = CONFIG, name: str = "agent", machine: str = MACHINE) -> None:
        self.node = node
        folder = node.node.path("/var/lib/baton")
        folder.mkdir(parents=True, exist_ok=True)
        self.config_path = folder / f"{name}.yaml"
        self.socket = f"/run/baton/{name}.sock"
        self.write(config)
        libraries = simulated.environment(node.machine)[simulated.LIBRARY_PATH_VARIABLE]
        environment: Mapping[str, str] = {
            simulated.LIBRARY_PATH_VARIABLE: libraries.split(":")[0],
            simulated.DIRECTORY_VARIABLE: machine,
            "KUBECONFIG": str(node.bed.kubeconfig),
        }
        argv = [sys.executable, "-m", "baton.cli.main", "agent", "-v", "--node", node.node.name]
        argv += ["--config", f"/var/lib/baton/{name}.yaml"]
        self.process: Component = node.node.start_program(name, argv, environment=environment, is_ready=self.registered)

    def write(self, config: str) -> None:
        serving = f"\nserving: {{status-socket: {self.socket}, metrics-address: ''}}\n"
        self.config_path.write_text(config + serving)

    def status(self) -> Status:
        return asyncio.run(ask(self.node.node.path(self.socket), 60.0))

    def registered(self) -> bool:
        """Whether kubelet uses every resource of this agent."""
        with contextlib.suppress(Exception):
            return all(resource.state == "serving" for resource in self.status().resources)
        return False

    def metrics(self) -> dict[tuple[str, str], float]:
        """The metrics of containers: metric and pod to the sum of its values."""
        page = asyncio.run(_page(self.node.node.path(self.socket), "metrics"))
        found: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if "pod" in sample.labels:
                    key = (sample.name, sample.labels["pod"])
                    found[key] = found.get(key, 0.0) + sample.value
        return found

    def until_registered(self) -> None:
        if not wait_until(self.registered, 60.0):
            raise BedError(f"the agent is not registered: {self.status()}")


async def _page(socket: Path, name: str) -> str:
    connector = aiohttp.UnixConnector(str(socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"http://agent/{name}") as response:
        return await response.text()


async def _ask(socket: Path, call: str, request: Any, answer: Any) -> Any:
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=LOCAL_CHANNEL) as channel:
        stub = channel.unary_unary(
            f"/v1.PodResourcesLister/{call}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await stub(request, timeout=30.0)


def container(
    name: str,
    count: int = 1,
    *,
    command: Sequence[str] = ("sh", "-c", f"{TELL}; exec sleep 3600"),
    image: str = BUSYBOX,
    resource: str = GPU,
    **more: Any,
) -> dict[str, Any]:
    limits = {resource: str(count)} if count else {}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"limits": limits},
        **more,
    }


@pytest.fixture(scope="session")
def agent_bed(needs_kubelets: None) -> Iterator[Bed]:
    """A bed whose node these tests may break."""
    options = BedOptions(
        kubelets=1,
        controller_manager=True,
        scheduler=True,
        images=(BUSYBOX, WORKLOAD),
        # Without a kube-proxy the address of a Service leads nowhere; the API server calls what is behind it.
        api_server_flags=("--enable-aggregator-routing=true",),
    )
    with Bed(options) as bed:
        GpuNode(bed, bed.nodes["node-1"]).furnish()
        yield bed


@pytest.fixture
def node(agent_bed: Bed) -> Iterator[GpuNode]:
    """The node with healthy cards and nobody on them; a namespace for the test."""
    with agent_bed.namespace("agent") as namespace:
        found = GpuNode(agent_bed, agent_bed.nodes["node-1"], namespace)
        for card in range(CARDS):
            found.inject(card, "heal")
        agent_bed.wait_for(lambda: not found.all_holdings(), "the slots of earlier tests to be free")
        yield found


@pytest.fixture
def agents(node: GpuNode) -> Iterator[Callable[..., AgentOnNode]]:
    """Starts agents that end with the test."""
    started: list[AgentOnNode] = []

    def start(config: str = CONFIG, name: str = "agent", machine: str = MACHINE) -> AgentOnNode:
        agent = AgentOnNode(node, config, name, machine)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        agent.process.kill()


@pytest.fixture
def agent(agents: Callable[..., AgentOnNode]) -> AgentOnNode:
    """One agent with two cards of four slots."""
    return agents()
