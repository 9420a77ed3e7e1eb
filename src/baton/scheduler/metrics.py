"""The scheduler's counters and histograms. The state of the cluster is read at scrape time: `gauges`."""

import time
from collections import deque
from collections.abc import Iterator

from baton.model.ids import PodKey
from baton.observe import metrics
from baton.observe.metrics import Family, Row

_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_RATE_WINDOW_S = 10.0
_RATE = Family("gauge", "baton_scheduler_pods_per_second", "Pods bound per second, over the last ten.")


class Metrics:
    """The scheduler's own numbers."""

    def __init__(self) -> None:
        self.registry = declare = metrics.Metrics()
        self._stage = declare.histogram(
            "baton_scheduler_stage_seconds",
            "Time since the scheduler first saw the pod, when it reached a stage.",
            "stage",
            buckets=_BUCKETS_S,
        )
        self._stages = {stage: self._stage.labels(stage) for stage in ("watched", "assumed", "bound")}
        self._cycle = declare.histogram("baton_scheduler_cycle_seconds", "Length of a cycle.", buckets=_BUCKETS_S)
        self._bind = declare.histogram(
            "baton_scheduler_bind_seconds", "From a plan to the API server's yes.", buckets=_BUCKETS_S
        )
        self._attempts = declare.counter(
            "baton_scheduler_attempts",
            "Placements tried: scheduled, unschedulable (with the cause), bind-failed.",
            *("result", "reason"),
        )
        self._retries = declare.counter("baton_scheduler_bind_retries", "Bind requests sent again.")
        self._evictions = declare.counter(
            "baton_scheduler_evictions", "Evictions by action and result.", "action", "result"
        )
        self._reloads = declare.counter(
            "baton_scheduler_configuration_reloads", "Configurations read, by result.", "result"
        )
        self._slow = declare.counter("baton_scheduler_slow_cycles", "Cycles longer than the warning limit.")
        self._cut = declare.counter(
            "baton_scheduler_cut_cycles", "Cycles that ended at their time limit before every job had its turn."
        )
        declare.read((_RATE,), self._rate)
        self._seen: dict[PodKey, float] = {}
        """When this term first saw each pod that waits."""
        self._recent: deque[float] = deque(maxlen=100_000)

    def watched(self, key: PodKey) -> None:
        """A pod that waits was seen. Only the first time counts."""
        if key not in self._seen:
            self._seen[key] = time.monotonic()
            self._stages["watched"].observe(0.0)

    def assumed(self, key: PodKey) -> None:
        since = self._seen.get(key)
        if since is not None:
            self._stages["assumed"].observe(time.monotonic() - since)

    def bound(self, key: PodKey, took_s: float) -> None:
        now = time.monotonic()
        since = self._seen.pop(key, None)
        if since is not None:
            self._stages["bound"].observe(now - since)
        self._bind.observe(took_s)
        self._recent.append(now)
        self._attempts.labels("scheduled", "").inc()

    def gone(self, key: PodKey) -> None:
        self._seen.pop(key, None)

    def end_term(self) -> None:
        """Forget all pods: another replica binds them from now on, and this one no longer sees them go."""
        self._seen.clear()

    def bind_retry(self) -> None:
        self._retries.inc()

    def bind_failed(self) -> None:
        self._attempts.labels("bind-failed", "").inc()

    def unschedulable(self, cause: str) -> None:
        self._attempts.labels("unschedulable", cause).inc()

    def cycle(self, took_s: float, *, slow: bool, cut: bool) -> None:
        self._cycle.observe(took_s)
        if slow:
            self._slow.inc()
        if cut:
            self._cut.inc()

    def eviction(self, action: str, result: str) -> None:
        self._evictions.labels(action, result).inc()

    def reloaded(self, result: str) -> None:
        self._reloads.labels(result).inc()

    def pods_per_second(self) -> float:
        """Over the last seconds."""
        now = time.monotonic()
        while self._recent and now - self._recent[0] > _RATE_WINDOW_S:
            self._recent.popleft()
        return len(self._recent) / _RATE_WINDOW_S

    def _rate(self) -> Iterator[Row]:
        yield Row(_RATE, (), self.pods_per_second())
