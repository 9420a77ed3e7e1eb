"""The phase of a PodGroup, derived from its pods, and when it is written."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from baton.engine.events import GroupChanged, PodChanged, PodRemoved
from baton.engine.plan import PhaseChange, Plan
from baton.engine.session.phases import phase_of
from baton.engine.state.jobs import Job
from baton.kube.recorder import Recorder
from baton.model import core, volcano
from baton.model.ids import GroupKey, Key, NodeName
from baton.model.names import PodGroupPhase, PodPhase
from baton.model.resource import Resource
from baton.scheduler.feed.feed import Feed
from baton.scheduler.metrics import Metrics
from baton.scheduler.settings import Settings
from baton.scheduler.status.statuses import Statuses
from tests.engine.clusters import Cluster, gang, job, node, pod, spec

PREEMPT = """
actions: "allocate, preempt"
tiers:
- plugins: [{name: gang}, {name: priority}, {name: predicates}]
"""


def group(*, on: tuple[str, ...] = (), phase: PodGroupPhase = PodGroupPhase.INQUEUE) -> tuple[Cluster, Job]:
    """A gang of two, some of it running, on a cluster of one node."""
    cluster = Cluster(nodes=[node("a")], jobs=[gang("g", pods=2, on=on, phase=phase)])
    return cluster, cluster.engine.state.jobs[GroupKey("team/g")]


def test_an_admitted_group_runs_once_its_minimum_is_placed() -> None:
    cluster, job = group()
    assert phase_of(job) is PodGroupPhase.INQUEUE
    cluster.run()
    assert phase_of(job) is PodGroupPhase.RUNNING


def test_a_group_whose_pods_have_all_ended_is_completed() -> None:
    cluster, job = group(on=("a", "a"), phase=PodGroupPhase.RUNNING)
    members = [event for event in cluster.events if isinstance(event, PodChanged)]
    ended = [PodChanged(msgspec.structs.replace(event.pod, phase=PodPhase.SUCCEEDED)) for event in members]
    cluster.apply(ended[0])
    assert phase_of(job) is PodGroupPhase.RUNNING
    cluster.apply(ended[1])
    assert phase_of(job) is PodGroupPhase.COMPLETED


def test_a_running_group_that_lost_all_its_pods_waits_for_admission_again() -> None:
    cluster, job = group(on=("a", "a"), phase=PodGroupPhase.RUNNING)
    cluster.apply(*(PodRemoved(event.pod.key) for event in cluster.events if isinstance(event, PodChanged)))
    assert phase_of(job) is PodGroupPhase.PENDING


def test_the_phase_from_the_cluster_stays() -> None:
    cluster, job = group(phase=PodGroupPhase.PENDING)
    assert phase_of(job) is PodGroupPhase.PENDING
    cluster.apply(GroupChanged(job.group))
    assert phase_of(job) is PodGroupPhase.PENDING


def test_a_gang_that_still_gets_pods_is_not_reported_as_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0.0]
    monkeypatch.setattr("baton.scheduler.status.statuses.time", SimpleNamespace(monotonic=lambda: moment[0]))
    cluster = Cluster(nodes=[node("a")], jobs=[gang("g", pods=1, min_member=3)])
    client: Any = None
    feed = Feed(client, ("volcano",), (), lambda: None)
    feed.groups.put(group_object("g"))
    heard = Heard()
    recorder: Any = heard
    statuses = Statuses(client, feed, cluster.engine, recorder, Settings(), Metrics())

    def look(at_s: float) -> list[str]:
        moment[0] = at_s
        statuses.take(cluster.engine.schedule(at_s, explain=True), explained=True)
        return heard.reasons

    assert look(0.0) == []
    cluster.apply(PodChanged(pod("g-late", group=GroupKey("team/g"))))
    assert look(100.0) == []
    assert look(100.5) == []
    assert look(101.5) == ["Unschedulable"]


async def test_a_pod_without_its_group_gets_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.scheduler.status.statuses._GROUP_PAUSE_S", 0.0)
    client: Any = None
    feed = Feed(client, ("volcano",), (), lambda: None)
    heard = Heard()
    recorder: Any = heard
    settings = Settings(status_pause_s=0.01)
    statuses = Statuses(client, feed, Cluster().engine, recorder, settings, Metrics())
    statuses.in_burst = looked = Burst()
    looked.lasts = False

    def show(name: str, uid: str, **spec: Any) -> None:
        named = {"scheduling.k8s.io/group-name": "typo"}
        metadata = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": uid, "annotations": named}
        feed.pods.put(msgspec.convert({"metadata": metadata, "spec": {"schedulerName": "volcano", **spec}}, core.Pod))

    show("a", "first")
    show("gated", "gated", schedulingGates=[{"name": "later"}])
    show("bound", "bound", nodeName="n")
    work = asyncio.create_task(statuses.run())
    async with asyncio.timeout(30):
        for uid in ("first", "second"):
            show("a", uid)
            for _ in range(3):
                await looked.asked.acquire()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert heard.messages == ["its PodGroup team/typo does not exist"] * 2, "once for each pod"


class Bystander:
    """A client that only takes the status of pods."""

    def __init__(self) -> None:
        self.statuses: list[tuple[str, dict[str, Any]]] = []
        self.more = asyncio.Event()

    async def patch(self, resource: Resource[Any], name: str, body: Any, *_: Any, **__: Any) -> None:
        assert resource is core.PODS
        self.statuses.append((name, body["status"]))
        self.more.set()


class Told:
    """Pods of a feed and an engine, and what is written about them while the writer runs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client = Bystander()
        client: Any = self.client
        self.feed = Feed(client, ("volcano",), (), lambda: None)
        recorder: Any = Heard()
        self.statuses = Statuses(client, self.feed, cluster.engine, recorder, Settings(), Metrics())
        self._version = 0

    def pod(self, name: str, uid: str, **status: Any) -> None:
        """Shown to the writer; the engine has been told already."""
        self._version += 1
        metadata = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(self._version)}
        body = {"metadata": metadata, "spec": {"schedulerName": "volcano"}, "status": status}
        self.feed.pods.put(msgspec.convert(body, core.Pod))

    def look(self, at_s: float) -> None:
        self.statuses.take(self.cluster.engine.schedule(at_s, explain=True), explained=True)

    async def written(self) -> tuple[str, dict[str, Any]]:
        async with asyncio.timeout(30):
            while not self.client.statuses:
                self.client.more.clear()
                await self.client.more.wait()
        return self.client.statuses.pop(0)


async def test_a_later_pod_of_the_same_name_gets_its_own_reason() -> None:
    told = Told(Cluster(nodes=[node("a", cpu=1)], pods=[pod("web-0", spec(cpu=2), uid="first")]))
    told.pod("web-0", "first")
    work = asyncio.create_task(told.statuses.run())
    told.look(0.0)
    name, status = await told.written()
    assert (name, status["conditions"][0]["reason"]) == ("web-0", "Unschedulable")
    told.cluster.apply(PodChanged(pod("web-0", spec(cpu=2), uid="second")))
    told.pod("web-0", "second")
    told.look(1.0)
    assert await told.written() == (name, {"conditions": [{**status["conditions"][0], "lastTransitionTime": ANY}]})
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@pytest.mark.parametrize("by_us", [True, False], ids=["by us", "by a leader before us"])
async def test_a_nomination_that_is_over_is_taken_back(*, by_us: bool) -> None:
    """Two pods left for a gang of two, of which one is deleted: the other cannot start, and waits for no node."""
    at = NodeName("a")
    low, high = job("low", pods=2, on=["a", "a"], what=spec(cpu=1), priority=1), gang("high", pods=2, priority=5)
    waiting = [msgspec.structs.replace(item, nominated=None if by_us else at) for item in high.pods]
    told = Told(Cluster(nodes=[node("a", cpu=2)], jobs=[low], conf=PREEMPT))
    told.cluster.apply(GroupChanged(high.group), *(PodChanged(item) for item in waiting))
    for item in waiting:
        told.pod(item.key.partition("/")[2], item.key, **({} if by_us else {"nominatedNodeName": at}))
    work = asyncio.create_task(told.statuses.run())
    if by_us:
        told.look(0.0)
        for item in waiting:
            name, status = await told.written()
            assert (name, status["nominatedNodeName"]) == (item.key.partition("/")[2], at)
            told.pod(name, item.key, nominatedNodeName=at)
    told.cluster.apply(PodRemoved(waiting[1].key), *(PodRemoved(item.key) for item in low.pods))
    told.feed.pods.remove(Key(waiting[1].key))
    told.look(1.0)
    name, status = await told.written()
    assert (name, status["nominatedNodeName"]) == ("high-0", None)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


class Heard:
    """Takes events and keeps what they say."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.messages: list[str] = []

    def record(self, _about: Any, reason: str, message: str, *, warning: bool = False) -> None:
        self.reasons.append(reason)
        self.messages.append(message)


def group_object(name: str) -> volcano.PodGroup:
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "status": {"phase": "Pending"}}, volcano.PodGroup)


class Patched:
    """A client that only takes patches of PodGroups."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.more = asyncio.Event()

    async def patch(self, resource: Resource[Any], name: str, *_: Any, **__: Any) -> None:
        assert resource is volcano.POD_GROUPS
        self.groups.append(name)
        self.more.set()


class Burst:
    """Says whether pods are being bound in great numbers, and lets a test wait until it was asked often enough."""

    def __init__(self) -> None:
        self.lasts = True
        self.asked = asyncio.Semaphore(0)

    def __call__(self) -> bool:
        self.asked.release()
        return self.lasts


async def test_in_a_burst_of_bindings_only_awaited_admissions_are_written() -> None:
    """Nobody waits for that of a gang whose pods are there."""
    whole = gang("whole", pods=2)
    jobs = [gang("runs", pods=2, on=("a", "a"), phase=PodGroupPhase.INQUEUE), whole, gang("new", pods=1, min_member=2)]
    cluster = Cluster(nodes=[node("a")], jobs=jobs)
    client: Any = Patched()
    feed = Feed(client, ("volcano",), (), lambda: None)
    for name in ("runs", "new", "whole"):
        feed.groups.put(group_object(name))
    settings = Settings(status_pause_s=0.01)
    statuses = Statuses(client, feed, cluster.engine, Recorder(client, "test"), settings, Metrics())
    statuses.in_burst = burst = Burst()
    feed.groups_moved(GroupKey("team/runs"))
    changes = tuple(PhaseChange(GroupKey(f"team/{name}"), PodGroupPhase.INQUEUE) for name in ("whole", "new"))
    statuses.take(Plan(now_s=0.0, phases=changes), explained=False)
    work = asyncio.create_task(statuses.run())
    async with asyncio.timeout(120):
        for _ in range(40):
            await burst.asked.acquire()
        assert client.groups == ["new"]
        burst.lasts = False
        while client.groups != ["new", "runs", "whole"]:
            client.more.clear()
            await client.more.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@pytest.mark.parametrize("lasts", [True, False])
async def test_a_few_are_written_at_a_time_in_a_long_burst_and_after_it(
    monkeypatch: pytest.MonkeyPatch, *, lasts: bool
) -> None:
    monkeypatch.setattr("baton.scheduler.status.statuses._BURST_PAUSE_S", 0.0)
    for number in ("_BURST_NEWS", "_NEWS"):
        monkeypatch.setattr(f"baton.scheduler.status.statuses.{number}", 2)
    names = [f"g{place}" for place in range(9)]
    cluster = Cluster(nodes=[node("a")], jobs=[gang(name, pods=2, on=("a", "a")) for name in names])
    client: Any = Patched()
    feed = Feed(client, ("volcano",), (), lambda: None)
    statuses = Statuses(
        client, feed, cluster.engine, Recorder(client, "test"), Settings(status_pause_s=1e-6), Metrics()
    )
    for name in names:
        feed.groups.put(group_object(name))
    looks = 0

    def burst() -> bool:
        nonlocal looks
        looks += 1
        return lasts

    statuses.in_burst = burst
    work = asyncio.create_task(statuses.run())
    async with asyncio.timeout(120):
        while len(client.groups) < len(names):
            client.more.clear()
            await client.more.wait()
            assert len(client.groups) <= 2 * looks
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert client.groups == names
