"""What the agent writes to an API server and reads from it, with an API server of a few lines."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from baton.agent.cluster.cluster import CONDITION, ClusterSide
from baton.agent.daemon import Agent
from baton.agent.node.lock_port import LockClient
from baton.kube.client import Client
from baton.kube.kubeconfig import Access
from baton.lock.config import Config
from baton.lock.daemon.daemon import LockDaemon
from baton.lock.paths import Paths
from baton.lock.telemetry import CardInfo, NoTelemetry
from baton.model.ids import CardId
from baton.model.ids import CardId as LockCardId
from tests.agent.agents import Cards, config_text, running
from tests.agent.kubelet_server import Kubelet

NUMBER = "volcano.sh/vgpu-number"
VGPU = f"[{{name: {NUMBER}, kind: vgpu, memory-unit-mib: 1024}}]"


class ApiServer:
    """One node and its pods; records the requested changes."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.pods: list[dict[str, Any]] = []
        self.conditions: dict[str, dict[str, Any]] = {}
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        """Patches of the condition."""
        self.written: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        """Patches of pods."""
        self.annotations: dict[str, str] = {}
        self.version = 1
        self.in_between = 0
        """How often another client changes the node before it is patched."""

    async def node(self, _request: web.Request) -> web.Response:
        status = {"conditions": list(self.conditions.values())}
        metadata = {"name": "node-1", "uid": "n", "annotations": self.annotations, "resourceVersion": str(self.version)}
        return web.json_response({"metadata": metadata, "status": status})

    async def patch_node(self, request: web.Request) -> web.Response:
        metadata = (await request.json())["metadata"]
        if self.in_between and "resourceVersion" in metadata:
            self.in_between -= 1
            self.version += 1
        if metadata.get("resourceVersion", str(self.version)) != str(self.version):
            return web.json_response({"code": 409, "reason": "Conflict", "message": "changed"}, status=409)
        self.version += 1
        for name, value in metadata.get("annotations", {}).items():
            self.annotations.pop(name, None)
            if value is not None:
                self.annotations[name] = value
        return await self.node(request)

    async def patch_condition(self, request: web.Request) -> web.Response:
        (condition,) = (await request.json())["status"]["conditions"]
        self.conditions.setdefault(condition["type"], {}).update(condition)
        self.told.put_nowait(condition)
        return await self.node(request)

    async def list_or_watch(self, request: web.Request) -> web.StreamResponse:
        if not request.query.get("watch"):
            return web.json_response({"metadata": {"resourceVersion": "9"}, "items": self.pods})
        response = web.StreamResponse()
        await response.prepare(request)
        await self.closing.wait()
        return response

    async def patch_pod(self, request: web.Request) -> web.Response:
        self.written.put_nowait(await request.json())
        return web.json_response({"metadata": {"name": "pod", "namespace": "ml", "uid": "uid-1"}})

    def add_pod(self, annotations: dict[str, str]) -> None:
        metadata = {"name": "pod", "namespace": "ml", "uid": "uid-1", "resourceVersion": "1"}
        self.pods.append(
            {
                "metadata": {**metadata, "annotations": annotations},
                "spec": {"containers": [{"name": "main", "resources": {"limits": {NUMBER: "1"}}}]},
            }
        )


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def connected(
    directory: Path, server: ApiServer, cards: Cards | None = None, resources: str = VGPU, api: str = "{}"
) -> AsyncIterator[tuple[Agent, Kubelet]]:
    """An agent that follows this API server. The block has a time limit, because defects here show as waiting."""
    application = web.Application()
    application.router.add_get("/api/v1/nodes/node-1", server.node)
    application.router.add_patch("/api/v1/nodes/node-1", server.patch_node)
    application.router.add_patch("/api/v1/nodes/node-1/status", server.patch_condition)
    application.router.add_get("/api/v1/pods", server.list_or_watch)
    application.router.add_patch("/api/v1/namespaces/ml/pods/pod", server.patch_pod)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    side = ClusterSide(Client(Access(server=f"http://{host}:{port}", context="test")))
    text = config_text(directory, resources, more=f"api: {api}")
    try:
        async with (
            asyncio.timeout(60),
            running(directory, cards or Cards(), text, companions=[side]) as (agent, kubelet),
        ):
            await kubelet.until(lambda: agent.ready and all(map(kubelet.allocatable, agent.endpoints)))
            yield agent, kubelet
    finally:
        server.closing.set()
        await runner.cleanup()


def record(directory: Path, uid: str, slot: str) -> None:
    """Kubelet's record of a slot that it has given out."""
    entry = {"PodUID": uid, "ContainerName": "main", "ResourceName": NUMBER, "DeviceIDs": {"-1": [slot]}}
    content = json.dumps({"Data": {"PodDeviceEntries": [entry]}})
    (directory / "device-plugins" / "kubelet_internal_checkpoint").write_text(content)


async def test_the_agent_does_not_wait_for_pods_that_it_does_not_watch(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_UNKNOWN_POD_LIMIT_S", "_UNKNOWN_START_LIMIT_S"):
        monkeypatch.setattr(f"baton.agent.cluster.cluster.{limit}", 3600.0)
    async with connected(directory, ApiServer(), api="{pods: false}") as (agent, kubelet):
        await kubelet.admit("pod", {"main": {NUMBER: 1}})
        record(directory, "uid-1", "GPU-0__1")
        assert await agent.start_refusal(agent.endpoints[NUMBER].board.offer, ["GPU-0__1"]) == ""


async def test_the_condition_has_the_time_of_its_last_change(directory: Path) -> None:
    server, cards = ApiServer(), Cards()
    async with connected(directory, server, cards) as (agent, _):
        first = await server.told.get()
        assert (first["type"], first["status"], "lastTransitionTime" in first) == (CONDITION, "True", True)
        async with agent.moved:
            agent.moved.notify_all()
        repeated = await server.told.get()
        assert (repeated["status"], "lastTransitionTime" in repeated) == ("True", False)
        cards.bad = {CardId("GPU-1"): "broken"}
        changed = await server.told.get()
        assert (changed["status"], "lastTransitionTime" in changed) == ("False", True)
        cards.bad = {CardId("GPU-1"): "broken in another way"}
        reason = await server.told.get()
        assert (reason["message"], "lastTransitionTime" in reason) == ("GPU-1: broken in another way", False)


async def test_annotations_are_not_written_on_another_pod_of_the_same_name(directory: Path) -> None:
    server = ApiServer()
    server.add_pod({"volcano.sh/vgpu-ids-new": "GPU-1,NVIDIA,1,0:"})
    async with connected(directory, server) as (agent, _):
        record(directory, "uid-1", "GPU-0__1")
        assert await agent.start_refusal(agent.endpoints[NUMBER].board.offer, ["GPU-0__1"]) == ""
        metadata = (await server.written.get())["metadata"]
        assert metadata["annotations"]["volcano.sh/vgpu-ids-new"] == "GPU-0,NVIDIA,1,0:"
        assert metadata["uid"] == "uid-1", "the API server refuses it for a pod that was made under the same name"


async def test_a_refused_container_that_starts_later_has_not_failed(directory: Path) -> None:
    server = ApiServer()
    server.add_pod({"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,1,0:", "volcano.sh/bind-phase": "failed"})
    async with connected(directory, server) as (agent, _):
        record(directory, "uid-1", "GPU-0__1")
        assert await agent.start_refusal(agent.endpoints[NUMBER].board.offer, ["GPU-0__1"]) == ""
        written = await server.written.get()
        assert written["metadata"]["annotations"] == {"volcano.sh/bind-phase": "success"}


@pytest.mark.parametrize(
    ("owner", "stays"),
    [
        (None, False),
        ("scheduler ml/pod", False),
        ("scheduler uid-1 ml/pod", False),
        ("scheduler uid-2 ml/pod", True),
        ("scheduler uid-2 ml/next", True),
    ],
    ids=["Volcano's", "no uid", "its own", "of another by its name", "of the next"],
)
async def test_only_the_pod_that_a_node_is_locked_for_unlocks_it(
    directory: Path, owner: str | None, stays: bool
) -> None:
    server = ApiServer()
    server.add_pod({"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,1,0:", "volcano.sh/bind-phase": "allocating"})
    lock = {"hamivgpu": "2026-01-01T00:00:00Z"} | ({"baton.dev/node-lock-owner": owner} if owner else {})
    server.annotations, server.in_between = dict(lock), 2
    async with connected(directory, server) as (agent, _):
        record(directory, "uid-1", "GPU-0__1")
        offer = agent.endpoints[NUMBER].board.offer
        (side,) = agent.companions
        settled: asyncio.Queue[None] = asyncio.Queue()
        real = side._record  # type: ignore[attr-defined]  # runs in the background; here its end is waited for

        async def recorded(*words: Any) -> None:
            await real(*words)
            settled.put_nowait(None)

        side._record = recorded  # type: ignore[attr-defined]  # the same, and says when it is done
        assert await agent.start_refusal(offer, ["GPU-0__1"]) == ""
        await settled.get()
        written = await server.written.get()
        assert written["metadata"]["annotations"] == {"volcano.sh/bind-phase": "success"}
        left = {name: value for name, value in server.annotations.items() if name in lock}
        assert left == (lock if stays else {})


async def test_unreadable_records_lift_no_limits(directory: Path) -> None:
    """For example, too many open files, or a kubelet with a new format."""
    server = ApiServer()
    server.add_pod({"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,1,0:"})
    lock = LockDaemon(Paths(directory / "lock"), Config(), NoTelemetry([CardInfo(LockCardId("GPU-0"), 16 << 30)]))
    async with connected(directory, server) as (agent, _):
        await lock.start()
        agent.lock = LockClient(directory / "lock", tuple, 1.0)
        offer = agent.endpoints[NUMBER].board.offer
        record(directory, "uid-1", "GPU-0__1")
        assert await agent.start_refusal(offer, ["GPU-0__1"]) == ""
        assert [rule.memory_bytes for rule in lock.rules] == [1 << 30]
        (directory / "device-plugins" / "kubelet_internal_checkpoint").write_text("v9")
        refusal = await agent.start_refusal(offer, ["GPU-0__1"])
        assert refusal.endswith(", so the limits of this container would not be in force")
        assert await agent.companions[0].chosen_cards(offer, 1) == ()
        assert [rule.memory_bytes for rule in lock.rules] == [1 << 30]
        await lock.stop()
