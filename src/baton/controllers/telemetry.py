"""Metrics of the controller program itself; what a controller counts about its objects is its own affair."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


class Telemetry:
    """How much each controller does, how long that takes and what waits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.leading = Gauge(
            "baton_controller_leading", "Whether this replica leads (1) or waits (0).", registry=registry
        )
        self._syncs = Counter(
            "baton_controller_syncs", "Looks at one object.", ("controller", "result"), registry=registry
        )
        self._seconds = Histogram(
            "baton_controller_sync_seconds",
            "How long one look took, requests to the API server included.",
            ("controller",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._depth = Gauge(
            "baton_controller_queue", "Objects that wait to be looked at.", ("controller",), registry=registry
        )

    def watch_queue(self, controller: str, depth: Callable[[], int]) -> None:
        self._depth.labels(controller).set_function(depth)

    def synced(self, controller: str, seconds: float, *, failed: bool) -> None:
        self._syncs.labels(controller, "error" if failed else "success").inc()
        self._seconds.labels(controller).observe(seconds)
