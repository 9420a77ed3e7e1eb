"""The lock of a node: taken for a pod, and given back however much else happens to the node."""

from typing import Any

import msgspec

from baton.engine.objects import NodeName, PodKey
from baton.kube import core
from baton.kube.errors import ConflictError
from baton.kube.scheduler.nodelock import NodeLocks
from baton.kube.store import Store

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
    await locks.acquire(NODE, POD)
    assert node.annotations == {"hamivgpu": "1970-01-01T00:00:00Z", "baton.dev/node-lock-owner": "me team/a"}
    node.in_between = 3
    await locks.release(NODE, POD)
    assert node.annotations == {}


async def test_a_lock_of_another_pod_is_left_alone() -> None:
    node = BusyNode()
    client: Any = node
    locks = NodeLocks(client, Store(), Store(), "me", lambda: 0.0)
    await locks.acquire(NODE, POD)
    await locks.release(NODE, PodKey("team/b"))
    assert node.annotations["baton.dev/node-lock-owner"] == "me team/a"
