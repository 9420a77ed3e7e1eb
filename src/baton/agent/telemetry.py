"""The agent's metrics: the node's cards, their slots, and which container has which.

All of it is read at scrape time from what the agent knows anyway, so a card is listed before the first CUDA call and
its series end with its sample. With sharing, the use of a *container* is the sum over its processes, which are found
by their cgroups and not by the card: two containers on one card have separate numbers. A cgroup holds the runtime's id
of a container, and only the API server knows its name. Without the API server, the numbers of a pod belong to its one
container on the card, or stand under an empty name if it has several there.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from baton.agent.daemon import Agent
from baton.agent.kubelet.podresources import read_checkpoint
from baton.agent.kubelet.records import Holding, Recorded
from baton.agent.node.identity import pod_of_process
from baton.agent.node.usage import ContainerOnCard, LockTimes
from baton.agent.offers.offers import Role
from baton.agent.offers.slots import card_of
from baton.errors import UnavailableError
from baton.gpu.cards import Sample
from baton.model.ids import CardId, PodUid
from baton.observe.metrics import Family, Kind, Metrics, Row

_CARD = ("card", "index", "model")
_HEALTHY = Family("gauge", "baton_card_healthy", "Whether containers may get the card (1) or not (0).", _CARD)
_TOTAL_MEMORY = Family("gauge", "baton_card_memory_total_bytes", "Memory of the card.", _CARD)
_SAMPLED: list[tuple[Family, Callable[[Sample], float | None], float]] = [
    (Family("gauge", f"baton_card_{name}", text, _CARD), read, factor)
    for name, text, read, factor in (
        ("memory_used_bytes", "Memory in use on the card, by any process.", lambda s: s.memory_used_mib, 2.0**20),
        (
            "utilisation_ratio",
            "Share of the last moments in which at least one kernel ran.",
            lambda s: s.utilisation_percent,
            0.01,
        ),
        ("temperature_celsius", "Temperature of the card.", lambda s: s.temperature_c, 1.0),
        ("power_watts", "Power that the card draws.", lambda s: s.power_w, 1.0),
        ("link_lanes", "Lanes that the card's link to the host uses.", lambda s: s.link_lanes, 1.0),
    )
]
_XIDS = Family("counter", "baton_card_xids", "Xid errors seen, by number.", ("card", "xid"))

_SLOTS = Family("gauge", "baton_slots", "Slots of the resource on the card.", ("resource", "card"))
_SLOTS_IN_USE = Family("gauge", "baton_slots_in_use", "Slots that containers have.", ("resource", "card"))
_REGISTERED = Family(
    "gauge", "baton_resource_registered", "Whether kubelet uses the resource (1) or not (0).", ("resource",)
)
_REGISTRATIONS = Family(
    "counter", "baton_resource_registrations", "Registrations with kubelet that led to a stream.", ("resource",)
)
_ALLOCATIONS = Family("counter", "baton_allocations", "Containers that were given slots.", ("resource",))


def _container(kind: Kind, name: str, text: str) -> Family:
    return Family(kind, f"baton_container_{name}", text, ("namespace", "pod", "container", "card"))


_HELD_SLOTS = _container("gauge", "slots", "Slots of the card that the container has.")
_MEMORY = _container("gauge", "memory_used_bytes", "Memory on the card in use by the container.")
_BUSY = _container("gauge", "utilisation_ratio", "Share of the card's time used by the container.")
_HELD = _container("counter", "lock_held_seconds", "Time in which the container held the card's lock.")
_WAITED = _container("counter", "lock_waited_seconds", "Time in which the container waited for the card's lock.")
_TURNS = _container("counter", "lock_turns", "How often the container was given the card's lock.")
_LONGEST = _container("gauge", "lock_longest_wait_seconds", "The longest wait for the card's lock so far.")

_FAMILIES = (
    *(_HEALTHY, _TOTAL_MEMORY, *(family for family, _, _ in _SAMPLED), _XIDS),
    *(_SLOTS, _SLOTS_IN_USE, _REGISTERED, _REGISTRATIONS, _ALLOCATIONS),
    *(_HELD_SLOTS, _MEMORY, _BUSY, _HELD, _WAITED, _TURNS, _LONGEST),
)


class Telemetry:
    """The metrics of one agent."""

    def __init__(self, agent: Agent, allocations: Mapping[str, int]) -> None:
        """`allocations` counts the containers that were given slots, by resource."""
        self.metrics = Metrics()
        self.metrics.read(_FAMILIES, self._rows)
        self._agent = agent
        self._allocations = allocations

    async def _rows(self) -> list[Row]:
        agent = self._agent
        holdings = await agent.holdings() or []
        locks: Mapping[ContainerOnCard, LockTimes] = {}
        if agent.lock is not None:
            await agent.lock.look()
            locks = agent.lock.usage.totals
        records, use = await asyncio.to_thread(
            _read_files, Path(agent.config.kubelet.plugin_directory), agent.gpus.samples
        )
        return [
            *_card_rows(agent),
            *_resource_rows(agent, holdings),
            *(Row(_ALLOCATIONS, (name,), count) for name, count in self._allocations.items()),
            *container_rows(places_of(holdings, records, agent.giving), use, locks, agent.container_name),
        ]


def _read_files(
    plugin_directory: Path, samples: Iterable[Sample]
) -> tuple[list[Recorded], dict[ContainerOnCard, tuple[int, int]]]:
    """Kubelet's records, and the use of the cards by the containers of the processes that `/proc` tells about."""
    records: list[Recorded] = []
    with contextlib.suppress(UnavailableError):  # the numbers then cannot be told apart by pod
        records = read_checkpoint(plugin_directory)
    return records, _use(samples)


def _card_rows(agent: Agent) -> Iterator[Row]:
    samples = {sample.card: sample for sample in agent.gpus.samples}
    unhealthy = agent.gpus.unhealthy
    for card in agent.gpus.cards:
        labels = (card.id, str(card.index), card.model)
        yield Row(_HEALTHY, labels, card.id not in unhealthy)
        yield Row(_TOTAL_MEMORY, labels, card.memory_mib * 2.0**20)
        if (sample := samples.get(card.id)) is not None:
            for family, read, factor in _SAMPLED:
                if (value := read(sample)) is not None:
                    yield Row(family, labels, value * factor)
    for (named, xid), count in agent.gpus.xids.items():
        yield Row(_XIDS, (named or "unknown", str(xid)), count)


def _resource_rows(agent: Agent, holdings: list[Holding]) -> Iterator[Row]:
    for name, endpoint in agent.endpoints.items():
        yield Row(_REGISTERED, (name,), endpoint.life.registered)
        yield Row(_REGISTRATIONS, (name,), endpoint.registrations)
        if endpoint.board.offer.role is not Role.CARDS:
            continue
        held = [card_of(slot) for holding in holdings if holding.resource == name for slot in holding.slots]
        for card in endpoint.board.offer.pool.cards:
            yield Row(_SLOTS, (name, card.card), len(card.slots))
            yield Row(_SLOTS_IN_USE, (name, card.card), held.count(card.card))


class Place(msgspec.Struct, frozen=True):
    """A container on one of its cards. Without a name it is the rest of a pod on the card."""

    namespace: str
    pod: str
    container: str
    card: CardId
    pod_uid: PodUid
    slots: int

    @property
    def labels(self) -> tuple[str, str, str, str]:
        return (self.namespace, self.pod, self.container, self.card)


def places_of(holdings: Iterable[Holding], records: Iterable[Recorded], giving: Collection[str]) -> list[Place]:
    """The containers that have slots of a resource that gives cards, and on which cards."""
    uids = {(record.resource, record.slots): record.pod_uid for record in records}
    places = []
    for holding in holdings:
        if holding.resource in giving:
            uid = uids.get((holding.resource, holding.slots), PodUid(""))
            for card, count in sorted(Counter(map(card_of, holding.slots)).items()):
                places.append(Place(holding.namespace, holding.pod, holding.container, card, uid, count))
    return places


def container_rows(
    places: Sequence[Place],
    use: Mapping[ContainerOnCard, tuple[int, int]],
    locks: Mapping[ContainerOnCard, LockTimes],
    name_of: Callable[[str], str],
) -> Iterator[Row]:
    for place in places:
        yield Row(_HELD_SLOTS, place.labels, place.slots)
    for place, seen in _matched(places, [*use, *locks], name_of):
        labels = place.labels
        yield Row(_MEMORY, labels, sum(use.get(one, (0, 0))[0] for one in seen) * 2.0**20)
        yield Row(_BUSY, labels, sum(use.get(one, (0, 0))[1] for one in seen) / 100)
        times = LockTimes()
        for one in seen:
            times = times.plus(locks.get(one, LockTimes()))
        yield Row(_HELD, labels, times.held_s)
        yield Row(_WAITED, labels, times.waited_s)
        yield Row(_TURNS, labels, times.turns)
        yield Row(_LONGEST, labels, times.longest_wait_s)


def _matched(
    places: Sequence[Place], seen: Iterable[ContainerOnCard], name_of: Callable[[str], str]
) -> list[tuple[Place, list[ContainerOnCard]]]:
    """Every place with what was seen there. What cannot be told apart gets a place without a container's name."""
    found: dict[Place, list[ContainerOnCard]] = {place: [] for place in places}
    for one in dict.fromkeys(seen):
        process, card = one
        candidates = [place for place in places if place.pod_uid == process.uid and place.card == card]
        name = name_of(process.container_id)
        named = [place for place in candidates if place.container == name]
        if named or len(candidates) == 1:
            found[(named or candidates)[0]].append(one)
        elif candidates:
            found.setdefault(msgspec.structs.replace(candidates[0], container="", slots=0), []).append(one)
    return list(found.items())


def _use(samples: Iterable[Sample]) -> dict[ContainerOnCard, tuple[int, int]]:
    """Memory in MiB and percent of the time, by container and card."""
    found: dict[ContainerOnCard, tuple[int, int]] = {}
    for sample in samples:
        for process in sample.processes:
            home = pod_of_process(process.pid)
            if home is not None:
                memory_mib, percent = found.get((home, sample.card), (0, 0))
                found[home, sample.card] = (
                    memory_mib + (process.memory_mib or 0),
                    percent + (process.utilisation_percent or 0),
                )
    return found
