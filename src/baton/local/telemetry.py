"""Readings for the lock daemon, taken from the GPU drivers of this machine."""

from collections.abc import Mapping, Sequence

from baton.gpu.cards import GpuSource, Sample
from baton.lock.telemetry import CardInfo, Reading
from baton.model.ids import CardId

_MIB = 1 << 20

_PAGING_SHARE = 0.7
"""The share of the link's bandwidth that paging reached in measurements: 11 of 15.8 GB/s over PCIe 3 x16."""


class GpuTelemetry:
    """Implements the lock's telemetry port with all open drivers."""

    def __init__(self, sources: Sequence[GpuSource]) -> None:
        self._sources = tuple(sources)

    def cards(self) -> Sequence[CardInfo]:
        return [
            CardInfo(card.id, card.memory_mib * _MIB, (card.link_bytes_per_s or 0.0) * _PAGING_SHARE)
            for source in self._sources
            for card in source.cards()
        ]

    def read(self) -> Mapping[CardId, Reading]:
        return {sample.card: _reading(sample) for source in self._sources for sample in source.telemetry()}


def _reading(sample: Sample) -> Reading:
    moved = [count for count in (sample.pcie_sent_bytes, sample.pcie_received_bytes) if count is not None]
    return Reading(
        capacity_bytes=sample.memory_total_mib * _MIB if sample.memory_total_mib is not None else None,
        pcie_bytes=sum(moved) if moved else None,
        memory_by_pid={use.pid: use.memory_mib * _MIB for use in sample.processes if use.memory_mib is not None},
    )
