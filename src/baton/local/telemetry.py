"""What the lock daemon wants to know about cards, taken from the GPU source of this machine."""

import time
from collections.abc import Mapping, Sequence

from baton.gpu.cards import GpuSource, Sample
from baton.lock.events import CardId
from baton.lock.telemetry import CardInfo, Reading

_MIB = 1 << 20
_FRESH_S = 0.005
"""The daemon reads card by card in one go; a sample of all cards serves the whole round."""

_PAGING_SHARE = 0.7
"""Of what the link's lanes carry, what paging was seen to reach: 11 of 15.8 GB/s over PCIe 3 x16."""


class GpuTelemetry:
    """Fills the lock's telemetry port from a `GpuSource`."""

    def __init__(self, source: GpuSource) -> None:
        self._source = source
        self._samples: Mapping[str, Sample] = {}
        self._sampled_at = float("-inf")

    def cards(self) -> Sequence[CardInfo]:
        return [
            CardInfo(CardId(card.id), card.memory_mib * _MIB, (card.link_bytes_per_s or 0.0) * _PAGING_SHARE)
            for card in self._source.cards()
        ]

    def read(self, card: CardId) -> Reading:
        now = time.monotonic()
        if now - self._sampled_at > _FRESH_S:
            self._samples = {sample.card: sample for sample in self._source.telemetry()}
            self._sampled_at = time.monotonic()
        sample = self._samples.get(card)
        if sample is None:
            return Reading()
        counters = (sample.pcie_sent_bytes, sample.pcie_received_bytes)
        return Reading(
            capacity_bytes=sample.memory_total_mib * _MIB if sample.memory_total_mib is not None else None,
            pcie_bytes=sum(count for count in counters if count is not None) if any(counters) else None,
            memory_by_pid={
                process.pid: process.memory_mib * _MIB for process in sample.processes if process.memory_mib is not None
            },
        )
