"""The status of a running agent: on a unix socket for `baton agent status`, over HTTP for kubelet's probes.

Ready means that kubelet uses every resource of the agent.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from baton.agent.daemon import Agent, Companion
from baton.agent.kubelet.records import Holding
from baton.agent.offers.offers import Offer
from baton.agent.offers.slots import card_of
from baton.agent.telemetry import Telemetry
from baton.errors import UnavailableError
from baton.observe.serving import Address, Readiness, Server, UnixSocket, health_routes


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
    """One card, and the pods that have slots of it."""

    id: str
    index: int
    model: str
    healthy: bool
    reason: str
    pods: tuple[str, ...]


class Status(msgspec.Struct, frozen=True):
    """Everything that `baton agent status` shows."""

    node: str
    driver: str
    problem: str
    resources: tuple[ResourceStatus, ...]
    cards: tuple[CardStatus, ...]


async def describe(agent: Agent) -> Status:
    """The present status. Kubelet knows who has which slots; without its answer the free slots are unknown."""
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
    verdicts = {verdict.card: verdict for verdict in agent.gpus.verdicts}
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
    """The listeners. A port that is taken is reported and tried again, because kubelet's side does not depend on it."""

    name = "status"

    def __init__(self) -> None:
        self._allocations: dict[str, int] = {}
        self.listening = asyncio.Event()

    async def run(self, agent: Agent) -> None:
        async def status(_request: web.Request) -> web.Response:
            return web.Response(body=msgspec.json.encode(await describe(agent)), content_type="application/json")

        serving = agent.config.serving
        addresses: list[Address | UnixSocket] = [UnixSocket(Path(serving.status_socket), "serving.status-socket")]
        if serving.metrics_address:
            addresses.append(Address(serving.metrics_address, "serving.metrics-address"))
        metrics = Telemetry(agent, self._allocations).metrics
        routes = health_routes(metrics, lambda: Readiness.waiting_for(waiting_for(agent)))
        server = Server(addresses, [*routes, web.get("/status", status)])
        await server.start()
        self.listening.set()
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop()

    def allocated(self, offer: Offer, slots: Sequence[str]) -> None:  # noqa: ARG002  # the form of a companion
        self._allocations[offer.name] = self._allocations.get(offer.name, 0) + 1


def waiting_for(agent: Agent) -> str:
    """Each resource that kubelet does not use, with the reason; empty when there is none."""
    waiting = [
        f"{name}: {endpoint.life.state.value}, {endpoint.life.reason}"
        for name, endpoint in agent.endpoints.items()
        if not endpoint.life.registered
    ]
    return "\n".join(waiting) if agent.endpoints else "nothing is offered yet"


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
