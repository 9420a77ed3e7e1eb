"""Metrics in Prometheus' format: the node's cards, their slots, and which container has which.

Everything is read when it is asked for, from what the agent knows anyway, so a card is there before the first CUDA
call and disappears with its sample. Under sharing, what a *container* uses is the sum over its processes, found by
their cgroups and not by the card: two containers on one card have their own numbers. A cgroup holds the runtime's id of
a container; its name is the API server's to tell. Without it, a pod's numbers are those of its one container on the
card; where there are several, they stand under an empty name.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from baton.agent.daemon import Agent
from baton.agent.kubelet.podresources import Holding, Recorded, read_checkpoint
from baton.agent.node.identity import pod_of_process
from baton.agent.node.usage import ContainerOnCard, LockTimes
from baton.agent.offers.offers import Role
from baton.agent.offers.slots import card_of
from baton.errors import UnavailableError
from baton.gpu.cards import Sample
from baton.model.ids import CardId, PodUid

_CARD = ("card", "index", "model")


class Telemetry:
    """Makes the exposition; holds nothing but counters of what it was told."""

    def __init__(self) -> None:
        self.allocations: dict[str, int] = {}
        """Containers that were given slots, by resource."""

    async def expose(self, agent: Agent) -> bytes:
        """The whole page."""
        holdings = await agent.holdings() or []
        locks: Mapping[ContainerOnCard, LockTimes] = {}
        if agent.lock is not None:
            await agent.lock.look()
            locks = agent.lock.usage.totals
        records: list[Recorded] = []
        with contextlib.suppress(UnavailableError):  # whose the numbers are cannot be told then
            records = read_checkpoint(Path(agent.config.kubelet.plugin_directory))
        registry = CollectorRegistry(auto_describe=False)
        families = [
            *_card_metrics(agent),
            *_resource_metrics(agent, holdings),
            *container_metrics(
                rows_of(holdings, records, agent.giving), _use(agent.gpus.samples), locks, agent.container_name
            ),
            self._allocations(),
        ]

        class Page:
            def collect(self) -> Iterable[Metric]:
                return families

        registry.register(Page())
        return generate_latest(registry)

    def _allocations(self) -> Metric:
        family = CounterMetricFamily("baton_allocations", "Containers that were given slots.", labels=("resource",))
        for name, count in self.allocations.items():
            family.add_metric([name], count)
        return family


def _card_metrics(agent: Agent) -> Iterator[Metric]:
    samples = {sample.card: sample for sample in agent.gpus.samples}
    unhealthy = agent.gpus.tracker.unhealthy()
    gauges: dict[str, tuple[str, dict[CardId, float | None]]] = {
        "baton_card_healthy": (
            "Whether the card may be given to containers (1) or not (0).",
            {card.id: float(card.id not in unhealthy) for card in agent.gpus.cards},
        ),
        "baton_card_memory_total_bytes": (
            "Memory of the card.",
            {card.id: card.memory_mib * 2.0**20 for card in agent.gpus.cards},
        ),
        "baton_card_memory_used_bytes": (
            "Memory in use on the card, by whomever.",
            {card: _scaled(sample.memory_used_mib, 2.0**20) for card, sample in samples.items()},
        ),
        "baton_card_utilisation_ratio": (
            "Share of the last moments in which at least one kernel ran.",
            {card: _scaled(sample.utilisation_percent, 0.01) for card, sample in samples.items()},
        ),
        "baton_card_temperature_celsius": (
            "Temperature of the card.",
            {card: _scaled(sample.temperature_c, 1.0) for card, sample in samples.items()},
        ),
        "baton_card_power_watts": (
            "Power that the card draws.",
            {card: sample.power_w for card, sample in samples.items()},
        ),
        "baton_card_link_lanes": (
            "Lanes that the card's link to the host uses.",
            {card: _scaled(sample.link_lanes, 1.0) for card, sample in samples.items()},
        ),
    }
    for name, (help_text, values) in gauges.items():
        family = GaugeMetricFamily(name, help_text, labels=_CARD)
        for card in agent.gpus.cards:
            value = values.get(card.id)
            if value is not None:
                family.add_metric([card.id, str(card.index), card.model], value)
        yield family
    xids = CounterMetricFamily("baton_card_xids", "Xid errors seen, by number.", labels=("card", "xid"))
    for (named, xid), count in agent.gpus.tracker.xids.items():
        xids.add_metric([named or "unknown", str(xid)], count)
    yield xids


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _resource_metrics(agent: Agent, holdings: list[Holding]) -> Iterator[Metric]:
    total = GaugeMetricFamily("baton_slots", "Slots of the resource on the card.", labels=("resource", "card"))
    used = GaugeMetricFamily("baton_slots_in_use", "Slots that containers have.", labels=("resource", "card"))
    registered = GaugeMetricFamily(
        "baton_resource_registered", "Whether kubelet uses the resource (1) or not (0).", labels=("resource",)
    )
    registrations = CounterMetricFamily(
        "baton_resource_registrations", "Registrations with kubelet that led to a stream.", labels=("resource",)
    )
    for name, endpoint in agent.endpoints.items():
        registered.add_metric([name], float(endpoint.life.registered))
        registrations.add_metric([name], endpoint.registrations)
        if endpoint.board.offer.role is not Role.CARDS:
            continue
        held = [card_of(slot) for holding in holdings if holding.resource == name for slot in holding.slots]
        for card in endpoint.board.offer.pool.cards:
            total.add_metric([name, card.card], len(card.slots))
            used.add_metric([name, card.card], held.count(card.card))
    yield from (total, used, registered, registrations)


class _Row(msgspec.Struct, frozen=True):
    """A container on one of its cards; without a name, the rest of a pod there."""

    namespace: str
    pod: str
    container: str
    card: CardId
    pod_uid: PodUid
    slots: int

    @property
    def labels(self) -> list[str]:
        return [self.namespace, self.pod, self.container, self.card]


def rows_of(holdings: Iterable[Holding], records: Iterable[Recorded], giving: Collection[str]) -> list[_Row]:
    """Containers on cards, by the resources that give cards."""
    uids = {(record.resource, record.slots): record.pod_uid for record in records}
    rows = []
    for holding in holdings:
        if holding.resource in giving:
            uid = uids.get((holding.resource, holding.slots), PodUid(""))
            for card, count in sorted(Counter(map(card_of, holding.slots)).items()):
                rows.append(_Row(holding.namespace, holding.pod, holding.container, card, uid, count))
    return rows


def container_metrics(
    rows: Sequence[_Row],
    use: Mapping[ContainerOnCard, tuple[int, int]],
    locks: Mapping[ContainerOnCard, LockTimes],
    name_of: Callable[[str], str],
) -> Iterator[Metric]:
    labels = ("namespace", "pod", "container", "card")
    slots = GaugeMetricFamily("baton_container_slots", "Slots of the card that the container has.", labels=labels)
    for row in rows:
        slots.add_metric(row.labels, row.slots)
    memory = GaugeMetricFamily(
        "baton_container_memory_used_bytes", "Memory on the card in use by the container.", labels=labels
    )
    busy = GaugeMetricFamily(
        "baton_container_utilisation_ratio", "Share of the card's time used by the container.", labels=labels
    )
    held = CounterMetricFamily(
        "baton_container_lock_held_seconds", "Time in which the container held the card's lock.", labels=labels
    )
    waited = CounterMetricFamily(
        "baton_container_lock_waited_seconds", "Time in which the container waited for the card's lock.", labels=labels
    )
    turns = CounterMetricFamily(
        "baton_container_lock_turns", "How often the container was given the card's lock.", labels=labels
    )
    longest = GaugeMetricFamily(
        "baton_container_lock_longest_wait_seconds", "The longest wait for the card's lock so far.", labels=labels
    )
    for row, places in _places(rows, [*use, *locks], name_of):
        memory.add_metric(row.labels, sum(use.get(place, (0, 0))[0] for place in places) * 2.0**20)
        busy.add_metric(row.labels, sum(use.get(place, (0, 0))[1] for place in places) / 100)
        times = LockTimes()
        for place in places:
            times = times.plus(locks.get(place, LockTimes()))
        held.add_metric(row.labels, times.held_s)
        waited.add_metric(row.labels, times.waited_s)
        turns.add_metric(row.labels, times.turns)
        longest.add_metric(row.labels, times.longest_wait_s)
    yield from (slots, memory, busy, held, waited, turns, longest)


def _places(
    rows: Sequence[_Row], places: Iterable[ContainerOnCard], name_of: Callable[[str], str]
) -> list[tuple[_Row, list[ContainerOnCard]]]:
    """Every row with what was seen of it; what cannot be told apart stands in a row without a container's name."""
    found: dict[_Row, list[ContainerOnCard]] = {row: [] for row in rows}
    for place in dict.fromkeys(places):
        process, card = place
        candidates = [row for row in rows if row.pod_uid == process.uid and row.card == card]
        name = name_of(process.container_id)
        named = [row for row in candidates if row.container == name]
        if named or len(candidates) == 1:
            found[(named or candidates)[0]].append(place)
        elif candidates:
            found.setdefault(msgspec.structs.replace(candidates[0], container="", slots=0), []).append(place)
    return list(found.items())


def _use(samples: Iterable[Sample]) -> dict[ContainerOnCard, tuple[int, int]]:
    """Memory in MiB and per cent of the time, by container and card."""
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
