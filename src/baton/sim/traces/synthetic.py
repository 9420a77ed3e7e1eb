"""Generated traces that resemble public ones, so that the simulator works without a download.

They follow the Philly and Alibaba traces: arrivals come in a daily wave; durations are log-normal with a heavy tail
(median half an hour, mean four hours); nine jobs in ten need one card, the others a power of two, a few of them as
gangs over several nodes; a handful of tenants submit most of the work; jobs of one family have similar durations.
`fractions` is the part of the one-card jobs that ask for a share of a card. The same seed gives the same trace.
"""

import math

import msgspec
import numpy as np

from baton.engine.cards.fragmentation import WHOLE_CARD
from baton.errors import UsageError
from baton.sim.traces.readers import DEFAULT_CARDS_PER_NODE, split_gang
from baton.sim.traces.workload import TraceJob

_SIZES = (1, 2, 4, 8, 16, 32)
_SIZE_WEIGHTS = (0.90, 0.04, 0.03, 0.02, 0.007, 0.003)
_SHARES_MILLI = (100, 250, 350, 500, 700, 800)
_DAY_S = 86_400.0
_CARD_MEMORY_MIB = (2_048, 4_096, 8_192, 16_384, 24_576)


class SyntheticSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to generate. `load` is the demand for card time divided by the capacity of `gpus` cards in the time span."""

    jobs: int = 1000
    gpus: int = 64
    load: float = 1.0
    tenants: int = 5
    fractions: float = 0.0
    median_s: float = 1_800.0
    spread: float = 2.0
    cards_per_node: int = DEFAULT_CARDS_PER_NODE
    seed: int = 42

    def check(self) -> None:
        """Report every mistake at once."""
        wrong = [
            f"{field} is {getattr(self, field)}, expected {expected}"
            for field, good, expected in (
                ("jobs", self.jobs >= 1, "at least 1"),
                ("gpus", self.gpus >= 1, "at least 1"),
                ("load", 0 < self.load < math.inf, "more than 0"),
                ("tenants", self.tenants >= 1, "at least 1"),
                ("fractions", 0 <= self.fractions <= 1, "0 to 1"),
                ("median_s", 0 < self.median_s < math.inf, "more than 0"),
                ("spread", 0 <= self.spread <= 5, "0 to 5"),
                ("cards_per_node", self.cards_per_node >= 1, "at least 1"),
            )
            if not good
        ]
        if wrong:
            raise UsageError("; ".join(wrong))


def generate(settings: SyntheticSettings) -> tuple[TraceJob, ...]:
    """The jobs, in order of submission."""
    settings.check()
    rng = np.random.default_rng(settings.seed)
    count = settings.jobs
    allowed = [position for position, size in enumerate(_SIZES) if size <= settings.gpus]
    weights = np.array([_SIZE_WEIGHTS[position] for position in allowed])
    sizes = np.array(_SIZES)[rng.choice(allowed, size=count, p=weights / weights.sum())]
    popularity = 1.0 / np.arange(1, settings.tenants + 1)
    tenants = rng.choice(settings.tenants, size=count, p=popularity / popularity.sum())
    families = rng.integers(0, 1 + count // 20, size=count)
    # Half of the spread lies between families and half within a family, so that history predicts durations imperfectly.
    between = rng.normal(0.0, settings.spread / math.sqrt(2), size=1 + count // 20)
    within = rng.normal(0.0, settings.spread / math.sqrt(2), size=count)
    durations = np.maximum(1.0, settings.median_s * np.exp(between[families] + within)).round(1)
    shared = (sizes == 1) & (rng.random(count) < settings.fractions)
    milli = np.where(shared, rng.choice(_SHARES_MILLI, size=count), WHOLE_CARD)
    span_s = float((durations * sizes * milli / WHOLE_CARD).sum()) / (settings.gpus * settings.load)
    submits = np.sort(_daily_wave(rng, count, span_s)).round(1)
    busy = np.where(shared, milli / WHOLE_CARD, rng.uniform(0.3, 1.0, size=count)).round(2)
    memory = rng.choice(_CARD_MEMORY_MIB, size=count)
    priorities = rng.choice((0, 0, 0, 1, 2), size=count)
    jobs = []
    for number in range(count):
        tasks, cards = split_gang(int(sizes[number]), settings.cards_per_node)
        tenant = f"tenant-{tenants[number] + 1}"
        jobs.append(
            TraceJob(
                name=f"job-{number + 1:06}",
                submit_s=float(submits[number]),
                duration_s=float(durations[number]),
                tasks=tasks,
                cards=cards,
                milli=int(milli[number]),
                cpu_milli=2_000 * cards,
                memory_mib=8_192 * cards,
                card_memory_mib=int(memory[number]),
                tenant=tenant,
                queue=tenant,
                priority=int(priorities[number]),
                utilisation=float(busy[number]),
                family=f"family-{families[number] + 1}",
            )
        )
    return tuple(jobs)


def _daily_wave(rng: np.random.Generator, count: int, span_s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Arrival times whose rate varies by half around its mean once a day (by thinning)."""
    times = np.empty(0)
    while len(times) < count:
        drawn = rng.uniform(0, span_s, size=2 * count)
        keep = rng.random(2 * count) < (1 + 0.5 * np.sin(2 * math.pi * drawn / _DAY_S)) / 1.5
        times = np.concatenate([times, drawn[keep]])
    return times[:count]
