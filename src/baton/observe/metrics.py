"""How a program declares its metrics.

There are two kinds. What happens is *counted* as it happens: `counter`, `gauge` and `histogram` return the objects of
prometheus_client. What can be looked up is *read* at scrape time: `read` declares the families and a function that
returns their rows, so a series ends with the thing that it describes.

A scrape has two steps. Rows are read on the event loop, because the state that they come from changes there and only
there; the function copies numbers and returns, or awaits what takes time. The page is then written in a thread: text
for thousands of series takes long enough to delay everything that the loop serves.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Kind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    """A metric by its name, with its labels."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()

    def empty(self) -> CounterMetricFamily | GaugeMetricFamily:
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return make(self.name, self.help, labels=self.labels)


class Row(NamedTuple):
    """One series of a family that is read: its labels' values and its own."""

    family: Family
    labels: tuple[str, ...]
    value: float


ReadRows = Callable[[], Iterable[Row] | Awaitable[Iterable[Row]]]


class Metrics:
    """All metrics of a program, or of one part of it."""

    def __init__(self) -> None:
        self._counted = CollectorRegistry()
        self._declared: dict[str, Family] = {}
        self._readers: list[tuple[Sequence[Family], ReadRows]] = []
        self._parts: list[Metrics] = []

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        self._declare(Family("counter", name, text, labels))
        return Counter(name, text, labels, registry=self._counted)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self._declare(Family("gauge", name, text, labels))
        return Gauge(name, text, labels, registry=self._counted)

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        self._declare(Family("histogram", name, text, labels))
        return Histogram(name, text, labels, buckets=buckets, registry=self._counted)

    def read(self, families: Sequence[Family], rows: ReadRows) -> None:
        """Have `rows` called at every scrape for the series of these families."""
        for family in families:
            self._declare(family)
        self._readers.append((families, rows))

    def add(self, part: "Metrics") -> None:
        """Include a part whose metrics come and go together."""
        self._parts.append(part)

    def remove(self, part: "Metrics") -> None:
        self._parts.remove(part)

    def declared(self) -> list[Family]:
        """Every metric by its name."""
        return sorted([*self._declared.values(), *(family for part in self._parts for family in part.declared())])

    async def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        parts = [await part._take() for part in self._with_parts()]
        return await asyncio.to_thread(generate_latest, _Page(parts))

    def _declare(self, family: Family) -> None:
        if family.name in self._declared:
            raise ValueError(f"the metric {family.name} is declared twice")
        self._declared[family.name] = family

    def _with_parts(self) -> "Iterator[Metrics]":
        yield self
        for part in self._parts:
            yield from part._with_parts()

    async def _take(self) -> "_Taken":
        rows: list[Row] = []
        for _, read in self._readers:
            found = read()
            rows.extend(await found if inspect.isawaitable(found) else found)
        return _Taken(self._counted, [family for families, _ in self._readers for family in families], rows)


class _Taken(NamedTuple):
    """One part at the moment of a scrape."""

    counted: CollectorRegistry
    families: list[Family]
    rows: list[Row]

    def collect(self) -> Iterator[Metric]:
        yield from self.counted.collect()
        found = {family.name: family.empty() for family in self.families}
        for row in self.rows:
            found[row.family.name].add_metric(row.labels, row.value)
        yield from found.values()


class _Page(Collector):
    def __init__(self, parts: Sequence[_Taken]) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        for part in self._parts:
            yield from part.collect()
