"""A kubelet in this process that a device plugin cannot tell from the real one, with its known weaknesses.

It answers Register by connecting back and asking for the options, opens ListAndWatch once and never again, reads at
most 4 MiB, deletes every socket when it starts, and disconnects the present client of a resource when an old stream
ends. Pods are admitted one at a time, with devices chosen as kubelet does (`Chooser`); answers are stored and replayed.
It also serves `plugins_registry` and PodResources. Its calls have kubelet's deadlines, because a call to a stopping
server may never be answered.
"""

import asyncio
import contextlib
import random
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from baton.agent.kubelet.endpoint import mark
from baton.agent.offers.slots import SlotId
from baton.agent.proto import deviceplugin_pb2 as api
from baton.agent.proto import pluginregistration_pb2 as registry
from baton.agent.proto import podresources_pb2 as pods
from tests.agent.fake_kubelet import Chooser, NotEnoughError

_PREFIX = "/v1beta1.DevicePlugin/"
_CONNECT_LIMIT_S = 10.0
_INFO_LIMIT_S = 1.0
_NOTIFY_LIMIT_S = 5.0


class AdmissionError(Exception):
    """The pod failed admission; kubelet never retries it."""


class Client:
    """Kubelet's connection to one plugin."""

    def __init__(self, path: Path) -> None:
        self.channel = grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),))
        self.task: asyncio.Task[None] | None = None

    async def call(self, method: str, request: Any, answer: Any) -> Any:
        stub = self.channel.unary_unary(
            _PREFIX + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await stub(request)

    async def disconnect(self) -> None:
        await self.channel.close()


class Kubelet:
    """One node's kubelet. Directories survive restarts, as on a disk."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self.directory = directory
        self.plugins = directory / "device-plugins"
        self.registry = directory / "plugins_registry"
        self.chance = random.Random(seed)
        self.clients: dict[str, Client] = {}
        self.books: dict[str, Chooser] = {}
        self.capacity: dict[str, int] = {}
        self.options: dict[str, api.DevicePluginOptions] = {}
        self.registrations: list[api.RegisterRequest] = []
        self.lists: dict[str, list[dict[str, str]]] = {}
        self.pods: dict[tuple[str, str], dict[str, tuple[list[SlotId], api.ContainerAllocateResponse]]] = {}
        self.refuse = ""
        self.open_streams = 0
        self.most_streams = 0
        self._servers: list[Any] = []
        self._changed = asyncio.Condition()
        self._scanner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for folder in (self.plugins, self.registry, self.directory / "pod-resources"):
            folder.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.iterdir():
            if stat.S_ISSOCK(path.stat().st_mode):
                path.unlink()
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=api.RegisterRequest.FromString,
            response_serializer=api.Empty.SerializeToString,
        )
        lister = grpc.unary_unary_rpc_method_handler(
            self._list_pods,
            request_deserializer=pods.ListPodResourcesRequest.FromString,
            response_serializer=pods.ListPodResourcesResponse.SerializeToString,
        )
        for path, service, methods in (
            (self.plugins / "kubelet.sock", "v1beta1.Registration", {"Register": register}),
            (self.directory / "pod-resources" / "kubelet.sock", "v1.PodResourcesLister", {"List": lister}),
        ):
            path.unlink(missing_ok=True)
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            self._servers.append(server)
        self._scanner = asyncio.create_task(self._scan_registry())

    async def stop(self) -> None:
        if self._scanner:
            self._scanner.cancel()
            await asyncio.gather(self._scanner, return_exceptions=True)
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        for client in list(self.clients.values()):
            await self._end(client)
        self.clients.clear()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Wait until something that kubelet knows is so."""
        async with asyncio.timeout(limit_s), self._changed:
            await self._changed.wait_for(condition)

    def allocatable(self, resource: str) -> int:
        return len(self.books[resource].healthy) if resource in self.books else 0

    async def cancel_stream(self, resource: str) -> None:
        """What the end of another plugin's old stream does to the present one."""
        await self._end(self.clients.pop(resource))

    async def admit(
        self,
        pod: str,
        requests: dict[str, dict[str, int]],
        init: dict[str, dict[str, int]] | None = None,
    ) -> dict[str, dict[str, api.ContainerAllocateResponse]]:
        """Admit one pod (container → resource → count); init containers' devices are reused by later containers."""
        reusable: dict[str, set[SlotId]] = {}
        answers: dict[str, dict[str, api.ContainerAllocateResponse]] = {}
        for containers, is_init in ((init or {}, True), (requests, False)):
            for container, wanted in containers.items():
                answers[container] = {}
                for resource, count in wanted.items():
                    pool = reusable.setdefault(resource, set())
                    ids, answer = await self._allocate(resource, count, pool)
                    answers[container][resource] = answer
                    if is_init:
                        pool.update(ids)
                    else:
                        pool.difference_update(ids)
                        self.pods.setdefault(("default", pod), {})[f"{container}/{resource}"] = (ids, answer)
        for resource, leftover in reusable.items():
            if ("default", pod) in self.pods:
                self.books[resource].release(leftover)
        return answers

    async def _allocate(
        self, resource: str, count: int, reusable: set[SlotId]
    ) -> tuple[list[SlotId], api.ContainerAllocateResponse]:
        if resource not in self.clients or not self.allocatable(resource):
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        client, book = self.clients[resource], self.books[resource]
        question: list[Any] = []

        async def asked() -> list[SlotId]:
            try:
                reply = await client.call("GetPreferredAllocation", question[0], api.PreferredAllocationResponse)
            except grpc.aio.AioRpcError as error:
                raise AdmissionError(error.details()) from None
            return [SlotId(slot) for slot in reply.container_responses[0].deviceIDs]

        # `Chooser` is synchronous; the first pass finds the question, the second one hands it the answer.
        class Question(Exception):  # noqa: N818  # not an error
            pass

        def note(available: list[SlotId], must: list[SlotId], size: int) -> list[SlotId]:
            question.append(
                api.PreferredAllocationRequest(
                    container_requests=[
                        api.ContainerPreferredAllocationRequest(
                            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
                        )
                    ]
                )
            )
            raise Question

        state = self.chance.getstate()
        try:
            try:
                ids = book.admit(count, note, reusable)
            except Question:
                preferred = await asked() if self.options[resource].get_preferred_allocation_available else []
                self.chance.setstate(state)
                ids = book.admit(count, lambda *_: preferred, reusable)
        except NotEnoughError as error:
            raise AdmissionError(f"{error} of {resource}") from None
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=book.shuffled(ids))])
        try:
            reply = await client.call("Allocate", request, api.AllocateResponse)
        except grpc.aio.AioRpcError as error:
            book.release(set(ids) - reusable)
            raise AdmissionError(error.details()) from None
        return ids, reply.container_responses[0]

    def delete(self, pod: str) -> None:
        for key, (ids, _) in self.pods.pop(("default", pod)).items():
            self.books[key.partition("/")[2]].release(ids)

    async def _register(self, request: api.RegisterRequest, context: Any) -> api.Empty:
        if self.refuse or request.version != "v1beta1":
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuse or f"unsupported version {request.version}")
        self.registrations.append(request)
        await self._connect(request.resource_name, self.plugins / request.endpoint, context)
        return api.Empty()

    async def _connect(self, resource: str, endpoint: Path, context: Any) -> None:
        client = Client(endpoint)
        try:
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                options = await client.call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            await client.disconnect()
            if context is None:
                raise
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error}")
        self.options[resource] = options
        self.clients[resource] = client  # newest wins; whether the former one lives is not asked
        client.task = asyncio.create_task(self._follow(resource, client))

    async def _follow(self, resource: str, client: Client) -> None:
        self.open_streams += 1
        self.most_streams = max(self.most_streams, self.open_streams)
        stub = client.channel.unary_stream(
            _PREFIX + "ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        try:
            async for message in stub(api.Empty()):
                await self._learn(resource, {device.ID: device.health for device in message.devices})
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        finally:
            self.open_streams -= 1
        # The weakness: by name, not by identity, so the end of an old stream hits a newer client.
        current = self.clients.pop(resource, None)
        if current is not None:
            await current.disconnect()
        if resource in self.books:
            self.books[resource].healthy.clear()
        async with self._changed:
            self._changed.notify_all()

    async def _learn(self, resource: str, devices: dict[str, str]) -> None:
        book = self.books.setdefault(resource, Chooser((), self.chance))
        book.healthy = {SlotId(slot) for slot, health in devices.items() if health == "Healthy"}
        self.capacity[resource] = len(devices)
        self.lists.setdefault(resource, []).append(devices)
        async with self._changed:
            self._changed.notify_all()

    async def _end(self, client: Client) -> None:
        await client.disconnect()
        if client.task is not None:
            await asyncio.gather(client.task, return_exceptions=True)

    async def _scan_registry(self) -> None:
        known: dict[Path, tuple[tuple[int, int], str]] = {}
        while True:
            found = {path: mark(path) for path in self.registry.iterdir() if path.suffix == ".sock"}
            for path, (seen, resource) in list(known.items()):
                if found.get(path) != seen:
                    # Again by name: whatever client the resource has by now.
                    del known[path]
                    if client := self.clients.pop(resource, None):
                        await self._end(client)
            for path, now in found.items():
                if now is not None and path not in known:
                    # A socket that does not answer is asked again at the next look.
                    with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
                        known[path] = (now, await self._ask_registrar(path))
            await asyncio.sleep(0.05)

    async def _ask_registrar(self, path: Path) -> str:
        async with grpc.aio.insecure_channel(
            f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            info = await channel.unary_unary(
                "/pluginregistration.Registration/GetInfo",
                request_serializer=registry.InfoRequest.SerializeToString,
                response_deserializer=registry.PluginInfo.FromString,
            )(registry.InfoRequest(), timeout=_INFO_LIMIT_S)
            assert info.type == "DevicePlugin"
            assert list(info.supported_versions) == ["v1beta1"]
            await self._connect(info.name, Path(info.endpoint), None)
            notify = channel.unary_unary(
                "/pluginregistration.Registration/NotifyRegistrationStatus",
                request_serializer=registry.RegistrationStatus.SerializeToString,
                response_deserializer=registry.RegistrationStatusResponse.FromString,
            )
            try:
                await notify(registry.RegistrationStatus(plugin_registered=True), timeout=_NOTIFY_LIMIT_S)
            except grpc.aio.AioRpcError:
                if client := self.clients.pop(info.name, None):
                    await self._end(client)
                raise
        return str(info.name)

    async def _list_pods(self, _request: Any, _context: Any) -> pods.ListPodResourcesResponse:
        listed = []
        for (namespace, name), held in self.pods.items():
            containers: dict[str, list[Any]] = {}
            for key, (ids, _) in held.items():
                container, _, resource = key.partition("/")
                # One entry per device, as kubelet has it.
                containers.setdefault(container, []).extend(
                    pods.ContainerDevices(resource_name=resource, device_ids=[slot]) for slot in ids
                )
            listed.append(
                pods.PodResources(
                    name=name,
                    namespace=namespace,
                    containers=[pods.ContainerResources(name=c, devices=d) for c, d in containers.items()],
                )
            )
        return pods.ListPodResourcesResponse(pod_resources=listed)


@contextlib.asynccontextmanager
async def running(directory: Path, seed: int = 0) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(directory, seed)
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
