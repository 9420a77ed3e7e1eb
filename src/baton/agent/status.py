"""What a running agent says of itself: on a unix socket for `baton agent status`, over HTTP for kubelet's probes.

`/healthz` answers as long as the loop turns. `/readyz` answers 200 when kubelet uses every resource, else 503 with the
reason for each that it does not. `/metrics` is in Prometheus' format (`baton.agent.telemetry`).
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from aiohttp import web

from baton.agent.daemon import Agent, Companion
from baton.agent.kubelet.podresources import Holding
from baton.agent.offers.offers import Offer
from baton.agent.offers.slots import card_of
from baton.errors import UnavailableError
from baton.observe.serving import Address

if TYPE_CHECKING:
    from baton.agent.telemetry import Telemetry


class ResourceStatus(msgspec.Struct, frozen=True):
    """One resource and its standing with kubelet."""

    name: str
    policy: str
    slots: int
    free: int | None
    state: str
    reason: str
    for_s: float
    registrations: int


class CardStatus(msgspec.Struct, frozen=True):
    """One card, and which pods have slots of it."""

    id: str
    index: int
    model: str
    healthy: bool
    reason: str
    pods: tuple[str, ...]


class Status(msgspec.Struct, frozen=True):
    """All of it."""

    node: str
    driver: str
    problem: str
    resources: tuple[ResourceStatus, ...]
    cards: tuple[CardStatus, ...]


async def describe(agent: Agent) -> Status:
    """The agent now. Kubelet is asked who has what; without its answer that is unknown, not empty."""
    holdings = await agent.holdings()
    now_s = asyncio.get_running_loop().time()
    resources = []
    for name, endpoint in agent.endpoints.items():
        life = endpoint.life
        since_s = life.story[-1][0] if life.story else now_s
        used = None if holdings is None else sum(len(h.slots) for h in holdings if h.resource == name)
        slots = len(endpoint.board.offer.pool)
        resources.append(
            ResourceStatus(
                name,
                endpoint.board.offer.policy.value,
                slots,
                None if used is None else slots - used,
                life.state.value,
                life.reason,
                round(now_s - since_s, 1),
                endpoint.registrations,
            )
        )
    return Status(agent.node, agent.gpus.description, agent.problem, tuple(resources), _cards(agent, holdings or []))


def _cards(agent: Agent, holdings: list[Holding]) -> tuple[CardStatus, ...]:
    verdicts = {verdict.card: verdict for verdict in agent.gpus.tracker.verdicts()}
    return tuple(
        CardStatus(
            card.id,
            card.index,
            card.model,
            verdicts[card.id].healthy,
            verdicts[card.id].reason,
            tuple(
                sorted(
                    {
                        f"{holding.namespace}/{holding.pod}"
                        for holding in holdings
                        if holding.resource in agent.giving and any(card_of(slot) == card.id for slot in holding.slots)
                    }
                )
            ),
        )
        for card in agent.gpus.cards
    )


class StatusServer(Companion):
    """The listeners. A port that is taken is said and tried again; kubelet's side does not depend on it."""

    name = "status"

    def __init__(self, telemetry: "Telemetry") -> None:
        self._telemetry = telemetry
        self.listening = asyncio.Event()

    async def run(self, agent: Agent) -> None:
        application = web.Application()
        application.add_routes(
            [
                web.get("/healthz", self._alive),
                web.get("/readyz", partial(self._ready, agent)),
                web.get("/metrics", partial(self._metrics, agent)),
                web.get("/status", partial(self._status, agent)),
            ]
        )
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            serving = agent.config.serving
            await web.UnixSite(runner, str(_prepared(Path(serving.status_socket)))).start()
            if serving.metrics_address:
                address = Address(serving.metrics_address)
                await web.TCPSite(runner, address.host, address.port).start()
            self.listening.set()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    def allocated(self, offer: Offer, slots: Sequence[str]) -> None:  # noqa: ARG002  # the form of a companion
        counts = self._telemetry.allocations
        counts[offer.name] = counts.get(offer.name, 0) + 1

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, agent: Agent, _request: web.Request) -> web.Response:
        waiting = [
            f"{name}: {endpoint.life.state.value}, {endpoint.life.reason}"
            for name, endpoint in agent.endpoints.items()
            if not endpoint.life.registered
        ]
        if waiting or not agent.endpoints:
            return web.Response(status=503, text="\n".join(waiting or ["nothing is offered yet"]) + "\n")
        return web.Response(text="ok\n")

    async def _metrics(self, agent: Agent, _request: web.Request) -> web.Response:
        body = await self._telemetry.expose(agent)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _status(self, agent: Agent, _request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(await describe(agent)), content_type="application/json")


def _prepared(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return path


async def ask(path: Path, limit_s: float) -> Status:
    """The status of the agent that answers on `path`."""
    try:
        connector = aiohttp.UnixConnector(str(path))
        timeout = aiohttp.ClientTimeout(total=limit_s)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get("http://agent/status") as response,
        ):
            return msgspec.json.decode(await response.read(), type=Status)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise UnavailableError(
            f"no agent answers on {path}: {error or 'no answer in time'}; start `baton agent`, or name its --socket"
        ) from None
