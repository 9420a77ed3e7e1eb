"""Metrics of the controller program. A controller declares those of its own objects itself."""

from baton.observe.metrics import Family, Metrics

_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)

LEADING = Family("gauge", "baton_controller_leading", "Whether this replica leads (1) or waits (0).")
QUEUED = Family("gauge", "baton_controller_queue", "Objects that wait for reconciliation.", ("controller",))
FAMILIES = (LEADING, QUEUED)


class Telemetry:
    """How much each controller does, and how long it takes."""

    def __init__(self, metrics: Metrics) -> None:
        self._syncs = metrics.counter(
            "baton_controller_syncs", "Reconciliations of one object.", "controller", "result"
        )
        self._seconds = metrics.histogram(
            "baton_controller_sync_seconds",
            "How long a reconciliation took, including its requests to the API server.",
            "controller",
            buckets=_SECONDS,
        )

    def synced(self, controller: str, seconds: float, *, failed: bool) -> None:
        self._syncs.labels(controller, "error" if failed else "success").inc()
        self._seconds.labels(controller).observe(seconds)
