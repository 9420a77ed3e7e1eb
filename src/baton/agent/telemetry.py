"""Metrics in Prometheus' format: the node's cards, their slots, and which container has which.

Everything is read when it is asked for, from what the agent knows anyway, so a card is there before the first CUDA
call and disappears with its sample. Under sharing, what a *container* uses is the sum over its processes, found by
their cgroups and not by the card: two containers on one card have their own numbers.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from baton.agent.daemon import Agent
from baton.agent.identity import pod_of_process
from baton.agent.podresources import Holding, PodUid, read_checkpoint
from baton.agent.resources import Role
from baton.agent.slots import card_of
from baton.gpu.cards import CardId, Sample

_CARD = ("card", "index", "model")


class Telemetry:
    """Makes the exposition; holds nothing but counters of what it was told."""

    def __init__(self) -> None:
        self.allocations: dict[str, int] = {}
        """Containers that were given slots, by resource."""

    async def expose(self, agent: Agent) -> bytes:
        """The whole page."""
        holdings = await agent.pod_resources.holdings() or []
        uids = {record.slots: record.pod_uid for record in read_checkpoint(Path(agent.config.kubelet.plugin_directory))}
        registry = CollectorRegistry(auto_describe=False)
        families = [
            *_card_metrics(agent),
            *_resource_metrics(agent, holdings),
            *_container_metrics(agent.gpus.samples, holdings, uids),
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


def _container_metrics(
    samples: tuple[Sample, ...], holdings: list[Holding], uids: dict[frozenset[str], PodUid]
) -> Iterator[Metric]:
    labels = ("namespace", "pod", "container", "card")
    slots = GaugeMetricFamily("baton_container_slots", "Slots of the card that the container has.", labels=labels)
    memory = GaugeMetricFamily(
        "baton_container_memory_used_bytes", "Memory on the card in use by the container's pod.", labels=labels
    )
    busy = GaugeMetricFamily(
        "baton_container_utilisation_ratio", "Share of the card's time used by the container's pod.", labels=labels
    )
    use = _use_by_pod(samples)
    for holding in holdings:
        for card in sorted({card_of(slot) for slot in holding.slots}):
            row = [holding.namespace, holding.pod, holding.container, card]
            slots.add_metric(row, sum(card_of(slot) == card for slot in holding.slots))
            pod_uid = uids.get(holding.slots)
            memory_mib, percent = use.get((pod_uid, card), (0, 0)) if pod_uid else (0, 0)
            memory.add_metric(row, memory_mib * 2.0**20)
            busy.add_metric(row, percent / 100)
    yield from (slots, memory, busy)


def _use_by_pod(samples: tuple[Sample, ...]) -> dict[tuple[PodUid, CardId], tuple[int, int]]:
    found: dict[tuple[PodUid, CardId], tuple[int, int]] = {}
    for sample in samples:
        for process in sample.processes:
            pod = pod_of_process(process.pid)
            if pod is not None:
                memory_mib, percent = found.get((pod.uid, sample.card), (0, 0))
                found[pod.uid, sample.card] = (
                    memory_mib + (process.memory_mib or 0),
                    percent + (process.utilisation_percent or 0),
                )
    return found
