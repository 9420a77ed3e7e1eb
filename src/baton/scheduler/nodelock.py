"""The node lock of Volcano's vGPU protocol, for clusters whose device plugin cannot tell two pods apart.

While the lock is enabled (`deviceshare.NodeLockEnable`), the scheduler binds one vGPU pod at a time to a node; the next
one waits until the device plugin has allocated the first and removed the lock. The lock is an annotation of the Node
with the time. A second annotation names the owner: the scheduler, the pod's uid, and the pod, which comes last because
older schedulers wrote no uid. The lock is always released: by the device plugin, by the scheduler when the bind fails
or the pod ends, and by its age, so that the lock of a dead scheduler does not stay.
"""

import asyncio
from collections.abc import Callable

import structlog

from baton.errors import BatonError
from baton.kube.client import Client
from baton.kube.errors import ConflictError, NotFoundError
from baton.kube.store import Store
from baton.mapping.cards import ALLOCATING
from baton.model import core, times
from baton.model.card_annotations import BIND_PHASE, NODE_LOCK, NODE_LOCK_OWNER, lock_owner
from baton.model.ids import Key, NodeName, PodKey
from baton.model.names import ENDED_PHASES

_LOG = structlog.get_logger("baton.scheduler")

EXPIRES_S = 300.0
_LOOK_S = 0.5


class NodeLocks:
    """The node locks that this scheduler takes."""

    def __init__(
        self,
        client: Client,
        nodes: Store[core.Node],
        pods: Store[core.Pod],
        identity: str,
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._pods = pods
        self._identity = identity
        self._now_s = now_s
        self._order: dict[NodeName, asyncio.Lock] = {}
        self.enabled = False
        self.wait_limit_s = EXPIRES_S

    async def acquire(self, node: NodeName, pod: PodKey, uid: str) -> None:
        """Wait for the node's lock and take it for the pod."""
        async with self._order.setdefault(node, asyncio.Lock()):
            while not await self._try(node, pod, uid):  # noqa: ASYNC110  # the lock is in the API server
                await asyncio.sleep(_LOOK_S)

    async def release(self, node: NodeName, pod: PodKey, uid: str) -> None:
        """Remove the lock if it is this pod's, however often others change the node meanwhile."""
        while True:
            try:
                found = await self._client.get(core.NODES, node)
                if found.metadata.annotations.get(NODE_LOCK_OWNER) == self._owner(pod, uid):
                    await self._write(found, None, None)
            except ConflictError:
                continue
            except NotFoundError:
                pass
            except BatonError as error:
                _LOG.warning("the node's lock could not be released", node=node, pod=pod, reason=str(error))
            return

    async def _try(self, node: NodeName, pod: PodKey, uid: str) -> bool:
        found = await self._client.get(core.NODES, node)
        since = found.metadata.annotations.get(NODE_LOCK)
        if since is not None and not self._stale(found, since, uid):
            return False
        now = times.stamp(self._now_s())
        try:
            await self._write(found, now, self._owner(pod, uid))
        except ConflictError:
            return False
        return True

    def _stale(self, node: core.Node, since: str, uid: str) -> bool:
        """Whether the lock has expired, belongs to a pod that has nothing left to allocate, or is this pod's own, left
        by an earlier scheduler."""
        if self._now_s() - (times.seconds(since) or 0.0) > EXPIRES_S:
            return True
        owner, name = lock_owner(node.metadata.annotations.get(NODE_LOCK_OWNER, ""))
        if not name:
            return False
        pod = self._pods.get(Key(name))
        if pod is None or pod.status.phase in ENDED_PHASES or owner not in ("", pod.metadata.uid):
            return True
        if owner == uid:
            return True
        return bool(pod.spec.node_name) and pod.metadata.annotations.get(BIND_PHASE) != ALLOCATING

    async def _write(self, node: core.Node, since: str | None, owner: str | None) -> None:
        """The resource version makes the request a conflict if the node has changed meanwhile."""
        annotations = {NODE_LOCK: since, NODE_LOCK_OWNER: owner}
        metadata = {"resourceVersion": node.metadata.resource_version, "annotations": annotations}
        await self._client.patch(core.NODES, node.metadata.name, {"metadata": metadata})

    def _owner(self, pod: PodKey, uid: str) -> str:
        return f"{self._identity} {uid} {pod}"
