"""Carries out the decisions of the phase machine with as few requests as possible.

Every action is safe to repeat: names are derived, deletions carry a uid, and "already exists" and "not found" are
answers rather than errors. The requests of one job run concurrently; their total over all jobs is bounded.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from baton.controllers.expectations import FreshStore
from baton.controllers.job.census import Slot
from baton.controllers.job.group import group_body, group_changes, group_spec
from baton.controllers.job.pods import claim_name, group_name, owned_metadata, pod_body
from baton.controllers.job.tracking import NameTakenError, is_of, is_of_earlier
from baton.controllers.queue.credit import QueueCredits
from baton.errors import BatonError
from baton.job_plugins import Plugin
from baton.job_plugins.plugin import PluginObject
from baton.job_plugins.pod_bodies import pod_name
from baton.kube.client import JSON_PATCH, Client
from baton.kube.errors import ConflictError, InvalidError, NotFoundError
from baton.model.core import CLAIMS, PODS, Pod
from baton.model.ids import Key
from baton.model.meta import Metadata
from baton.model.names import OUT_OF_SYNC
from baton.model.resource import Resource
from baton.model.volcano import BATCH, JOB_KIND, JOBS, POD_GROUPS, Job, JobStatus, PodGroup, PodGroupSpec

T = TypeVar("T")
K = TypeVar("K", bound=msgspec.Struct)

PARALLEL = 48
"""Concurrent requests. With more, an API server answers no faster and other clients wait longer."""


class ClaimMissingError(BatonError):
    """A volume names a claim that does not exist."""


class JobExecutor:
    """The requests of the job controller."""

    def __init__(
        self,
        client: Client,
        jobs: FreshStore[Job],
        pods: FreshStore[Pod],
        groups: FreshStore[PodGroup],
        credits_of_queues: QueueCredits,
    ) -> None:
        self._client = client
        self._credits = credits_of_queues
        self._jobs = jobs
        self._pods = pods
        self._groups = groups
        self._room = asyncio.Semaphore(PARALLEL)

    async def write_status(self, job: Job, status: JobStatus, *, patient: bool = False) -> Job:
        """Write the whole status. Raises ConflictError when the job has changed in the meantime."""
        metadata = job.metadata
        body = {
            "apiVersion": BATCH,
            "kind": JOB_KIND,
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
            "status": status,
        }
        written = await self._do(
            self._client.replace(JOBS, metadata.name, body, metadata.namespace, subresource="status", patient=patient)
        )
        self._jobs.wrote(written)
        return written

    async def remove_pods(self, pods: Sequence[Pod], mark: Iterable[Pod]) -> None:
        """Mark the pods in `mark`, so that their end is not taken for an eviction, then delete."""
        await self._all([self._mark(pod) for pod in mark])
        await self._all([self._delete_pod(pod) for pod in pods if not self._pods.is_deleted(pod)])

    async def _mark(self, pod: Pod) -> None:
        body = {"metadata": {"annotations": {OUT_OF_SYNC: "true"}, "uid": pod.metadata.uid}}
        with contextlib.suppress(NotFoundError, ConflictError):  # gone, or already replaced by another pod of that name
            self._pods.wrote(await self._do(self._client.patch(PODS, pod.metadata.name, body, pod.metadata.namespace)))

    async def _delete_pod(self, pod: Pod) -> None:
        await self._delete(PODS, pod.metadata)
        self._pods.deleted(pod)

    async def create_pods(
        self, job: Job, plugins: Sequence[Plugin], slots: Sequence[Slot], *, wary: bool = False
    ) -> bool:
        """Create pods. The first refusal is raised after all were tried. Returns whether any was tried: a name that
        still belongs to a pod of an earlier job is not tried, because the watch will show the end of that pod.

        If `wary`, because pods were refused before, try one pod of each task first and the others only if it succeeds.
        """
        there = [(slot, self._pods.get(Key(f"{job.metadata.namespace}/{_name(job, slot)}"))) for slot in slots]
        free = [slot for slot, other in there if other is None]
        if wary:
            tasks = [[slot for slot in free if slot.task.name == task.name] for task in job.spec.tasks]
            await self._all([self._create_warily(job, plugins, some) for some in tasks if some])
        else:
            await self._all([self._create_pod(job, plugins, slot) for slot in free])
        for _, other in there:
            if other is not None and not (is_of(other.metadata, job) or is_of_earlier(other.metadata, job)):
                raise NameTakenError(PODS.plural, other.metadata, job)
        return bool(free)

    async def _create_warily(self, job: Job, plugins: Sequence[Plugin], slots: Sequence[Slot]) -> None:
        await self._create_pod(job, plugins, slots[0])
        await self._all([self._create_pod(job, plugins, slot) for slot in slots[1:]])

    async def _create_pod(self, job: Job, plugins: Sequence[Plugin], slot: Slot) -> None:
        body = pod_body(job, slot.task, slot.index)
        for plugin in plugins:
            plugin.change_pod(job, slot.task, slot.index, body)
        made = await self._create(PODS, body, job.metadata.namespace)
        if made is not None:
            self._pods.wrote(made)

    async def keep_group(self, job: Job, group: PodGroup | None, priorities: dict[str, int]) -> PodGroup | None:
        """Create or update the PodGroup, and return the result."""
        wanted = group_spec(job, priorities)
        namespace = job.metadata.namespace
        if group is None:
            return await self._make_group(job, wanted)
        changes = group_changes(group.spec, wanted)
        if changes:
            with contextlib.suppress(NotFoundError):  # just deleted; it is created again when the watch shows that
                group = await self._do(self._client.patch(POD_GROUPS, group_name(job), {"spec": changes}, namespace))
                self._groups.wrote(group)
        return group

    async def _make_group(self, job: Job, wanted: PodGroupSpec) -> PodGroup | None:
        """Create the PodGroup, already admitted if the queue's credit covers it."""
        key = Key(f"{job.metadata.namespace}/{group_name(job)}")
        admitted = self._credits.spend(key, wanted)
        made: PodGroup | None = None
        try:
            made = await self._create(POD_GROUPS, group_body(job, wanted, admitted=admitted), job.metadata.namespace)
        finally:
            if made is None and admitted:
                self._credits.not_made(key, wanted.queue)
        if made is not None:
            self._credits.made(made)
            self._groups.wrote(made)
        return made

    async def remove_group(self, group: PodGroup) -> None:
        if not self._groups.is_deleted(group):
            await self._delete(POD_GROUPS, group.metadata)
            self._groups.deleted(group)

    async def keep_plugin_objects(self, job: Job, plugins: Sequence[Plugin]) -> tuple[Job, dict[str, str]]:
        """Create the objects of plugins that are not recorded yet, update changed ones, and return the new records.

        A record is withdrawn before its content changes, because the new record is written later: a job that is scaled
        down and up again in between would find the old record correct and leave the wrong content.
        """
        told = job.status.controlled_resources
        records, withdrawn = dict(told), dict(told)
        renewals: list[tuple[PluginObject, bool]] = []
        for plugin in plugins:
            name, content = f"plugin-{plugin.name}", f"plugin-{plugin.name}-content"
            things = plugin.objects(job)
            fingerprint = await asyncio.to_thread(_fingerprint, things) if any(t.renewed for t in things) else ""
            known = told.get(name) == plugin.name
            if not known or (fingerprint and told.get(content) != fingerprint):
                renewals += [(thing, known) for thing in things if not known or thing.renewed]
                withdrawn.pop(content, None)
            records[name] = plugin.name
            if fingerprint:
                records[content] = fingerprint
        if withdrawn != told:
            job = await self.write_status(job, msgspec.structs.replace(job.status, controlled_resources=withdrawn))
        await self._all([self._keep(job, thing, there=there) for thing, there in renewals])
        return job, records

    async def remove_plugin_objects(self, job: Job, plugins: Sequence[Plugin]) -> dict[str, str]:
        """Remove the objects of plugins. Returns the remaining records."""
        records = job.status.controlled_resources
        made = [plugin for plugin in plugins if f"plugin-{plugin.name}" in records]
        await self._all([self._remove(job, thing) for plugin in made for thing in plugin.objects(job)])
        return {name: value for name, value in records.items() if not name.startswith("plugin-")}

    async def _keep(self, job: Job, thing: PluginObject, *, there: bool) -> None:
        """Create or update an object. One that is `there` is updated, and created again if it was deleted.

        An object of an earlier job of this name will be garbage collected, and a foreign object may not be changed nor
        deleted when the job ends. In both cases the job waits until the name is free.
        """
        content = await asyncio.to_thread(thing.make)
        if there:
            with contextlib.suppress(NotFoundError):
                await self._renew(job, thing, content)
                return
        body = {"metadata": owned_metadata(job, thing.name), **content}
        if await self._create(thing.resource, body, job.metadata.namespace) is None:
            await self._renew(job, thing, content)

    async def _renew(self, job: Job, thing: PluginObject, content: dict[str, Any]) -> None:
        """Update an object that the job owns. The request checks the owner; only a failed check reads the object."""
        if thing.renewed:
            with contextlib.suppress(InvalidError):
                await self._change(job, thing, content, owner=0)
                return
        found = await self._do(self._client.get(thing.resource, thing.name, job.metadata.namespace))
        if not is_of(found.metadata, job):
            raise NameTakenError(thing.resource.plural, found.metadata, job)
        if thing.renewed:
            owners = [owner.uid for owner in found.metadata.owner_references]
            await self._change(job, thing, content, owner=owners.index(job.metadata.uid))

    async def _change(self, job: Job, thing: PluginObject, content: dict[str, Any], *, owner: int) -> None:
        """Replace the content, provided that the job is the owner at that index."""
        metadata = job.metadata
        changes = [
            {"op": "test", "path": f"/metadata/ownerReferences/{owner}/uid", "value": metadata.uid},
            *({"op": "add", "path": f"/{name}", "value": value} for name, value in content.items()),
        ]
        await self._do(
            self._client.patch(thing.resource, thing.name, changes, metadata.namespace, content_type=JSON_PATCH)
        )

    async def _remove(self, job: Job, thing: PluginObject) -> None:
        """Remove an object if the job owns it: the original may be gone and its name in use by another object."""
        with contextlib.suppress(NotFoundError):
            found = await self._do(self._client.get(thing.resource, thing.name, job.metadata.namespace))
            if is_of(found.metadata, job):
                await self._delete(thing.resource, found.metadata)

    async def keep_claims(self, job: Job) -> tuple[Job, dict[str, str]]:
        """Create the claims of the job's volumes and write new names into the job. Returns the job and the records."""
        records: dict[str, str] = {}
        for place, volume in enumerate(job.spec.volumes):
            name = claim_name(job, place)
            key = f"volume-pvc-{name}"
            records[key] = name
            if job.status.controlled_resources.get(key) == name:
                continue
            there = bool(volume.volume_claim_name) and await self._claim_exists(job, name)
            if not there and volume.volume_claim is None:
                raise ClaimMissingError(
                    f"pvc {name} is not found, the job will be in the Pending state until the PVC is created"
                )
            if not there:
                body = {"metadata": owned_metadata(job, name), "spec": volume.volume_claim}
                await self._create(CLAIMS, body, job.metadata.namespace)
            if not volume.volume_claim_name:
                job = await self._name_claim(job, place, name)
        return job, records

    async def _claim_exists(self, job: Job, name: str) -> bool:
        try:
            claim = await self._do(self._client.get(CLAIMS, name, job.metadata.namespace))
        except NotFoundError:
            return False
        if is_of_earlier(claim.metadata, job):
            raise NameTakenError(CLAIMS.plural, claim.metadata, job)
        return True

    async def _name_claim(self, job: Job, place: int, name: str) -> Job:
        changes: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": job.metadata.uid},
            {"op": "add", "path": f"/spec/volumes/{place}/volumeClaimName", "value": name},
        ]
        patched = await self._do(
            self._client.patch(JOBS, job.metadata.name, changes, job.metadata.namespace, content_type=JSON_PATCH)
        )
        self._jobs.wrote(patched)
        return patched

    async def _delete(self, resource: Resource[Any], metadata: Metadata) -> None:
        only = {"preconditions": {"uid": metadata.uid}}
        with contextlib.suppress(NotFoundError, ConflictError):  # already gone, or replaced by another object
            await self._do(self._client.delete(resource, metadata.name, metadata.namespace, options=only))

    async def _create(self, resource: Resource[K], body: dict[str, Any], namespace: str) -> K | None:
        """Create an object; None when the name is taken. If the existing object is ours, the watch will show it; if it
        belongs to an earlier job of this name, the watch will show its end."""
        try:
            return await self._do(self._client.create(resource, body, namespace))
        except ConflictError as error:
            if error.reason != "AlreadyExists":
                raise
            return None

    async def _do(self, request: Awaitable[T]) -> T:
        async with self._room:
            return await request

    async def _all(self, work: Sequence[Awaitable[None]]) -> None:
        if len(work) <= 1:
            for each in work:
                await each
            return
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _name(job: Job, slot: Slot) -> str:
    return pod_name(job.metadata.name, slot.task.name, slot.index)


def _fingerprint(things: Iterable[PluginObject]) -> str:
    contents = [thing.make() for thing in things if thing.renewed]
    return hashlib.sha256(msgspec.json.encode(contents, order="deterministic")).hexdigest()[:16]
