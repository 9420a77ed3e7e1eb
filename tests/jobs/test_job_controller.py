"""How many requests the job controller makes, and which ones wait: a stream of jobs against a server that counts.

What the requests do on a real API server is shown in tests/cluster/jobs; here only their number and order matter.
"""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from baton.jobs import job_controller
from baton.jobs.controller import Surroundings
from baton.jobs.job_controller import JobController
from baton.kube.client import Resource
from baton.kube.errors import ConflictError, ForbiddenError, NotFoundError
from baton.kube.store import Key, Store, key_of
from baton.kube.volcano import Job, Queue


class CountingServer:
    """Takes creates and status writes, answers as an API server does, and shows them when told to."""

    def __init__(self) -> None:
        self.stores: dict[str, Store[Any]] = {}
        self.requests: Counter[str] = Counter()
        self.unseen: list[tuple[str, Any]] = []
        self.conflicts = 0
        self.lost: set[str] = set()
        """Kinds of which somebody deletes all objects."""
        self._version = 1000

    def store(self, resource: Resource[Any], indexes: dict[str, Any] | None = None) -> Store[Any]:
        store = self.stores.setdefault(resource.plural, Store())
        for name, index in (indexes or {}).items():
            store.add_index(name, index)
        return store

    async def create(self, resource: Resource[Any], body: Any, namespace: str) -> Any:
        await asyncio.sleep(0)
        self.requests[f"create {resource.plural}"] += 1
        plain = msgspec.to_builtins(body)
        plain["metadata"] |= {"uid": f"uid-{plain['metadata']['name']}", "resourceVersion": self._next()}
        return self._answer(resource, msgspec.json.decode(msgspec.json.encode(plain), type=resource.kind))

    async def replace(
        self,
        resource: Resource[Any],
        name: str,
        body: Any,
        namespace: str,
        *,
        subresource: str = "",
        patient: bool = False,
    ) -> Any:
        await asyncio.sleep(0)
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError(409, "Conflict", "the object has been modified")
        self.requests[f"write {resource.plural}/{subresource}"] += 1
        old = self.stores[resource.plural].get(Key(f"{namespace}/{name}"))
        return self._answer(resource, self.changed(old, status=body["status"]))

    async def patch(self, resource: Resource[Any], name: str, body: Any, namespace: str) -> Any:
        self.requests[f"change {resource.plural}"] += 1
        if resource.plural in self.lost:
            raise NotFoundError(404, "NotFound", f"{name} not found")
        old = self.stores[resource.plural].get(Key(f"{namespace}/{name}")) if resource.plural in self.stores else None
        if old is None:
            return None
        plain = msgspec.json.decode(msgspec.json.encode(old))
        for part, changes in body.items():
            plain[part] = {**plain.get(part, {}), **changes}
        plain["metadata"]["resourceVersion"] = self._next()
        return self._answer(resource, msgspec.json.decode(msgspec.json.encode(plain), type=resource.kind))

    async def delete(self, resource: Resource[Any], name: str, namespace: str, *, options: Any = None) -> None:
        self.requests[f"delete {resource.plural}"] += 1
        self.stores[resource.plural].remove(Key(f"{namespace}/{name}"))

    def changed(self, old: Any, **fields: Any) -> Any:
        metadata = msgspec.structs.replace(old.metadata, resource_version=self._next())
        return msgspec.structs.replace(old, metadata=metadata, **fields)

    def show(self) -> None:
        """The watches catch up."""
        unseen, self.unseen = self.unseen, []
        for plural, item in unseen:
            if plural in self.stores:
                self.stores[plural].put(item)

    def _answer(self, resource: Resource[Any], item: Any) -> Any:
        self.unseen.append((resource.plural, item))
        return item

    def _next(self) -> str:
        self._version += 1
        return str(self._version)


class Quiet:
    def record(self, *_: Any, **__: Any) -> None:
        """Events are of no interest here."""


class Stream:
    """Jobs of one pod, a controller, and somebody who plays scheduler and kubelet."""

    def __init__(self, number: int) -> None:
        self.server = CountingServer()
        self.woken: dict[Key, None] = {}
        server: Any = self.server
        quiet: Any = Quiet()
        surroundings = Surroundings(client=server, recorder=quiet)
        self.metrics = surroundings.registry
        self.controller = JobController(surroundings)
        self.controller.watch(server, lambda key: self.woken.__setitem__(key, None))
        for place in range(number):
            task = {"name": "main", "replicas": 1, "template": {"spec": {"containers": [{"name": "c"}]}}}
            body = {
                "metadata": {"name": f"j{place}", "namespace": "n", "uid": f"u{place}", "resourceVersion": "1"},
                "spec": {"tasks": [task]},
            }
            self.server.stores["jobs"].put(msgspec.convert(body, Job))

    async def settle(self) -> None:
        """Look at everything that was woken, side by side, until nothing is."""
        while self.woken:
            keys, self.woken = list(self.woken), {}
            again_s = await asyncio.gather(*(self.controller.sync(key) for key in keys))
            self.woken.update({key: None for key, wait_s in zip(keys, again_s, strict=True) if wait_s == 0.0})
            self.server.show()

    def lend(self, **amounts: str) -> None:
        """The scheduler gives the queue credit."""
        status = {"state": "Open", "credit": {"asOf": "1000", "amounts": amounts}}
        body = {"metadata": {"name": "default", "resourceVersion": "1"}, "status": status}
        self.server.stores["queues"].put(msgspec.convert(body, Queue))

    async def run_all(self) -> None:
        await self.settle()
        for group in list(self.server.stores["podgroups"]):
            status = msgspec.structs.replace(group.status, phase="Inqueue")
            self.server.stores["podgroups"].put(self.server.changed(group, status=status))
        await self.settle()
        self.move_pods("Running")
        await self.settle()

    def move_pods(self, phase: str) -> None:
        for pod in list(self.server.stores["pods"]):
            status = msgspec.structs.replace(pod.status, phase=phase)
            self.server.stores["pods"].put(self.server.changed(pod, status=status))

    async def scale(self, replicas: int, *, min_available: int, **spec: Any) -> None:
        """Change the only job, and have it looked at."""
        self.change(replicas, min_available=min_available, **spec)
        await self.settle()

    def change(self, replicas: int, *, min_available: int, **spec: Any) -> None:
        (job,) = self.server.stores["jobs"]
        task = msgspec.structs.replace(job.spec.tasks[0], replicas=replicas, min_available=min_available)
        changed = msgspec.structs.replace(job.spec, min_available=min_available, tasks=(task,), **spec)
        self.server.stores["jobs"].put(self.server.changed(job, spec=changed))

    def phases(self) -> set[str]:
        return {job.status.state.phase for job in self.server.stores["jobs"]}


async def test_one_job_costs_one_group_one_pod_and_a_status_per_phase() -> None:
    stream = Stream(1)
    await stream.run_all()
    assert stream.phases() == {"Running"}
    assert stream.server.requests == {"create podgroups": 1, "create pods": 1, "write jobs/status": 2}


async def test_in_a_crowd_pods_come_first_and_good_news_later(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(500)
    await stream.run_all()
    requests = stream.server.requests
    assert (requests["create podgroups"], requests["create pods"]) == (500, 500)
    assert requests["write jobs/status"] < 100
    monkeypatch.setattr(job_controller, "CROWDED_S", 0.0)
    for _ in range(200):
        for job in stream.server.stores["jobs"]:
            if job.status.state.phase != "Running":
                stream.woken[key_of(job)] = None
        if not stream.woken:
            break
        await stream.settle()
    assert stream.phases() == {"Running"}
    assert requests["write jobs/status"] < 2 * 500


async def test_a_job_whose_news_wait_is_not_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_controller, "CROWDED_S", 3600.0)
    stream = Stream(100)
    await stream.run_all()
    waits = [await stream.controller.sync(key_of(job)) for job in list(stream.server.stores["jobs"])]
    assert stream.server.requests["write jobs/status"] == 0
    assert min(wait or 0.0 for wait in waits) > job_controller.CROWDED_S / 2


async def test_when_the_crowd_is_gone_the_news_come_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_controller, "CROWDED_S", 3600.0)
    stream = Stream(100)
    await stream.run_all()
    assert stream.phases() == {""}
    for job in list(stream.server.stores["jobs"])[20:]:
        stream.server.stores["jobs"].remove(key_of(job))
    await stream.settle()
    assert stream.phases() == {"Running"}


async def test_a_pod_that_is_given_a_node_is_no_news_for_its_job() -> None:
    stream = Stream(1)
    await stream.run_all()
    (pod,) = stream.server.stores["pods"]
    spec = msgspec.structs.replace(pod.spec, node_name="a")
    stream.server.stores["pods"].put(stream.server.changed(pod, spec=spec))
    assert not stream.woken


async def test_the_end_of_a_job_does_not_wait_for_the_crowd() -> None:
    stream = Stream(300)
    await stream.run_all()
    stream.move_pods("Failed")
    await stream.settle()
    assert stream.phases() == {"Failed"}


async def test_a_job_that_somebody_changed_meanwhile_is_looked_at_again() -> None:
    stream = Stream(1)
    stream.server.conflicts = 1
    assert await stream.controller.sync(Key("n/j0")) == job_controller.COALESCE_S
    await stream.run_all()
    assert stream.phases() == {"Running"}
    assert stream.server.requests["create podgroups"] == 1


async def test_the_hosts_of_a_scaled_job_are_changed_at_once_and_made_again_where_they_are_gone() -> None:
    """Pods read them when they start, so no request is made in vain before the one that changes them."""
    stream = Stream(1)
    server = stream.server

    await stream.scale(1, min_available=1, plugins={"svc": ()})
    await stream.run_all()
    assert (server.requests["create configmaps"], server.requests["change configmaps"]) == (1, 0)
    await stream.scale(2, min_available=1)
    assert server.requests["create configmaps"] == 1
    assert server.requests["change configmaps"] >= 1
    server.lost = {"configmaps"}
    await stream.scale(3, min_available=1)
    assert server.requests["create configmaps"] >= 2


async def test_the_group_hears_that_fewer_are_needed_before_they_go() -> None:
    """Else the scheduler takes them for lost."""
    stream = Stream(1)
    await stream.scale(3, min_available=3)
    await stream.run_all()
    requests = stream.server.requests
    requests.clear()
    await stream.scale(1, min_available=1)
    assert requests["delete pods"] == 2
    assert requests["change podgroups"] == 1
    in_order = list(requests)
    assert in_order.index("change podgroups") < in_order.index("delete pods")


async def test_a_job_within_the_credit_of_its_queue_gets_its_pods_without_the_scheduler() -> None:
    stream = Stream(3)
    stream.lend(pods="2")
    await stream.settle()
    assert sorted(group.status.phase for group in stream.server.stores["podgroups"]) == [
        "Inqueue",
        "Inqueue",
        "Pending",
    ]
    assert len(stream.server.stores["pods"]) == 2
    for who, number in (("credit", 2), ("scheduler", 1)):
        assert stream.metrics.get_sample_value("baton_job_groups_made_total", {"admitted_by": who}) == number
    await stream.run_all()
    assert stream.phases() == {"Running"}
    assert stream.server.requests["create pods"] == 3


async def test_a_job_within_credit_in_a_crowd_needs_one_look_until_its_pod_runs() -> None:
    """What the controller made itself comes back as an echo, which tells nothing new."""
    stream = Stream(100)
    stream.lend(pods="100")
    looks: Counter[Key] = Counter()
    real = stream.controller.sync

    async def counted(key: Key) -> float | None:
        looks[key] += 1
        return await real(key)

    stream.controller.sync = counted  # type: ignore[method-assign]  # counts, and does the same
    await stream.settle()
    assert len(stream.server.stores["pods"]) == 100
    assert set(looks.values()) == {1}


async def test_pods_that_a_running_job_gets_are_counted_soon() -> None:
    """Their echoes wake nobody, so the look that made them asks for another."""
    stream = Stream(1)
    await stream.run_all()
    stream.change(2, min_available=1)
    again_s = await stream.controller.sync(Key("n/j0"))
    assert stream.server.requests["create pods"] == 2
    assert again_s == pytest.approx(job_controller.COALESCE_S)
    stream.woken.clear()
    stream.server.show()
    assert not stream.woken
    await stream.controller.sync(Key("n/j0"))
    stream.controller._memories[Key("n/j0")].due_s = 0.0
    await stream.controller.sync(Key("n/j0"))
    stream.server.show()
    (job,) = stream.server.stores["jobs"]
    assert job.status.pending == 1


async def test_where_the_server_takes_no_phase_from_the_maker_pods_wait_for_the_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a PodGroup definition that keeps its status to itself."""
    stream = Stream(1)
    stream.lend(pods="8")
    real = stream.server.create

    async def without_status(resource: Resource[Any], body: Any, namespace: str) -> Any:
        return await real(resource, {name: value for name, value in body.items() if name != "status"}, namespace)

    monkeypatch.setattr(stream.server, "create", without_status)
    await stream.settle()
    assert not len(stream.server.stores["pods"])
    await stream.run_all()
    assert stream.phases() == {"Running"}


async def test_a_group_that_could_not_be_made_leaves_the_credit_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(1)
    stream.lend(pods="1")
    real = stream.server.create

    async def refused(resource: Resource[Any], body: Any, namespace: str) -> Any:
        raise ForbiddenError(403, "Forbidden", "not now")

    monkeypatch.setattr(stream.server, "create", refused)
    with pytest.raises(ForbiddenError):
        await stream.controller.sync(Key("n/j0"))
    monkeypatch.setattr(stream.server, "create", real)
    await stream.settle()
    assert [group.status.phase for group in stream.server.stores["podgroups"]] == ["Inqueue"]
