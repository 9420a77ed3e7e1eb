"""How metrics are declared and read, and the full list of them: dashboards, rules and alerts name them."""

import functools
from pathlib import Path
from typing import Any

import pytest

from baton.admission.telemetry import Telemetry as AdmissionTelemetry
from baton.agent.telemetry import Telemetry as AgentTelemetry
from baton.controllers import telemetry as controllers
from baton.controllers.controller import Surroundings
from baton.controllers.program import CONTROLLERS
from baton.lock.daemon.daemon import LockDaemon
from baton.lock.daemon.metrics import LockMetrics
from baton.lock.paths import Paths
from baton.observe.metrics import Family, Metrics, Row
from baton.scheduler.metrics import Metrics as SchedulerMetrics
from baton.scheduler.program import SchedulerProgram
from baton.scheduler.reload import LiveConfiguration
from baton.scheduler.settings import Settings
from tests.observe.pages import scrape

_LIST = Path(__file__).with_name("metrics.txt")


def of_scheduler() -> Metrics:
    metrics, client = SchedulerMetrics(), None
    SchedulerProgram(client, Settings(), LiveConfiguration(metrics), metrics)  # type: ignore[arg-type]  # it asks nothing yet
    return metrics.registry


def of_controller() -> Metrics:
    metrics, nothing = Metrics(), functools.partial(list[Row])
    controllers.Telemetry(metrics)
    metrics.read(controllers.FAMILIES, nothing)
    unused: Any = None
    surroundings = Surroundings(client=unused, recorder=unused)
    for make in CONTROLLERS.values():
        make(surroundings)
    metrics.add(surroundings.metrics)
    return metrics


def of_admission() -> Metrics:
    metrics = Metrics()
    AdmissionTelemetry(metrics, float)
    return metrics


def of_agent() -> Metrics:
    agent: Any = None
    return AgentTelemetry(agent, {}).metrics


def of_lockd() -> Metrics:
    daemon = LockDaemon(Paths(Path("/nonexistent")))
    return LockMetrics(daemon.status, daemon.counts).registry


PROGRAMS = {
    "scheduler": of_scheduler,
    "controller": of_controller,
    "admission": of_admission,
    "agent": of_agent,
    "lockd": of_lockd,
}


def test_names_types_and_labels_of_all_metrics_are_the_listed_ones() -> None:
    """A change here breaks the dashboards, rules and alerts of users: change the list only together with them."""
    found = [
        f"{program} {family.name} {family.kind} {','.join(family.labels)}".rstrip()
        for program, metrics in PROGRAMS.items()
        for family in metrics().declared()
    ]
    assert found == _LIST.read_text().splitlines()


def test_a_name_has_one_meaning_in_all_programs() -> None:
    names = [family.name for metrics in PROGRAMS.values() for family in metrics().declared()]
    assert len(names) == len(set(names))


_ROOM = Family("gauge", "room", "How warm a room is.", ("name",))
_VISITS = Family("counter", "visits", "Visits so far.")


async def test_rows_become_series_and_end_with_what_they_describe() -> None:
    metrics, rooms = Metrics(), {"hall": 21.0, "attic": 15.5}
    metrics.read((_ROOM,), lambda: [Row(_ROOM, (name,), warmth) for name, warmth in rooms.items()])
    assert (await scrape(metrics)).value("room", name="attic") == 15.5
    del rooms["attic"]
    page = await scrape(metrics)
    assert page.value("room", name="hall") == 21.0
    assert page.value("room", name="attic") is None


async def test_what_happens_is_counted_beside_what_is_read() -> None:
    metrics = Metrics()
    metrics.counter("knocks", "Knocks at the door.", "door").labels("front").inc(2)
    metrics.histogram("stay_seconds", "Length of a visit.", buckets=(1, 60)).observe(30)
    metrics.read((_VISITS,), lambda: [Row(_VISITS, (), 3)])
    page = await scrape(metrics)
    assert page.value("knocks_total", door="front") == 2
    assert page.value("stay_seconds_bucket", le="60.0") == 1
    assert page.value("visits_total") == 3
    assert {family.name: family.type for family in page.families}["visits"] == "counter"


async def test_a_part_comes_and_goes_as_a_whole() -> None:
    metrics, part = Metrics(), Metrics()
    part.gauge("lamps", "Lamps that are on.").set(4)
    metrics.add(part)
    assert (await scrape(metrics)).value("lamps") == 4
    assert [family.name for family in metrics.declared()] == ["lamps"]
    metrics.remove(part)
    assert (await scrape(metrics)).value("lamps") is None


def test_a_name_is_declared_once() -> None:
    metrics = Metrics()
    metrics.counter("visits", "Visits so far.")
    with pytest.raises(ValueError, match="the metric visits is declared twice"):
        metrics.read((_VISITS,), list)
