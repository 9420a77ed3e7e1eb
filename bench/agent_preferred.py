"""GetPreferredAllocation over a socket, 16 cards x 1,000 slots: time and CPU of both ends, against an empty answer.

Kubelet lists the free slots in the order of a Go map, so the order here is random, too. Policy `load` queries a real
lock daemon about the cards in every call, with clients on most of them; the last two cases are a daemon that hangs and
one that is gone.
"""

import asyncio
import logging
import os
import random
import signal
import statistics
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import structlog

from baton.agent import config as configuration
from baton.agent.kubelet.plugin import RECEIVE_LIMIT_BYTES, Board, PluginService
from baton.agent.node.lock_port import LockClient
from baton.agent.offers.offers import Offer, plan
from baton.agent.offers.slot_choice import CardLoad, Policy
from baton.agent.proto import deviceplugin_pb2 as api
from baton.gpu.cards import Card
from baton.gpu.containers import ContainerEdits
from baton.gpu.nvidia import NVIDIA
from baton.model.ids import CardId
from bench._lock import ASK, Client, daemon

_CARDS, _SLOTS, _SIZE, _ROUNDS = 16, 1000, 4, 40
_METHOD = "/v1beta1.DevicePlugin/GetPreferredAllocation"


_UUIDS = [uuid.UUID(int=index + 1) for index in range(_CARDS)]


class _Advisors:
    """Advisors that know only the load."""

    def __init__(self, sockets: Path) -> None:
        self._lock = LockClient(sockets, tuple, configuration.Lock().load_limit_s)
        self.answers = 0

    async def loads(self) -> Mapping[CardId, CardLoad] | None:
        loads = await self._lock.loads()
        self.answers += loads is not None
        return loads

    async def chosen_cards(self, _offer: Offer, _size: int) -> Sequence[CardId]:
        return ()

    def answer(self, _offer: Offer, _slots: Sequence[str]) -> ContainerEdits:
        return ContainerEdits()

    def allocated(self, _offer: Offer, _slots: Sequence[str]) -> None:
        pass

    async def start_refusal(self, _offer: Offer, _slots: Sequence[str]) -> str:
        return ""


def _offer(policy: Policy) -> Offer:
    cards = tuple(
        Card(
            CardId(f"GPU-{own}"), index, NVIDIA.name, "Tesla T4", 16384, (7, 5), "", index // 8,
            tuple(CardId(f"GPU-{peer}") for peer in _UUIDS[index % 2 :: 2] if peer != own),
        )
        for index, own in enumerate(_UUIDS)
    )  # fmt: skip
    text = f"resources: [{{name: nvshare.com/gpu, replicas: {_SLOTS}, policy: {policy.value}}}]"
    return plan(configuration.parse(text), cards)[0]


class _Cost(NamedTuple):
    cpu_ms: float
    """Of both ends together, the minimum, because other programs may load the machine."""
    wall_ms: float
    """The median, as seen by kubelet."""


async def _cost(handlers: Any, request: api.PreferredAllocationRequest, path: Path) -> _Cost:
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES),))
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    content = request.SerializeToString()
    cpu_s, wall_s = [], []
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call = channel.unary_unary(_METHOD)
        for _ in range(_ROUNDS):
            began_cpu_s, began_s = time.process_time(), time.perf_counter()
            await call(content)
            cpu_s.append(time.process_time() - began_cpu_s)
            wall_s.append(time.perf_counter() - began_s)
    await server.stop(None)
    return _Cost(min(cpu_s) * 1000, statistics.median(wall_s) * 1000)


def _empty_handlers() -> Any:
    async def empty(_request: bytes, _context: Any) -> bytes:
        return b""

    return grpc.method_handlers_generic_handler(
        "v1beta1.DevicePlugin", {"GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(empty)}
    )


async def _run(sockets: Path, lockd: int) -> None:
    advisors = _Advisors(sockets)
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        slots = list(_offer(Policy.SPREAD).pool.slots)
        random.Random(1).shuffle(slots)
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(available_deviceIDs=slots, allocation_size=_SIZE)
            ]
        )
        bare = await _cost(_empty_handlers(), request, Path(folder) / "bare.sock")
        print(f"same bytes, empty answer   CPU {bare.cpu_ms:5.2f} ms         wall {bare.wall_ms:5.2f} ms")
        for policy in Policy:
            service = PluginService(Board(_offer(policy)), advisors, lambda _stream, _open: None)
            ours = await _cost(service.handlers(), request, Path(folder) / f"{policy}.sock")
            ratio = ours.cpu_ms / bare.cpu_ms
            print(
                f"{policy.value:26} CPU {ours.cpu_ms:5.2f} ms {ratio:5.1f}x  wall {ours.wall_ms:5.2f} ms  (budget 5 ms)"
            )
        print(f"the lock daemon answered {advisors.answers} of {_ROUNDS} queries within its limit")
        limit_ms = 1000 * configuration.Lock().load_limit_s
        for state, number in (("hanging", signal.SIGSTOP), ("killed", signal.SIGKILL)):
            os.kill(lockd, number)
            service = PluginService(Board(_offer(Policy.LOAD)), advisors, lambda _stream, _open: None)
            ours = await _cost(service.handlers(), request, Path(folder) / f"{state}.sock")
            named = f"load, lock daemon {state}"
            print(f"{named:26}                        wall {ours.wall_ms:5.2f} ms  (limit {limit_ms:.0f} + 5 ms)")


def run() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with daemon() as (lockd, sockets):
        clients = [Client(sockets, card.bytes) for index, card in enumerate(_UUIDS) for _ in range(index % 3)]
        for client in clients:
            client.socket.sendall(ASK)
        asyncio.run(_run(sockets, lockd))
        for client in clients:
            client.socket.close()
