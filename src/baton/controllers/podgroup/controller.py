"""PodGroups for plain workloads: pods that name our scheduler and no group.

Keys are those of the groups, so the pods of one owner are synced together: one request for the owner and one for the
group, regardless of the number of pods, and never two workers on one group. The group is created before its name is
written into any pod, because a scheduler that sees the name looks for the group.
"""

import asyncio

import structlog

from baton.controllers.controller import Surroundings, Wake
from baton.controllers.podgroup import rules
from baton.errors import BatonError
from baton.kube.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from baton.kube.informers import Scope
from baton.kube.store import Delta, Store
from baton.model.core import PODS, Pod
from baton.model.ids import Key
from baton.model.meta import OwnerReference
from baton.model.names import BARE_GROUP_PREFIX, GROUP_NAME
from baton.model.volcano import POD_GROUPS, PodGroup
from baton.model.workloads import WORKLOADS, Workload

_LOG = structlog.get_logger("baton.controllers")

_AT_ONCE = 32
"""Pods of one group that get its name at the same time."""


class PodGroupController:
    """Keys are `namespace/podgroup-<uid>`."""

    name = "podgroup"

    def __init__(self, surroundings: Surroundings) -> None:
        self._client = surroundings.client
        self._recorder = surroundings.recorder
        self._ours = surroundings.scheduler_names
        self._pods: Store[Pod]
        self._groups: Store[PodGroup]
        self._owners: dict[tuple[str, str], Store[Workload]] = {}

    def watch(self, scope: Scope, wake: Wake) -> None:
        self._pods = scope.store(PODS, {"bare group": lambda pod: rules.bare_group(pod, self._ours)})
        self._groups = scope.store(POD_GROUPS)

        def pod_changed(delta: Delta[Pod]) -> None:
            for pod in (delta.old, delta.new):
                for key in rules.bare_group(pod, self._ours) if pod is not None else ():
                    wake(key)

        def group_changed(delta: Delta[PodGroup]) -> None:
            if delta.new is None and delta.old is not None and delta.old.metadata.name.startswith(BARE_GROUP_PREFIX):
                wake(delta.key)

        def owner_changed(delta: Delta[Workload]) -> None:
            owner = delta.new
            if owner is not None and owner.spec.template.spec.scheduler_name in self._ours:
                wake(Key(f"{owner.metadata.namespace}/{BARE_GROUP_PREFIX}{owner.metadata.uid}"))

        self._pods.subscribe(pod_changed)
        self._groups.subscribe(group_changed)
        for kind, resource in WORKLOADS.items():
            self._owners[kind] = scope.store(resource, {"uid": lambda owner: [owner.metadata.uid]})
            self._owners[kind].subscribe(owner_changed)

    async def sync(self, key: Key) -> float | None:
        pods = self._pods.by_index("bare group", key)
        pod = rules.example(pods)
        group = self._groups.get(key)
        if pod is None:
            if group is not None and rules.is_abandoned(pods, self._replicas(key)):
                await self._delete(group)
            return None
        want = rules.wanted(pod, await self._inherited(pod))
        try:
            await self._keep(pod, group, want)
        except ApiError as error:
            if not (isinstance(error, ForbiddenError) and error.namespace_ends):
                self._tell(pod, "PodGroupError", f"the pod has no PodGroup and waits: {error}")
            raise
        await self._name(rules.unnamed(pods))
        return None

    async def _keep(self, pod: Pod, group: PodGroup | None, want: rules.Wanted) -> None:
        """Create or update the group."""
        if group is None:
            try:
                await self._client.create(POD_GROUPS, rules.body(pod, want), pod.metadata.namespace)
            except ConflictError:
                return  # already created, and the watch has not shown it yet; its event leads here again
            _LOG.info("PodGroup created", group=rules.group_name(pod), min_member=want.spec.min_member)
        elif change := rules.changes(group, want):
            await self._client.patch(POD_GROUPS, group.metadata.name, change, group.metadata.namespace)
        else:
            return
        for sentence in want.complaints:
            self._tell(pod, "InvalidAnnotation", sentence)

    def _replicas(self, key: Key) -> int | None:
        """How many pods the owner of the group wants. None when it is gone or does not tell."""
        uid = key.partition(f"/{BARE_GROUP_PREFIX}")[2]
        found = [owner for store in self._owners.values() for owner in store.by_index("uid", uid)]
        return found[0].spec.replicas if found else None

    async def _inherited(self, pod: Pod) -> dict[str, str]:
        """The annotations of the owner. If the store does not have the owner yet, ask the API server: a gang whose
        minimum is known too late has started in part."""
        reference = pod.metadata.controller()
        if reference is None:
            return {}
        owner = await self._owner(reference, pod.metadata.namespace)
        return owner.metadata.annotations if owner is not None else {}

    async def _owner(self, reference: OwnerReference, namespace: str) -> Workload | None:
        kind = (reference.api_version, reference.kind)
        resource = WORKLOADS.get(kind)
        if resource is None:
            return None
        owner = self._owners[kind].get(Key(f"{namespace}/{reference.name}"))
        if owner is None or owner.metadata.uid != reference.uid:
            try:
                owner = await self._client.get(resource, reference.name, namespace)
            except NotFoundError:
                return None
        return owner if owner.metadata.uid == reference.uid else None

    async def _delete(self, group: PodGroup) -> None:
        metadata = group.metadata
        try:
            await self._client.delete(
                POD_GROUPS, metadata.name, metadata.namespace, options={"preconditions": {"uid": metadata.uid}}
            )
        except (NotFoundError, ConflictError):
            return
        _LOG.info("PodGroup deleted, its owner has no pods", group=f"{metadata.namespace}/{metadata.name}")

    async def _name(self, pods: list[Pod]) -> None:
        """Write the name of the group into pods. A pod that cannot be changed does not hold back the others."""
        failures: list[BatonError] = []
        gate = asyncio.Semaphore(_AT_ONCE)

        async def tell(pod: Pod) -> None:
            metadata = pod.metadata
            change = {"metadata": {"uid": metadata.uid, "annotations": {GROUP_NAME: rules.group_name(pod)}}}
            async with gate:
                try:
                    await self._client.patch(PODS, metadata.name, change, metadata.namespace)
                except (NotFoundError, ConflictError):
                    return  # gone, or replaced by another pod of that name
                except BatonError as error:
                    failures.append(error)

        await asyncio.gather(*(tell(pod) for pod in pods))
        if failures:
            raise failures[0]

    def _tell(self, pod: Pod, reason: str, sentence: str) -> None:
        self._recorder.record(pod.metadata.reference("Pod", "v1"), reason, sentence, warning=True)
