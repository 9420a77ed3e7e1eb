"""When the credit of a queue is written, and what it says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from baton.engine.events import GroupChanged
from baton.model import volcano
from baton.model.names import PodGroupPhase
from baton.model.resource import Resource
from baton.scheduler.feed.feed import Feed
from baton.scheduler.settings import Settings
from baton.scheduler.status.queues import QueueStatuses
from tests.engine.clusters import Cluster, job, node, queue

CONF = 'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: gang\n  - name: overcommit\n  - name: predicates\n'
CPU = 1000


class Queues:
    """An API server that has queues and nothing else, and shows each change at once."""

    def __init__(self, *names: str) -> None:
        self.feed = Feed(self, ("volcano",), (), lambda: None)  # type: ignore[arg-type]
        self.writes: list[tuple[str, Any]] = []
        self.wrote = asyncio.Event()
        self._version = 0
        for name in names:
            self._show(name, {"state": "Open"})

    async def patch(self, resource: Resource[Any], name: str, body: Any, *, subresource: str) -> None:
        assert (resource, subresource) == (volcano.QUEUES, "status")
        self.writes.append((name, body["status"]))
        old = self.feed.queues.get(name)  # type: ignore[arg-type]
        assert old is not None
        self._show(name, _merged(msgspec.to_builtins(old.status), body["status"]))
        self.wrote.set()

    def _show(self, name: str, status: Any) -> None:
        self._version += 1
        metadata = {"name": name, "resourceVersion": str(self._version)}
        self.feed.queues.put(msgspec.convert({"metadata": metadata, "status": status}, volcano.Queue))

    def credit(self, name: str) -> volcano.QueueCredit:
        found = self.feed.queues.get(name)  # type: ignore[arg-type]
        assert found is not None
        return found.status.credit

    def arrive(self, name: str, queue: str) -> None:
        """A PodGroup comes in by the watch."""
        metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "7"}
        self.feed.groups.put(msgspec.convert({"metadata": metadata, "spec": {"queue": queue}}, volcano.PodGroup))


def _merged(old: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    kept = {name: value for name, value in (old or {}).items() if name not in change}
    new = {name: _merged((old or {}).get(name), value) for name, value in change.items() if value is not None}
    return {**kept, **new}


class Desk:
    """A writer at work, and a cluster that it speaks of."""

    def __init__(self, *names: str, cpu: int = 10) -> None:
        self.cluster = Cluster(nodes=[node("a", cpu=cpu)], queues=[queue(name) for name in names], conf=CONF)
        self.queues = Queues(*names)
        client: Any = self.queues
        settings = Settings(status_pause_s=0.01)
        self.statuses = QueueStatuses(client, self.queues.feed, self.cluster.engine, settings, lambda: 0.0)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        work = asyncio.create_task(self.statuses.run())
        try:
            async with asyncio.timeout(120):
                yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    def admit(self, name: str, cpu: int, queue: str, phase: PodGroupPhase = PodGroupPhase.INQUEUE) -> None:
        literal = job(name, pods=0, queue=queue, phase=phase, min_resources=(("cpu", cpu * CPU),))
        self.cluster.apply(GroupChanged(literal.group))

    async def until(self, name: str, as_of: str, cpu: str | None) -> None:
        while (self.queues.credit(name).as_of, self.queues.credit(name).amounts.get("cpu")) != (as_of, cpu):
            self.queues.wrote.clear()
            await self.queues.wrote.wait()


async def test_a_credit_says_how_much_and_which_groups_it_knows() -> None:
    desk = Desk("default")
    async with desk.working():
        desk.statuses.looked("5", refused=False)
        await desk.until("default", "5", "10")


async def test_a_credit_is_written_again_for_groups_of_its_queue_and_not_for_those_of_others() -> None:
    desk = Desk("busy", "idle", cpu=100)
    async with desk.working():
        desk.statuses.looked("5", refused=False)
        await desk.until("idle", "5", "60")
        await desk.until("busy", "5", "60")
        desk.queues.writes.clear()
        desk.queues.arrive("g", "busy")
        desk.admit("g", 2, "busy")
        desk.statuses.looked("7", refused=False)
        await desk.until("busy", "7", "59")
        assert {name for name, _ in desk.queues.writes} == {"busy"}
        assert desk.queues.credit("idle").as_of == "5"


async def test_a_credit_is_written_again_when_its_amount_changes_a_lot() -> None:
    desk = Desk("busy", "idle", cpu=100)
    async with desk.working():
        desk.statuses.looked("5", refused=False)
        await desk.until("idle", "5", "60")
        desk.admit("g", 60, "busy")
        desk.statuses.looked("7", refused=False)
        await desk.until("idle", "7", "30")


async def test_a_waiting_job_ends_the_credit_at_once_and_its_start_returns_it_later() -> None:
    desk = Desk("default")
    async with desk.working():
        desk.statuses.looked("5", refused=False)
        await desk.until("default", "5", "10")
        desk.admit("big", 50, "default", PodGroupPhase.PENDING)
        assert desk.cluster.run().plan.refused
        desk.statuses.looked("6", refused=True)
        await desk.until("default", "", None)
        assert desk.queues.writes[-1] == ("default", {"credit": None})
        desk.admit("big", 1, "default", PodGroupPhase.INQUEUE)
        desk.statuses.looked("9", refused=False)
        await desk.until("default", "9", "10")


async def test_an_unchanged_status_is_not_written_again() -> None:
    desk = Desk("default")
    async with desk.working():
        desk.statuses.looked("5", refused=False)
        await desk.until("default", "5", "10")
        writes = len(desk.queues.writes)
        for version in range(6, 20):
            desk.statuses.looked(str(version), refused=False)
            await asyncio.sleep(0.01)
        assert len(desk.queues.writes) == writes
