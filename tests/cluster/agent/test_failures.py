"""Plugins that fail on a real kubelet, by the names of Kubernetes' own node tests, and what comes after them.

The failing ones stand for an agent that is broken or of another make. What is shown is what kubelet does with them, on
which our life cycle is built, and that an agent that starts afterwards is used as if nothing had been.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import msgspec
import pytest

from baton.agent.kubelet.endpoint import LOCAL_CHANNEL
from baton.agent.kubelet.podresources import CHECKPOINT
from baton.agent.proto import deviceplugin_pb2 as api
from tests.cluster.agent.conftest import CARDS, CONFIG, GPU, SLOTS, AgentOnNode, GpuNode
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

DEVICES = ("device-1", "device-2")


class FailingPlugin:
    """A device plugin in this process, with a socket in the node's directory."""

    def __init__(self, node: GpuNode, *, options: bool = True, lists: bool = True) -> None:
        self._directory = node.node.path("/var/lib/kubelet/device-plugins")
        self._options = options
        self._lists = lists
        self.streams = 0
        self.fail = asyncio.Event()

    async def _get_options(self, _request: Any, context: Any) -> api.DevicePluginOptions:
        if not self._options:
            await context.abort(grpc.StatusCode.INTERNAL, "no options today")
        return api.DevicePluginOptions()

    async def _list_and_watch(self, _request: Any, context: Any) -> AsyncIterator[api.ListAndWatchResponse]:
        self.streams += 1
        if self._lists:
            yield api.ListAndWatchResponse(devices=[api.Device(ID=name, health="Healthy") for name in DEVICES])
            await self.fail.wait()
        await context.abort(grpc.StatusCode.INTERNAL, "no list any more")

    @contextlib.asynccontextmanager
    async def registered(self) -> AsyncIterator[str]:
        """Serve and register; what kubelet says to it, empty when it agrees."""
        methods = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                self._get_options, api.Empty.FromString, api.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list_and_watch, api.Empty.FromString, api.ListAndWatchResponse.SerializeToString
            ),
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
        server.add_insecure_port(f"unix:{self._directory}/failing.sock")
        await server.start()
        said = ""
        try:
            kubelet = f"unix:{self._directory}/kubelet.sock"
            async with grpc.aio.insecure_channel(kubelet, options=LOCAL_CHANNEL) as channel:
                register = channel.unary_unary(
                    "/v1beta1.Registration/Register", api.RegisterRequest.SerializeToString, api.Empty.FromString
                )
                request = api.RegisterRequest(version="v1beta1", endpoint="failing.sock", resource_name=GPU)
                try:
                    await register(request, timeout=60.0)
                except grpc.aio.AioRpcError as error:
                    said = str(error.details())
            yield said
        finally:
            self.fail.set()
            await server.stop(None)


def takes_over(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    """An agent that starts now is used."""
    agents()
    node.create("pod", SLOTS * CARDS)
    node.running("pod")
    node.audit()


def test_get_device_plugin_options_fails_and_the_plugin_is_not_used(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    async def course() -> None:
        plugin = FailingPlugin(node, options=False)
        async with plugin.registered() as said:
            assert "no options today" in said
        assert plugin.streams == 0

    asyncio.run(course())
    takes_over(node, agents)


def test_list_and_watch_fails_immediately_and_kubelet_does_not_retry(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    async def course() -> None:
        plugin = FailingPlugin(node, lists=False)
        async with plugin.registered() as said:
            assert said == ""
            await asyncio.to_thread(until, lambda: plugin.streams == 1)
            agent = await asyncio.to_thread(agents)
            await asyncio.to_thread(until, agent.registered)
            agent.process.kill()
            assert plugin.streams == 1, "kubelet waits for another registration"

    asyncio.run(course())
    takes_over(node, agents)


def test_list_and_watch_fails_after_provisioning_and_nothing_is_allocatable(
    node: GpuNode, agents: Callable[..., AgentOnNode]
) -> None:
    async def course() -> None:
        plugin = FailingPlugin(node)
        async with plugin.registered():
            await asyncio.to_thread(until, lambda: node.healthy_slots() == set(DEVICES))
            plugin.fail.set()
            await asyncio.to_thread(until, lambda: not node.healthy_slots())
            assert plugin.streams == 1

    asyncio.run(course())
    takes_over(node, agents)


def test_a_cdi_device_is_named_to_the_runtime(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    """Kubelet keeps the names for the runtime; one that knows CDI makes the device accessible by them."""
    folder = node.node.path("/var/run/cdi")
    folder.mkdir(parents=True, exist_ok=True)
    devices = [{"name": card, "containerEdits": {"env": [f"CDI_CARD={card}"]}} for card in node.cards]
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (folder / "nvidia.json").write_bytes(msgspec.json.encode(spec))
    agents(CONFIG + "\ndevice-list: cdi\n")
    node.create("pod")
    node.running("pod")
    environment = node.environment("pod")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void", "NVIDIA's runtime must not add the card a second time"
    kept = msgspec.json.decode((node.node.path("/var/lib/kubelet/device-plugins") / CHECKPOINT).read_bytes())
    uid = node.pod("pod")["metadata"]["uid"]
    (entry,) = [entry for entry in kept["Data"]["PodDeviceEntries"] if entry["PodUID"] == uid]
    answer = api.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    assert [device.name for device in answer.cdi_devices] == [f"nvidia.com/gpu={environment['BATON_CARDS']}"]
    if node.node.has_cdi:
        assert environment["CDI_CARD"] == environment["BATON_CARDS"]
