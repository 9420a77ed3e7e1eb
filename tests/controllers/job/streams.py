"""A stream of jobs through the job controller, against a server that takes requests, counts them, and shows their
effects on request."""

import asyncio
from collections import Counter
from typing import Any

import msgspec

from baton.controllers.controller import Surroundings
from baton.controllers.job.controller import JobController
from baton.kube.client import JSON_PATCH
from baton.kube.errors import ConflictError, InvalidError, NotFoundError
from baton.kube.recorder import Recorder
from baton.kube.store import Store, key_of
from baton.model.ids import Key
from baton.model.resource import Resource
from baton.model.volcano import Job, Queue


class CountingServer:
    """Accepts creates and status writes, answers like an API server, and shows the results on request."""

    def __init__(self) -> None:
        self.stores: dict[str, Store[Any]] = {}
        self.requests: Counter[str] = Counter()
        self.unseen: list[tuple[str, Any]] = []
        self.conflicts = 0
        self.lost: set[str] = set()
        """Kinds of which somebody deletes all objects."""
        self.others: dict[tuple[str, str], Any] = {}
        """What is there of kinds that nobody watches, and what somebody else has made, by kind and name."""
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
        if (resource.plural, plain["metadata"]["name"]) in self.others and resource.plural not in self.lost:
            raise ConflictError(409, "AlreadyExists", "there is one")
        version = self._next()
        plain["metadata"] |= {"uid": f"uid-{version}", "resourceVersion": version}
        return self._answer(resource, msgspec.json.decode(msgspec.json.encode(plain), type=resource.kind))

    async def get(self, resource: Resource[Any], name: str, namespace: str) -> Any:
        """The object, whether the watches have shown it or not."""
        self.requests[f"get {resource.plural}"] += 1
        if resource.plural in self.lost:
            raise NotFoundError(404, "NotFound", f"{name} not found")
        if (resource.plural, name) in self.others:
            return self.others[resource.plural, name]
        key = Key(f"{namespace}/{name}")
        for plural, item in reversed(self.unseen):
            if (plural, key_of(item)) == (resource.plural, key):
                return item
        found = self.stores[resource.plural].get(key) if resource.plural in self.stores else None
        if found is None:
            raise NotFoundError(404, "NotFound", f"{name} not found")
        return found

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

    async def patch(self, resource: Resource[Any], name: str, body: Any, namespace: str, **how: Any) -> Any:
        is_json = how.get("content_type") == JSON_PATCH
        if is_json:
            self._test(resource, name, body)
        self.requests[f"change {resource.plural}"] += 1
        if resource.plural in self.lost:
            raise NotFoundError(404, "NotFound", f"{name} not found")
        if is_json:
            return None
        old = self.stores[resource.plural].get(Key(f"{namespace}/{name}")) if resource.plural in self.stores else None
        if old is None:
            return None
        plain = msgspec.json.decode(msgspec.json.encode(old))
        for part, changes in body.items():
            plain[part] = {**plain.get(part, {}), **changes}
        plain["metadata"]["resourceVersion"] = self._next()
        return self._answer(resource, msgspec.json.decode(msgspec.json.encode(plain), type=resource.kind))

    def _test(self, resource: Resource[Any], name: str, operations: list[dict[str, Any]]) -> None:
        """The tests of owners in a JSON patch have to succeed."""
        item = self.others.get((resource.plural, name))
        for operation in operations:
            path = operation["path"].split("/")
            if operation["op"] == "test" and "ownerReferences" in path and item is not None:
                there = item.metadata.owner_references[int(path[-2]) :][:1]
                if [owner.uid for owner in there] != [operation["value"]]:
                    raise InvalidError(422, "Invalid", f"testing path {operation['path']} failed")

    async def delete(self, resource: Resource[Any], name: str, namespace: str, *, options: Any = None) -> None:
        self.requests[f"delete {resource.plural}"] += 1
        other = self.others.get((resource.plural, name))
        if other is not None and (options or {}).get("preconditions", {}).get("uid", other.metadata.uid) != (
            other.metadata.uid
        ):
            raise ConflictError(409, "Conflict", "the uid is another")
        self.others.pop((resource.plural, name), None)
        if resource.plural in self.stores:
            self.stores[resource.plural].remove(Key(f"{namespace}/{name}"))

    def changed(self, old: Any, **fields: Any) -> Any:
        metadata = msgspec.structs.replace(old.metadata, resource_version=self._next())
        return msgspec.structs.replace(old, metadata=metadata, **fields)

    def show(self) -> None:
        """The watches catch up."""
        unseen, self.unseen = self.unseen, []
        for plural, item in unseen:
            self.stores[plural].put(item)

    def _answer(self, resource: Resource[Any], item: Any) -> Any:
        if resource.plural in self.stores:
            self.unseen.append((resource.plural, item))
        else:
            self.others[resource.plural, item.metadata.name] = item
        return item

    def _next(self) -> str:
        self._version += 1
        return str(self._version)


class Events:
    """The recorded events: reason and message."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str]] = []

    record_all = Recorder.record_all

    def record(self, about: Any, reason: str, message: str, **_: Any) -> None:
        self.recorded.append((reason, message))


class Stream:
    """Jobs of one pod, a controller, and stand-ins for the scheduler and kubelet."""

    def __init__(self, number: int) -> None:
        self.server = CountingServer()
        self.woken: dict[Key, None] = {}
        server: Any = self.server
        events: Any = Events()
        self.recorded: list[tuple[str, str]] = events.recorded
        surroundings = Surroundings(client=server, recorder=events)
        self.metrics = surroundings.metrics
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
        """Sync all woken jobs concurrently until none is woken."""
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
        """Change the only job and sync it."""
        self.change(replicas, min_available=min_available, **spec)
        await self.settle()

    def change(self, replicas: int, *, min_available: int, **spec: Any) -> None:
        (job,) = self.server.stores["jobs"]
        task = msgspec.structs.replace(job.spec.tasks[0], replicas=replicas, min_available=min_available)
        changed = msgspec.structs.replace(job.spec, min_available=min_available, tasks=(task,), **spec)
        self.server.stores["jobs"].put(self.server.changed(job, spec=changed))

    def phases(self) -> set[str]:
        return {job.status.state.phase for job in self.server.stores["jobs"]}
