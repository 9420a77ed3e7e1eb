"""The device plugin API for one resource: five calls, each answered quickly.

Kubelet admits pods one at a time and sets no deadline on GetPreferredAllocation and Allocate, so a plugin that hangs
stops the node. Every request to another program (the lock daemon, the API server) has a limit and a fallback. Allocate
fails only if it must: a slot does not exist, or kubelet's choice breaks a rule of the configuration. That fails the pod
for good, so the error is written for the reader of the pod's status.

`Board` holds the present offer; it outlives the servers, which come and go with kubelet's registrations.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc
import structlog

from baton.agent.kubelet.preference_request import PreferenceReader
from baton.agent.offers.offers import Offer, Role
from baton.agent.offers.slot_choice import CardLoad, Policy, prefer, violation
from baton.agent.offers.slots import SlotId
from baton.agent.proto import deviceplugin_pb2 as api
from baton.gpu.containers import ContainerEdits
from baton.model.ids import CardId

_log = structlog.get_logger("baton.agent")

RECEIVE_LIMIT_BYTES = 64 * 1024 * 1024
"""GetPreferredAllocation carries every available id; gRPC's default of 4 MiB is too small for large nodes."""


class Advisors(Protocol):
    """Answers the plugin's questions. No answer takes long, and none raises."""

    async def loads(self) -> Mapping[CardId, CardLoad] | None:
        """Real load per card; None if it is not known in time."""

    async def chosen_cards(self, offer: Offer, size: int) -> Sequence[CardId]:
        """The cards that the scheduler chose for the container that kubelet is admitting; empty if it chose none."""

    def answer(self, offer: Offer, slots: Sequence[str]) -> ContainerEdits:
        """What a container gets for these slots."""

    def allocated(self, offer: Offer, slots: Sequence[str]) -> None:
        """Called after a successful Allocate."""

    async def start_refusal(self, offer: Offer, slots: Sequence[str]) -> str:
        """Why a container with these slots must not start; empty if it may."""


class Board:
    """The present offer of one resource, which any number of streams may follow."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.unhealthy: frozenset[CardId] = frozenset()
        self.revision = 0
        self._changed = asyncio.Event()
        self._message: tuple[int, bytes] | None = None

    def show(self, offer: Offer | None = None, unhealthy: frozenset[CardId] | None = None) -> bool:
        """Change the offer; streams send the new list only if it differs."""
        new_offer = offer if offer is not None else self.offer
        new_unhealthy = unhealthy if unhealthy is not None else self.unhealthy
        relevant = new_unhealthy & frozenset(new_offer.terms)
        same = new_offer is self.offer and relevant == self.unhealthy & frozenset(self.offer.terms)
        self.offer, self.unhealthy = new_offer, new_unhealthy
        if same:
            return False
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def changed_since(self, revision: int) -> None:
        """Wait for a revision newer than `revision`."""
        while self.revision == revision:
            await self._changed.wait()

    def message(self) -> bytes:
        """The list as kubelet reads it, encoded once per revision."""
        if self._message is None or self._message[0] != self.revision:
            devices = []
            for card in self.offer.pool.cards:
                health = "Unhealthy" if card.card in self.unhealthy else "Healthy"
                topology = None
                if card.numa_node is not None:
                    topology = api.TopologyInfo(nodes=[api.NUMANode(ID=card.numa_node)])
                devices += [api.Device(ID=slot, health=health, topology=topology) for slot in card.slots]
            self._message = (self.revision, api.ListAndWatchResponse(devices=devices).SerializeToString())
        return self._message[1]


StreamWatcher = Callable[[int, bool], None]
"""Called with the number of a stream and whether it is open."""

_stream_numbers = itertools.count(1)


class PluginService:
    """The calls of one server. Each server has its own service, which separates the streams of servers."""

    def __init__(self, board: Board, advisors: Advisors, watch_streams: StreamWatcher) -> None:
        self._board = board
        self._advisors = advisors
        self._watch_streams = watch_streams
        self._reader = PreferenceReader(board.offer.pool)
        self._closing = asyncio.Event()
        self._open = 0
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    @property
    def options(self) -> api.DevicePluginOptions:
        """Sent in Register and in GetDevicePluginOptions: old kubelets read only the former, new ones the latter."""
        return plugin_options(self._board.offer)

    async def close_streams(self) -> None:
        """End every stream on the server's side, and wait until they have ended."""
        self._closing.set()
        await self._all_closed.wait()

    async def get_options(self, _request: api.Empty, _context: Any) -> api.DevicePluginOptions:
        return self.options

    async def list_and_watch(self, _request: api.Empty, _context: Any) -> AsyncIterator[bytes]:
        stream = next(_stream_numbers)
        self._open += 1
        self._all_closed.clear()
        self._watch_streams(stream, True)
        try:
            while not self._closing.is_set():
                revision = self._board.revision
                yield self._board.message()
                await _first_of(self._board.changed_since(revision), self._closing.wait())
        finally:
            self._watch_streams(stream, False)
            self._open -= 1
            if not self._open:
                self._all_closed.set()

    async def get_preferred_allocation(self, content: bytes, _context: Any) -> api.PreferredAllocationResponse:
        offer = self._board.offer
        if self._reader.pool is not offer.pool:
            self._reader = PreferenceReader(offer.pool)
        asking = asyncio.ensure_future(self._loads(offer))
        await asyncio.sleep(0)  # The lock daemon answers while the request is decoded.
        requests = self._reader.read(content)
        loads = await asking
        responses = []
        for request in requests:
            chosen = await self._advisors.chosen_cards(offer, request.size) if offer.role is Role.CARDS else ()
            slots = prefer(offer.policy, offer.pool, request, loads, chosen)
            responses.append(api.ContainerPreferredAllocationResponse(deviceIDs=slots))
        return api.PreferredAllocationResponse(container_responses=responses)

    async def _loads(self, offer: Offer) -> Mapping[CardId, CardLoad] | None:
        return await self._advisors.loads() if offer.policy is Policy.LOAD else None

    async def allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        offer = self._board.offer
        responses = []
        for asked in request.container_requests:
            slots = list(asked.devices_ids)
            if problem := violation(offer.policy, offer.pool, slots, offer.max_per_container):
                _log.warning("allocation refused", resource=offer.name, slots=sorted(slots), reason=problem)
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{offer.name}: {problem}")
            responses.append(_message(self._advisors.answer(offer, slots)))
        for asked in request.container_requests:
            _log.info("allocated", resource=offer.name, slots=sorted(asked.devices_ids))
            self._advisors.allocated(offer, [SlotId(slot) for slot in asked.devices_ids])
        return api.AllocateResponse(container_responses=responses)

    async def pre_start_container(
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        offer = self._board.offer
        refusal = await self._advisors.start_refusal(offer, list(request.devices_ids))
        if refusal:
            _log.warning("start refused", resource=offer.name, slots=sorted(request.devices_ids), reason=refusal)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{offer.name}: {refusal}")
        return api.PreStartContainerResponse()

    def handlers(self) -> Any:
        """The service for a gRPC server."""
        calls = {
            "GetDevicePluginOptions": (self.get_options, api.Empty),
            "Allocate": (self.allocate, api.AllocateRequest),
            "PreStartContainer": (self.pre_start_container, api.PreStartContainerRequest),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=kind.FromString, response_serializer=_serialize
            )
            for name, (method, kind) in calls.items()
        }
        methods["GetPreferredAllocation"] = grpc.unary_unary_rpc_method_handler(
            self.get_preferred_allocation, request_deserializer=None, response_serializer=_serialize
        )
        methods["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self.list_and_watch, request_deserializer=api.Empty.FromString, response_serializer=None
        )
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)


def plugin_options(offer: Offer) -> api.DevicePluginOptions:
    """Only offers of cards have a preference, and a check before a container starts."""
    cards = offer.role is Role.CARDS
    return api.DevicePluginOptions(get_preferred_allocation_available=cards, pre_start_required=cards)


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _message(edits: ContainerEdits) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(edits.environment),
        mounts=[
            api.Mount(host_path=mount.host_path, container_path=mount.container_path, read_only=mount.read_only)
            for mount in edits.mounts
        ],
        devices=[
            api.DeviceSpec(host_path=node.path, container_path=node.path, permissions=node.permissions)
            for node in edits.device_nodes
        ],
        cdi_devices=[api.CDIDevice(name=name) for name in edits.cdi_devices],
    )


async def _first_of(*waits: Awaitable[Any]) -> None:
    """Wait for the first to end; the others are cancelled, also if this call is cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
