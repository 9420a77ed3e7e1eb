"""Metrics in Prometheus' format, over TCP or a unix socket.

Everything but the wait histogram is read from the core when somebody scrapes, so that nothing is counted twice and a
client that left leaves no series behind. The histogram's children are looked up once per card.
"""

from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.errors import UnavailableError
from baton.lock.status import Account, Status
from baton.model.ids import CardId

_WAIT_BUCKETS_S = (0.001, 0.01, 0.1, 1, 5, 15, 30, 60, 120, 300, 600, 1800)
_CLIENT_LABELS = ["gpu", "client", "tenant", "namespace", "pod"]

_GPU_GAUGES: list[tuple[str, str, Callable[[Any], float]]] = [
    ("scheduling", "Whether scheduling is on.", lambda g: g.on),
    ("exclusive", "Whether clients take turns (1) or run together (0).", lambda g: g.exclusive),
    ("holders", "Clients that may run now.", lambda g: len(g.holders)),
    ("waiters", "Clients that wait for a turn.", lambda g: len(g.waiters)),
    ("quantum_seconds", "Length of a turn while others wait.", lambda g: g.quantum_s),
    ("switch_cost_seconds", "What a switch costs, measured or expected.", lambda g: g.switch_cost_s or 0.0),
    ("working_sets_bytes", "Sum of the working sets of active clients.", lambda g: g.working_sets_bytes or 0),
    ("fairness_error", "Share of time that went to others than those entitled.", lambda g: g.fairness_error),
]
_GPU_COUNTERS: list[tuple[str, str, Callable[[Any], float]]] = [
    ("switches", "Turns that began after another client's.", lambda g: g.switches),
    ("mode_changes", "Changes between running together and in turns.", lambda g: g.mode_changes),
    ("thrash_spells", "Times that thrashing was found.", lambda g: g.thrash_spells),
]
_ACCOUNT: list[tuple[str, str, Callable[[Account], float]]] = [
    ("received_seconds", "GPU time received.", lambda a: a.received_s),
    ("entitled_seconds", "GPU time that weights and limits entitled to.", lambda a: a.entitled_s),
    ("waited_seconds", "Time spent waiting for a turn.", lambda a: a.waited_s),
    ("grants", "Turns given.", lambda a: a.grants),
    ("drops", "Turns ended because others waited or a limit was reached.", lambda a: a.drops),
    ("ignored_drops", "Turns not given back in time.", lambda a: a.ignored_drops),
    ("paged_bytes", "Bytes moved at the beginning of turns.", lambda a: a.paged_bytes),
]


class LockCollector(Collector):
    """Turns a status into metric families."""

    def __init__(self, status: Callable[[], Status], counts: Callable[[], dict[str, int]]) -> None:
        self._status = status
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        status = self._status()
        for name, text, value in _GPU_GAUGES:
            gauge = GaugeMetricFamily(f"baton_lock_gpu_{name}", text, labels=["gpu"])
            for card in status.gpus:
                gauge.add_metric([card.gpu], float(value(card)))
            yield gauge
        for name, text, value in _GPU_COUNTERS:
            counter = CounterMetricFamily(f"baton_lock_gpu_{name}", text, labels=["gpu"])
            for card in status.gpus:
                counter.add_metric([card.gpu], float(value(card)))
            yield counter
        for name, text, read in _ACCOUNT:
            by_client = CounterMetricFamily(f"baton_lock_client_{name}", text, labels=_CLIENT_LABELS)
            by_tenant = CounterMetricFamily(f"baton_lock_tenant_{name}", text, labels=["tenant"])
            for client in status.clients:
                if client.account.grants or client.account.waited_s:
                    labels = [client.gpu, client.id, client.tenant, client.namespace, client.pod]
                    by_client.add_metric(labels, float(read(client.account)))
            for tenant in status.tenants:
                by_tenant.add_metric([tenant.tenant], float(read(tenant.account)))
            yield by_client
            yield by_tenant
        clients = GaugeMetricFamily("baton_lock_clients", "Connected clients by state.", labels=["gpu", "state"])
        states: dict[tuple[str, str], int] = {}
        for one in status.clients:
            states[(one.gpu, one.state)] = states.get((one.gpu, one.state), 0) + 1
        for (gpu, state), count in sorted(states.items()):
            clients.add_metric([gpu, state], count)
        yield clients
        for name, count in self._counts().items():
            yield CounterMetricFamily(f"baton_lock_{name}", f"Number of {name.replace('_', ' ')}.", value=count)


class LockMetrics:
    """The registry of one daemon."""

    def __init__(self, status: Callable[[], Status], counts: Callable[[], dict[str, int]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(LockCollector(status, counts))
        self._waits = Histogram(
            "baton_lock_wait_seconds",
            "Time from asking for a turn to getting it.",
            ["gpu"],
            buckets=_WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._children: dict[CardId, Histogram] = {}

    def waited(self, card: CardId, wait_s: float) -> None:
        """A turn was given after this wait."""
        child = self._children.get(card)
        if child is None:
            child = self._children[card] = self._waits.labels(card)
        child.observe(wait_s)

    def text(self) -> bytes:
        """One scrape."""
        return generate_latest(self.registry)


async def serve(metrics: LockMetrics, *, port: int | None = None, host: str = "127.0.0.1") -> web.AppRunner:
    """Answer `/metrics` and `/healthz`; the caller cleans the runner up."""

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", scrape), web.get("/healthz", health)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise UnavailableError(
            f"metrics cannot be served on {host}:{port}: {error.strerror}; choose another --metrics-port"
        ) from error
    return runner
