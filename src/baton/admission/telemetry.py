"""Metrics of the admission program."""

from collections.abc import Callable

from baton.observe.metrics import Family, Metrics, Row

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0)
_EXPIRY = Family(
    "gauge",
    "baton_admission_certificate_expiry_timestamp_seconds",
    "When the serving certificate expires. It is renewed with a third of its life left.",
)


class Telemetry:
    """How many objects were reviewed, with which result, how long that took, and how long the certificate lasts."""

    def __init__(self, metrics: Metrics, expires: Callable[[], float]) -> None:
        self._requests = metrics.counter("baton_admission_requests", "Reviews answered.", "path", "result")
        self._seconds = metrics.histogram(
            "baton_admission_seconds", "How long an answer took.", "path", buckets=_SECONDS
        )
        self._refusals = metrics.counter("baton_admission_refusals", "Refusals by rule.", "rule")
        metrics.read((_EXPIRY,), lambda: [Row(_EXPIRY, (), expires())])

    def answered(self, path: str, result: str, seconds: float) -> None:
        self._requests.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)

    def refused(self, rule: str) -> None:
        self._refusals.labels(rule).inc()
