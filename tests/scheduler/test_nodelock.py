"""The lock of a node: taken for a pod, and released whatever happens to the node meanwhile."""

import asyncio
from typing import Any

import msgspec
import pytest

from baton.kube.errors import ConflictError
from baton.kube.store import Store
from baton.model import core
from baton.model.ids import NodeName, PodKey
from baton.scheduler.nodelock import NodeLocks

NODE, POD = NodeName("n"), PodKey("team/a")


class BusyNode:
    """One node in an API server; somebody else changes it before each of the next `in_between` writes."""

    def __init__(self) -> None:
        self.version = 1
        self.annotations: dict[str, str] = {}
        self.in_between = 0

    async def get(self, _resource: Any, name: str) -> core.Node:
        metadata = {"name": name, "resourceVersion": str(self.version), "annotations": dict(self.annotations)}
        return msgspec.convert({"metadata": metadata}, core.Node)

    async def patch(self, _resource: Any, _name: str, body: Any) -> None:
        if self.in_between:
            self.in_between -= 1
            self.version += 1
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise ConflictError(409, "Conflict", "the object has been modified")
        self.version += 1
        for name, value in body["metadata"]["annotations"].items():
            self.annotations.pop(name, None)
            if value is not None:
                self.annotations[name] = value


async def test_a_lock_is_given_back_while_kubelet_writes_the_node() -> None:
    node = BusyNode()
    client: Any = node
    locks = NodeLocks(client, Store(), Store(), "me", lambda: 0.0)
    await locks.acquire(NODE, POD, "u1")
    assert node.annotations == {"hamivgpu": "1970-01-01T00:00:00Z", "baton.dev/node-lock-owner": "me u1 team/a"}
    node.in_between = 3
    await locks.release(NODE, POD, "u1")
    assert node.annotations == {}


@pytest.mark.parametrize(("pod", "uid"), [(PodKey("team/b"), "u2"), (POD, "u2")], ids=["another name", "the same name"])
async def test_a_lock_of_another_pod_is_left_alone(pod: PodKey, uid: str) -> None:
    node = BusyNode()
    client: Any = node
    locks = NodeLocks(client, Store(), Store(), "me", lambda: 0.0)
    await locks.acquire(NODE, POD, "u1")
    await locks.release(NODE, pod, uid)
    assert node.annotations["baton.dev/node-lock-owner"] == "me u1 team/a"


def pods_with(uid: str) -> Store[core.Pod]:
    """One pod of that name, which waits."""
    store: Store[core.Pod] = Store()
    store.put(msgspec.convert({"metadata": {"name": "a", "namespace": "team", "uid": uid}}, core.Pod))
    return store


@pytest.mark.parametrize(
    ("owner", "is_free"),
    [("other u1 team/a", False), ("other team/a", False), ("other u0 team/a", True), ("other u3 team/b", True)],
    ids=["a pod that waits", "one by an older scheduler", "one that was made anew", "one that is gone"],
)
async def test_a_lock_of_a_pod_that_is_there_is_waited_for(owner: str, is_free: bool) -> None:
    node = BusyNode()
    node.annotations = {"hamivgpu": "1970-01-01T00:00:00Z", "baton.dev/node-lock-owner": owner}
    client: Any = node
    locks = NodeLocks(client, Store(), pods_with("u1"), "me", lambda: 0.0)
    taking = asyncio.create_task(locks.acquire(NODE, PodKey("team/c"), "u9"))
    done, _ = await asyncio.wait([taking], timeout=0.1)
    assert bool(done) == is_free
    taking.cancel()


async def test_a_pods_own_lock_from_before_a_restart_is_taken_over_at_once() -> None:
    node = BusyNode()
    node.annotations = {"hamivgpu": "1970-01-01T00:00:00Z", "baton.dev/node-lock-owner": "died u1 team/a"}
    client: Any = node
    locks = NodeLocks(client, Store(), pods_with("u1"), "me", lambda: 1.0)
    async with asyncio.timeout(0.2):
        await locks.acquire(NODE, POD, "u1")
    assert node.annotations["baton.dev/node-lock-owner"] == "me u1 team/a"
