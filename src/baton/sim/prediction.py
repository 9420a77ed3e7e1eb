"""Durations guessed from history, for policies that put short jobs first without being told how long they are.

The predictor is the simplest that is known to work (Tsafrir et al., TPDS'07): the mean of the last two durations of the
same family. A family is what a trace can tell of recurrence: user or queue, name, size. A family without history falls
back to its tenant, then to everything seen so far. A guess that a job has outlived is doubled until it is ahead again,
and it is only ever used for planning: no job is stopped for it.
"""

from collections import defaultdict, deque
from collections.abc import Hashable
from enum import StrEnum

from baton.sim.workload import TraceJob

FIRST_GUESS_S = 3600.0
_RECENT = 2


class Foresight(StrEnum):
    """What a policy knows of a job's duration when it arrives."""

    NONE = "none"
    PERFECT = "perfect"
    PREDICTED = "predicted"


class History:
    """The durations of finished jobs."""

    def __init__(self) -> None:
        self._recent: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))

    def observe(self, job: TraceJob, duration_s: float) -> None:
        """A job ended after running for this long."""
        for key in self._keys(job):
            self._recent[key].append(duration_s)

    def predict(self, job: TraceJob) -> float:
        """How long the job is expected to run, from its start."""
        for key in self._keys(job):
            if recent := self._recent.get(key):
                return sum(recent) / len(recent)
        return FIRST_GUESS_S

    @staticmethod
    def _keys(job: TraceJob) -> tuple[Hashable, ...]:
        family = job.family or job.name.rstrip("0123456789-")
        return ("family", job.tenant, family, job.total_milli), ("tenant", job.tenant), "all"


def corrected(guess_s: float, ran_s: float) -> float:
    """The guess for a job that has already run for `ran_s`: doubled until it lies ahead."""
    while guess_s <= ran_s:
        guess_s = max(2 * guess_s, 1.0)
    return guess_s
