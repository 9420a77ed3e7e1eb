"""`baton why` gives one answer, whether the running scheduler is asked or the command lists the cluster itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from baton.cli.cluster import reasons
from baton.cli.cluster.reasons import Answer
from baton.cli.cluster.requests import MissingObjectError, Object
from baton.engine.presets import configured
from baton.engine.verdicts import Cause, UnknownWorkloadError
from baton.kube import garbage
from baton.kube.decoding import Page, WatchEvent
from baton.kube.errors import ApiError, ForbiddenError, NotFoundError
from baton.model import core
from baton.model.names import JobPhase
from baton.model.resource import Resource
from baton.scheduler.loop import Scheduler
from baton.scheduler.metrics import Metrics
from baton.scheduler.program import why
from baton.scheduler.settings import Settings

SIMPLE = 'actions: "enqueue, allocate"\ntiers:\n- plugins: [{name: gang}, {name: predicates}]\n'
CAPACITY = SIMPLE.replace("{name: gang}", "{name: gang}, {name: capacity}")
PROPORTION = SIMPLE.replace("{name: gang}", "{name: gang}, {name: proportion}")
OVERCOMMIT = SIMPLE.replace("{name: gang}", "{name: gang}, {name: overcommit}")
PREEMPT = SIMPLE.replace("allocate", "allocate, preempt").replace("{name: gang}", "{name: gang}, {name: priority}")


class ApiServer:
    """Objects in memory, with the methods of the client that a scheduler and the command call."""

    def __init__(self, objects: list[Object], conf: str) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.scheduler: Scheduler | None = None
        self.refuses_bindings = False
        self._conf = conf
        self._moved = asyncio.Condition()
        self._changes: list[tuple[str, str, Object]] = []
        for found in objects:
            self.put(found)

    def put(self, found: Object) -> None:
        metadata = found["metadata"]
        metadata.setdefault("uid", metadata["name"])
        metadata["resourceVersion"] = str(len(self._changes) + 1)
        key = f"{metadata.get('namespace', '')}/{metadata['name']}"
        self.objects[found["kind"].lower() + "s", key] = found
        self._changes.append((found["kind"].lower() + "s", "MODIFIED", msgspec.json.decode(msgspec.json.encode(found))))

    async def list_page(self, resource: Resource[Any], *_: Any, **__: Any) -> Page[Any]:
        found = [item for (plural, _), item in self.objects.items() if plural == resource.plural]
        return Page([msgspec.convert(item, resource.kind) for item in found], str(len(self._changes)), "")

    async def watch(
        self, resource: Resource[Any], _namespace: Any, *, resource_version: str, **_: Any
    ) -> AsyncIterator[list[WatchEvent[Any]]]:
        at = int(resource_version)
        while True:
            async with self._moved:
                while len(self._changes) == at:
                    await self._moved.wait()
            news, at = self._changes[at:], len(self._changes)
            events = [
                WatchEvent(kind, item["metadata"]["resourceVersion"], msgspec.convert(item, resource.kind))
                for plural, kind, item in news
                if plural == resource.plural
            ]
            if events:
                yield events

    async def get(self, resource: Resource[Any], name: str, namespace: str) -> Any:
        if resource is core.CONFIG_MAPS:
            body: Object = {"metadata": {"name": name}, "data": {"volcano-scheduler.conf": self._conf}}
            return msgspec.convert(body, core.ConfigMap)
        if resource.plural == "leases" and self.scheduler is not None:
            return msgspec.convert({"metadata": {}, "spec": {"holderIdentity": "replica_1"}}, resource.kind)
        raise NotFoundError(404, "NotFound", f"{resource.plural} {name} not found")

    async def patch(self, resource: Resource[Any], name: str, body: Any, namespace: str = "", **_: Any) -> None:
        found = self.objects.get((resource.plural, f"{namespace}/{name}"))
        if found is None:
            raise NotFoundError(404, "NotFound", f"{name} not found")
        changes = msgspec.to_builtins(body)
        await self._change({**found, "status": {**found.get("status", {}), **changes.get("status", {})}})

    async def create(self, resource: Resource[Any], body: Any, *_: Any) -> None:
        """An event, or a queue that every installation has."""

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        if "/proxy/why/" in path and self.scheduler is not None:
            try:
                return msgspec.json.encode(why(self.scheduler, path.partition("/proxy/why/")[2]))
            except UnknownWorkloadError as error:
                raise NotFoundError(404, "", str(error)) from None
        namespace, _pods, name, action = path.split("/")[-4:]
        found = self.objects["pods", f"{namespace}/{name}"]
        if action == "binding" and self.refuses_bindings:
            raise ForbiddenError(403, "Forbidden", "a webhook refuses it")
        if action == "eviction":
            await self._change(
                {**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
            )
            return b"{}"
        raise ApiError(400, "BadRequest", f"unexpected {method} {path}")

    async def _change(self, found: Object) -> None:
        self.put(found)
        async with self._moved:
            self._moved.notify_all()


class World:
    """One cluster, and a command beside it."""

    def __init__(self, objects: list[Object], conf: str = SIMPLE) -> None:
        self._runner = asyncio.Runner()
        self.wait = self._runner.run
        self.access = SimpleNamespace(namespace="team")
        self._conf = conf
        self._task: asyncio.Task[None] | None = None
        self.client = self.wait(self._serve(objects))

    async def _serve(self, objects: list[Object]) -> ApiServer:
        return ApiServer(objects, self._conf)

    def get(self, resource: Resource[Any], name: str, namespace: str) -> Object:
        found = self.client.objects.get((resource.plural, f"{namespace}/{name}"))
        if found is None:
            raise MissingObjectError(f"there is no {name}", "")
        return found

    def start(self, settings: Settings) -> None:
        self.wait(self._start(settings))

    async def _start(self, settings: Settings) -> None:
        client: Any = self.client
        scheduler = Scheduler(client, configured(self._conf), settings, Metrics())
        self._task = asyncio.create_task(scheduler.run())
        await scheduler.synced.wait()
        self.client.scheduler = scheduler

    def answer(self, name: str) -> Answer:
        cluster: Any = self
        return reasons.answer(cluster, "team", name, None)

    def until(self, name: str, cause: Cause) -> Answer:
        """What the scheduler answers once it has come to the cause and has written what it knows."""
        found = self.answer(name)
        for _ in range(100):
            if found.verdict is None or found.verdict.cause is cause:
                break
            self.wait(asyncio.sleep(0.02))
            found = self.answer(name)
        self.wait(asyncio.sleep(0.1))
        return self.answer(name)

    def stop(self) -> None:
        self.wait(self._stop())

    async def _stop(self) -> None:
        self.client.scheduler = None
        garbage.thaw()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def close(self) -> None:
        self.stop()
        self._runner.close()


def node(name: str = "n", cpu: int = 4) -> Object:
    status = {"allocatable": {"cpu": str(cpu), "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"kind": "Node", "metadata": {"name": name}, "status": status}


def pod(name: str, *, cpu: int = 1, group: str = "", phase: str = "Pending", **more: Any) -> Object:
    metadata: Object = {"name": name, "namespace": "team", **more.pop("metadata", {})}
    if group:
        metadata["annotations"] = {"scheduling.k8s.io/group-name": group}
    status = {"phase": phase, **more.pop("status", {})}
    containers = [{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}]
    spec = {"schedulerName": "volcano", "containers": containers, **more}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def group(name: str, minimum: int, *, phase: str = "Inqueue", **spec: Any) -> Object:
    metadata = {"name": name, "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {"minMember": minimum, **spec},
        "status": {"phase": phase},
    }


def gang(name: str, pods: int, *, cpu: int = 1, minimum: int = 0, on: str = "", **spec: Any) -> list[Object]:
    placed: Object = {"nodeName": on, "phase": "Running"} if on else {}
    members = [pod(f"{name}-{place}", cpu=cpu, group=name, **placed) for place in range(pods)]
    return [group(name, minimum or pods, phase="Running" if on else "Inqueue", **spec), *members]


def queue(name: str, state: str = "Open", **spec: Any) -> Object:
    return {"kind": "Queue", "metadata": {"name": name}, "spec": {"weight": 1, **spec}, "status": {"state": state}}


def job(phase: JobPhase, **status: Any) -> Object:
    metadata = {"name": "train", "namespace": "team", "uid": "1"}
    spec = {"minAvailable": 2, "tasks": [{"replicas": 3}]}
    state = {"phase": phase.value, "reason": "Because", "message": "of this"}
    return {"kind": "Job", "metadata": metadata, "spec": spec, "status": {"state": state, **status}}


class Case(NamedTuple):
    """A pod that waits, or does not, for this cause."""

    cause: Cause
    objects: list[Object]
    asked: str = "pod/a"
    conf: str = SIMPLE
    about: str = ""


STUCK = [{"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]
OWNED = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}]
}
TO_COME = {"annotations": {"scheduling.volcano.sh/group-min-member": "2"}}
GATES = [{"name": "example.com/later"}]
CASES = [
    Case(Cause.SUCCEEDED, [pod("a", phase="Succeeded", nodeName="n")]),
    Case(Cause.FAILED, [pod("a", phase="Failed", status={"reason": "Evicted", "message": "no memory"})]),
    Case(Cause.DELETING, [pod("a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})]),
    Case(Cause.STARTING, [pod("a", nodeName="n")]),
    Case(Cause.RUNNING, [pod("a", nodeName="n", phase="Running")]),
    Case(Cause.CANNOT_START, [pod("a", nodeName="n", status={"containerStatuses": STUCK})]),
    Case(Cause.OTHER_SCHEDULER, [pod("a", schedulerName="default-scheduler")]),
    Case(Cause.NO_GROUP, [pod("a", group="typo")], about="the PodGroup does not exist"),
    Case(Cause.NO_GROUP, [pod("a", metadata=TO_COME)], about="the controller has not created it"),
    Case(Cause.NO_GROUP, [pod("a", metadata=OWNED)], about="the owner is not known"),
    Case(Cause.BIND_FAILED, [pod("a")]),
    Case(Cause.GATED, [pod("a", schedulingGates=GATES)], about="a pod"),
    Case(Cause.GATED, [group("g", 1), pod("a", group="g", schedulingGates=GATES)], about="a gang"),
    Case(Cause.NO_QUEUE, [group("g", 1, queue="typo"), pod("a", group="g")]),
    Case(
        Cause.QUEUE_CLOSED,
        [queue("shut", "Closed"), group("g", 1, queue="shut", phase="Pending"), pod("a", group="g")],
    ),
    Case(
        Cause.QUEUE_OVERUSED,
        [
            queue("q"),
            queue("r"),
            *gang("old", 2, on="n", queue="q"),
            *gang("a", 1, queue="q"),
            *gang("r", 4, queue="r"),
        ],
        asked="pod/a-0",
        conf=PROPORTION,
    ),
    Case(
        Cause.QUEUE_SHARE,
        [queue("q", capability={"cpu": "2"}), *gang("a", 3, queue="q")],
        asked="pod/a-0",
        conf=CAPACITY,
    ),
    Case(
        Cause.NOT_ADMITTED,
        [group("g", 1, phase="Pending", minResources={"cpu": "99"}), pod("a", group="g", cpu=99)],
        conf=OVERCOMMIT,
    ),
    Case(Cause.NOT_VALID, [*gang("a", 2, minimum=3)], asked="pod/a-0"),
    Case(
        Cause.HELD_BACK,
        [
            queue("q", dequeueStrategy="fifo"),
            *gang("first", 8, queue="q"),
            *gang("second", 1, queue="q"),
        ],
        asked="pod/second-0",
        conf=CAPACITY,
    ),
    Case(Cause.GANG, [*gang("a", 3, cpu=2)], asked="pod/a-0"),
    Case(Cause.NODES, [pod("a", cpu=9)]),
    Case(
        Cause.PIPELINED,
        [pod("low", cpu=4, nodeName="n", phase="Running"), pod("a", cpu=4, priority=9)],
        conf=PREEMPT,
    ),
    Case(Cause.NEXT, [pod("a")], about="a pod"),
    Case(Cause.NEXT, [group("train-1", 2, phase="Pending"), job(JobPhase.PENDING)], asked="job/train", about="a job"),
]
"""At least one of each cause."""

ONLY_THE_SCHEDULER_KNOWS = {Cause.BIND_FAILED: Cause.NEXT}
"""Nothing on the API server tells that a binding has failed; a scheduler that starts now would bind the pod next."""


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.close()


def test_there_is_a_case_for_each_cause() -> None:
    assert {case.cause for case in CASES} == set(Cause)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.cause.value} {case.about}".strip())
def test_the_command_gives_the_answer_of_the_scheduler_when_no_scheduler_answers(
    case: Case, worlds: list[World]
) -> None:
    world = World([node(), *case.objects], case.conf)
    worlds.append(world)
    world.client.refuses_bindings = case.cause is Cause.BIND_FAILED
    pause_s = 3600.0 if case.cause is Cause.NEXT else 0.0  # what is next is not placed yet: the scheduler has no cycle
    world.start(Settings(window_s=pause_s, status_pause_s=0.01, retry_first_s=60.0, retry_longest_s=60.0))
    key = case.asked.replace("pod/", "team/").replace("job/train", "team/train-1")
    scheduler = world.client.scheduler
    assert scheduler is not None
    asked = world.until(case.asked, case.cause)
    assert why(scheduler, key)["cause"] == case.cause.value
    world.stop()
    built = world.answer(case.asked)
    if case.cause in ONLY_THE_SCHEDULER_KNOWS:
        assert built.verdict is not None
        assert built.verdict.cause is ONLY_THE_SCHEDULER_KNOWS[case.cause]
        return
    assert asked.waits is built.waits is case.cause.waits
    assert built.sentence == asked.sentence
    assert built.verdict == asked.verdict
    if asked.source:
        assert (asked.source, built.source) == ("scheduler", "here")


@pytest.mark.parametrize("phase", JobPhase)
@pytest.mark.parametrize("with_group", [False, True], ids=["", "with a PodGroup"])
def test_a_job_has_one_answer_in_each_of_its_phases(phase: JobPhase, with_group: bool, worlds: list[World]) -> None:
    created = gang("train-1", 1, minimum=2, on="n") if with_group else []
    world = World([node(), job(phase, running=1), *created])
    worlds.append(world)
    world.start(Settings(window_s=0.0, status_pause_s=0.01))
    asked = world.until("job/train", Cause.NOT_VALID)
    world.stop()
    built = world.answer("job/train")
    assert (built.sentence, built.waits, built.verdict) == (asked.sentence, asked.waits, asked.verdict)
    assert built.waits is (phase in (JobPhase.PENDING, JobPhase.RUNNING))
