"""What the scheduler counts and times, for Prometheus.

Counters and histograms are kept as things happen; everything about the cluster's state (queues, waiting jobs, cards) is
read from the engine when somebody scrapes, so that no series outlives what it is about.
"""

import time
from collections import deque
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.model.ids import PodKey

_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_RATE_WINDOW_S = 10.0


class Metrics:
    """The scheduler's own numbers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._stage = Histogram(
            "baton_scheduler_stage_seconds",
            "Time since the scheduler first saw the pod, when it reached a stage.",
            ["stage"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._stages = {stage: self._stage.labels(stage) for stage in ("watched", "assumed", "bound")}
        self._cycle = Histogram(
            "baton_scheduler_cycle_seconds", "Length of a cycle.", buckets=_BUCKETS_S, registry=self.registry
        )
        self._bind = Histogram(
            "baton_scheduler_bind_seconds",
            "From a plan to the API server's yes.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._attempts = Counter(
            "baton_scheduler_attempts",
            "Placements tried: scheduled, unschedulable (with the cause), bind-failed.",
            ["result", "reason"],
            registry=self.registry,
        )
        self._retries = Counter("baton_scheduler_bind_retries", "Bind requests sent again.", registry=self.registry)
        self._evictions = Counter(
            "baton_scheduler_evictions", "Evictions by action and result.", ["action", "result"], registry=self.registry
        )
        self._reloads = Counter(
            "baton_scheduler_configuration_reloads",
            "Configurations read, by result.",
            ["result"],
            registry=self.registry,
        )
        self._slow = Counter(
            "baton_scheduler_slow_cycles", "Cycles longer than the warning limit.", registry=self.registry
        )
        self._cut = Counter(
            "baton_scheduler_cut_cycles",
            "Cycles that ended at their time limit before every job had its turn.",
            registry=self.registry,
        )
        self._seen: dict[PodKey, float] = {}
        """Since when pods wait, as far as this term knows."""
        self._recent: deque[float] = deque(maxlen=100_000)
        self.registry.register(_Rates(self))

    def watched(self, key: PodKey) -> None:
        """A pod that waits was seen; only the first time counts."""
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
        """Others bind from now on, and nobody tells us when pods are gone."""
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


class _Rates(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        gauge = GaugeMetricFamily("baton_scheduler_pods_per_second", "Pods bound per second, over the last ten.")
        gauge.add_metric([], self._metrics.pods_per_second())
        yield gauge
