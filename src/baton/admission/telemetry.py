"""Metrics of the admission program."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0)


class Telemetry:
    """How many objects came, what became of them, how long that took, and how long the certificate lasts."""

    def __init__(self, registry: CollectorRegistry, expires: Callable[[], float]) -> None:
        self._requests = Counter("baton_admission_requests", "Reviews answered.", ("path", "result"), registry=registry)
        self._seconds = Histogram(
            "baton_admission_seconds", "How long an answer took.", ("path",), buckets=_SECONDS, registry=registry
        )
        self._refusals = Counter("baton_admission_refusals", "Refusals by rule.", ("rule",), registry=registry)
        Gauge(
            "baton_admission_certificate_expiry_timestamp_seconds",
            "When the serving certificate ends; it is renewed with a third of its life left.",
            registry=registry,
        ).set_function(expires)

    def answered(self, path: str, result: str, seconds: float) -> None:
        self._requests.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)

    def refused(self, rule: str) -> None:
        self._refusals.labels(rule).inc()
