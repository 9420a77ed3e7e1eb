"""Durations predicted from history: the mean of the last two runs of a similar job.

Jobs are similar if they agree in namespace, name without trailing numbers, and card request. Predictions are for
planning only: a job that exceeds its prediction keeps running, and the prediction is corrected upwards. The caller
reports finished jobs and writes the prediction into `PodGroup.expected_duration_s` of new ones.
"""

import re
from collections import OrderedDict, deque
from typing import TypeVar

import msgspec

from baton.model.ids import GroupKey

K = TypeVar("K")
RUNS_KEPT = 2
_SERIAL = re.compile(r"([-_.]?[0-9a-f]*\d[0-9a-f]*)+$")


class HistoryKey(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str
    gpu_milli: int


class DurationHistory:
    """The last runs of every kind of job; the kind that has not run for the longest time is forgotten first."""

    def __init__(self, *, kinds_kept: int = 10_000) -> None:
        self._kinds_kept = kinds_kept
        self._runs: OrderedDict[HistoryKey, deque[float]] = OrderedDict()
        self._by_namespace: OrderedDict[str, deque[float]] = OrderedDict()

    def finished(self, group: GroupKey, gpu_milli: int, duration_s: float) -> None:
        """Record that a job ended after running this long."""
        key = history_key(group, gpu_milli)
        _remember(self._runs, key, duration_s, self._kinds_kept)
        _remember(self._by_namespace, key.namespace, duration_s, self._kinds_kept)

    def predict_s(self, group: GroupKey, gpu_milli: int, *, running_s: float = 0.0) -> float | None:
        """How long such a job runs, or None if no similar job has run. Never less than it has already been running."""
        key = history_key(group, gpu_milli)
        runs = self._runs.get(key) or self._by_namespace.get(key.namespace)
        if not runs:
            return None
        predicted_s = sum(runs) / len(runs)
        while predicted_s < running_s:
            predicted_s = max(predicted_s, 1.0) * 2
        return predicted_s


def history_key(group: GroupKey, gpu_milli: int) -> HistoryKey:
    namespace, _, name = group.partition("/")
    return HistoryKey(namespace, _SERIAL.sub("", name) or name, gpu_milli)


def _remember(runs: OrderedDict[K, deque[float]], key: K, duration_s: float, limit: int) -> None:
    kept = runs.pop(key, None) or deque(maxlen=RUNS_KEPT)
    kept.append(duration_s)
    runs[key] = kept
    while len(runs) > limit:
        runs.popitem(last=False)
