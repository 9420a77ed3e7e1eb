"""The lock daemon's metrics.

All but the histogram of waits is read from the core at scrape time, so nothing is counted twice and a client that left
leaves no series behind. The histogram's children are looked up once per card.
"""

from collections.abc import Callable, Iterator

from prometheus_client import Histogram

from baton.lock.status import Account, CardStatus, Status
from baton.model.ids import CardId
from baton.observe.metrics import Family, Kind, Metrics, Row

_WAIT_BUCKETS_S = (0.001, 0.01, 0.1, 1, 5, 15, 30, 60, 120, 300, 600, 1800)

_GPU: list[tuple[Kind, str, str, Callable[[CardStatus], float]]] = [
    ("gauge", "scheduling", "Whether scheduling is on.", lambda g: g.on),
    ("gauge", "exclusive", "Whether clients take turns (1) or run together (0).", lambda g: g.exclusive),
    ("gauge", "holders", "Clients that may run now.", lambda g: len(g.holders)),
    ("gauge", "waiters", "Clients that wait for a turn.", lambda g: len(g.waiters)),
    ("gauge", "quantum_seconds", "Length of a turn while others wait.", lambda g: g.quantum_s),
    ("gauge", "switch_cost_seconds", "Cost of a switch, measured or expected.", lambda g: g.switch_cost_s or 0.0),
    ("gauge", "working_sets_bytes", "Sum of the working sets of active clients.", lambda g: g.working_sets_bytes or 0),
    ("gauge", "fairness_error", "Share of time that went to others than those entitled.", lambda g: g.fairness_error),
    ("counter", "switches", "Turns that began after another client's.", lambda g: g.switches),
    ("counter", "mode_changes", "Changes between running together and in turns.", lambda g: g.mode_changes),
    ("counter", "thrash_spells", "Times that thrashing was found.", lambda g: g.thrash_spells),
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
_CLIENT_LABELS = ("gpu", "client", "tenant", "namespace", "pod")

_OF_GPUS = [(Family(kind, f"baton_lock_gpu_{name}", text, ("gpu",)), read) for kind, name, text, read in _GPU]
_OF_CLIENTS = [(Family("counter", f"baton_lock_client_{n}", text, _CLIENT_LABELS), read) for n, text, read in _ACCOUNT]
_OF_TENANTS = [(Family("counter", f"baton_lock_tenant_{n}", text, ("tenant",)), read) for n, text, read in _ACCOUNT]
_CLIENTS = Family("gauge", "baton_lock_clients", "Connected clients by state.", ("gpu", "state"))
_COUNTS = {
    name: Family("counter", f"baton_lock_{name}", f"Number of {name.replace('_', ' ')}.")
    for name in ("events", "frames_received", "frames_sent", "journal_failures")
}
_FAMILIES = (
    *(family for family, _ in _OF_GPUS),
    *(family for family, _ in (*_OF_CLIENTS, *_OF_TENANTS)),
    _CLIENTS,
    *_COUNTS.values(),
)


class LockMetrics:
    """The metrics of one daemon."""

    def __init__(self, status: Callable[[], Status], counts: Callable[[], dict[str, int]]) -> None:
        self._status = status
        self._counts = counts
        self.registry = Metrics()
        self.registry.read(_FAMILIES, self._rows)
        self._waits = self.registry.histogram(
            "baton_lock_wait_seconds", "Time from asking for a turn to getting it.", "gpu", buckets=_WAIT_BUCKETS_S
        )
        self._children: dict[CardId, Histogram] = {}

    def waited(self, card: CardId, wait_s: float) -> None:
        """A turn was given after this wait."""
        child = self._children.get(card)
        if child is None:
            child = self._children[card] = self._waits.labels(card)
        child.observe(wait_s)

    def _rows(self) -> Iterator[Row]:
        status = self._status()
        for card in status.gpus:
            for family, value in _OF_GPUS:
                yield Row(family, (card.gpu,), value(card))
        states: dict[tuple[str, str], int] = {}
        for client in status.clients:
            states[client.gpu, client.state] = states.get((client.gpu, client.state), 0) + 1
            if client.account.grants or client.account.waited_s:
                labels = (client.gpu, client.id, client.tenant, client.namespace, client.pod)
                for family, read in _OF_CLIENTS:
                    yield Row(family, labels, read(client.account))
        for tenant in status.tenants:
            for family, read in _OF_TENANTS:
                yield Row(family, (tenant.tenant,), read(tenant.account))
        for state, count in sorted(states.items()):
            yield Row(_CLIENTS, state, count)
        for name, count in self._counts().items():
            yield Row(_COUNTS[name], (), count)
