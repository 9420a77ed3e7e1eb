"""GetPreferredAllocation over a socket, 16 cards x 1,000 slots: CPU of both ends, against an empty answer."""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from baton.agent import config as configuration
from baton.agent.answers import Answer
from baton.agent.plugin import RECEIVE_LIMIT_BYTES, Board, PluginService
from baton.agent.policies import CardLoad, Policy
from baton.agent.proto import deviceplugin_pb2 as api
from baton.agent.resources import Offer, plan
from baton.gpu.cards import Card, CardId, Vendor

_CARDS, _SLOTS, _SIZE, _ROUNDS = 16, 1000, 4, 15
_METHOD = "/v1beta1.DevicePlugin/GetPreferredAllocation"


class _Nobody:
    """Advisors that have nothing to say."""

    async def loads(self) -> Mapping[CardId, CardLoad] | None:
        return {CardId(f"GPU-{index:036d}"): CardLoad(index % 3) for index in range(_CARDS)}

    async def chosen_cards(self, _offer: Offer, _size: int) -> Sequence[CardId]:
        return ()

    def answer(self, _offer: Offer, _slots: Sequence[str]) -> Answer:
        return Answer()

    def allocated(self, _offer: Offer, _slots: Sequence[str]) -> None:
        pass

    async def start_refusal(self, _offer: Offer, _slots: Sequence[str]) -> str:
        return ""


def _offer(policy: Policy) -> Offer:
    cards = tuple(
        Card(
            CardId(f"GPU-{index:036d}"), index, Vendor.NVIDIA, "Tesla T4", 16384, (7, 5), "", index // 8,
            tuple(CardId(f"GPU-{peer:036d}") for peer in range(_CARDS) if peer % 2 == index % 2 and peer != index),
        )
        for index in range(_CARDS)
    )  # fmt: skip
    text = f"resources: [{{name: nvshare.com/gpu, replicas: {_SLOTS}, policy: {policy.value}}}]"
    return plan(configuration.parse(text), cards)[0]


async def _measured_ms(handlers: Any, request: api.PreferredAllocationRequest, path: Path) -> float:
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES),))
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    content = request.SerializeToString()
    best_s = float("inf")  # of CPU time, both ends together: the machine may be busy with other things
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call = channel.unary_unary(_METHOD)
        for _ in range(_ROUNDS):
            began_s = time.process_time()
            await call(content)
            best_s = min(best_s, time.process_time() - began_s)
    await server.stop(None)
    return best_s * 1000


def _empty_handlers() -> Any:
    async def empty(_request: bytes, _context: Any) -> bytes:
        return b""

    return grpc.method_handlers_generic_handler(
        "v1beta1.DevicePlugin", {"GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(empty)}
    )


async def _run() -> None:
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        pool = _offer(Policy.SPREAD).pool
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(available_deviceIDs=list(pool.slots), allocation_size=_SIZE)
            ]
        )
        bare_ms = await _measured_ms(_empty_handlers(), request, Path(folder) / "bare.sock")
        print(f"same bytes, empty answer   {bare_ms:6.2f} ms")
        for policy in Policy:
            service = PluginService(Board(_offer(policy)), _Nobody(), lambda _stream, _open: None)
            ours_ms = await _measured_ms(service.handlers(), request, Path(folder) / f"{policy}.sock")
            print(f"{policy.value:26} {ours_ms:6.2f} ms  {ours_ms / bare_ms:.1f}x  (budget 5 ms)")


def run() -> None:
    asyncio.run(_run())
