"""Volumes: from which nodes a pod's claims can be reached, what a node attaches for them, and how unbound claims get a
volume before the pod is bound.

A bound claim ties the pod to the nodes of its volume. A claim of a class that binds immediately must be bound first. A
claim of a class that waits for its first consumer can go where a free volume fits, or where its class provisions. When
the pod gets its node, the scheduler writes that choice (the volume's claimRef, or the claim's selected-node annotation)
and binds the pod once the claim is bound. Pods of one plan may share a claim without knowing of each other, and other
schedulers choose volumes too. The first write decides, so every write names the resource version that it is based on.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from baton.engine.objects import NodeTerm, Pairs, Requirement
from baton.engine.objects import requirement_holds as holds
from baton.errors import BatonError
from baton.kube.client import Client
from baton.kube.errors import ConflictError
from baton.kube.store import Delta, Store
from baton.mapping import selectors
from baton.model import core
from baton.model.ids import Key
from baton.model.quantities import scaled
from baton.model.resource import Resource
from baton.scheduler.feed.attachments import Attachment, DriverLimits, attached_as, to_be_attached

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
"""On a claim that names its volume: the volume agrees. A claim may also name the volume of another claim."""
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""On a volume: a controller set its claimRef, and removes it if the claim gets another volume."""
_NOT_FREE = ("Released", "Failed")
SOLE = "ReadWriteOncePod"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
WAITS = "WaitForFirstConsumer"
ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")

ClaimKey = tuple[str, str]
Terms = tuple[NodeTerm, ...]

NOWHERE: Terms = (NodeTerm(expressions=(Requirement("baton.dev/nothing", "In", ()),)),)


class VolumeError(BatonError):
    """A volume did not become ready for the pod."""


class VolumeBook:
    """Claims, volumes, storage classes, and the limits of nodes."""

    def __init__(self, moved: Callable[[Iterable[ClaimKey]], None], limits_moved: Callable[[str], None]) -> None:
        """`moved` is called with changed claims, or none if any may be concerned; `limits_moved` with a node."""
        self._moved = moved
        self._limits_moved = limits_moved
        self.limits = DriverLimits(self._drivers_moved)
        self._claims: Store[core.Claim] = Store()
        self._volumes: Store[core.PersistentVolume] = Store()
        self._classes: Store[core.StorageClass] = Store()
        self._promised: dict[str, ClaimKey] = {}
        """Volumes that a binding in progress has chosen, by name; other pods of the claim wait for it too."""
        self._asked: dict[ClaimKey, str] = {}
        """The nodes for which claims are being provisioned by bindings in progress."""
        self._changed: set[asyncio.Event] = set()
        self._claims.subscribe(self._claim_moved)
        self._volumes.subscribe(self._volume_moved)
        self._classes.subscribe(lambda _delta: self._moved(()))

    def stores(self) -> list[tuple[Resource[Any], Store[Any]]]:
        return [
            (core.STORAGE_CLASSES, self._classes),
            (core.VOLUMES, self._volumes),
            (core.CLAIMS, self._claims),
            (core.CSI_NODES, self.limits.nodes),
        ]

    def terms(self, pod: core.Pod) -> tuple[Terms, ...]:
        """One entry per claim that restricts the pod: it may go to nodes that match one of the entry's terms."""
        if any(self._is_anothers(pod, volume) for volume in pod.spec.volumes):
            return (NOWHERE,)
        found = (self._claim_terms(key) for key in claims_of(pod))
        return tuple(terms for terms in found if terms is not None)

    def attachments(self, pod: core.Pod) -> Pairs:
        """The volumes that a node attaches for the pod, of drivers with limits."""
        found = {self._attachment(key) for key in claims_of(pod)}
        return tuple(sorted(item for item in found if item is not None and item[0] in self.limits))

    def sole_claims(self, pod: core.Pod) -> tuple[str, ...]:
        """The claims of the pod that no other pod may use."""
        claims = {key: self._claim(key) for key in claims_of(pod)}
        return tuple(
            "/".join(key) for key, claim in claims.items() if claim is not None and SOLE in claim.spec.access_modes
        )

    def unbound(self, pod: core.Pod) -> list[core.Claim]:
        """The claims of the pod that wait for its node."""
        claims = (self._claim(key) for key in claims_of(pod))
        return [claim for claim in claims if claim is not None and not _is_bound(claim)]

    async def bind(self, client: Client, pod: core.Pod, node: core.Node, limit_s: float) -> None:
        """Write where the pod's claims are wanted and wait until they are bound; raise if they are not."""
        promised: list[str] = []
        asked: list[ClaimKey] = []
        awaited: dict[ClaimKey, str] = {}
        try:
            for claim in self.unbound(pod):
                key, volume = _key(claim), self._best_volume(claim, node)
                if volume is None:
                    awaited[key] = claim.metadata.resource_version
                if volume is None and key not in self._asked:
                    asked.append(key)
                    self._asked[key] = node.metadata.name
                    await self._select(client, claim, node)
                elif volume is not None and volume.metadata.name not in self._promised:
                    promised.append(volume.metadata.name)
                    self._promised[volume.metadata.name] = key
                    await self._reserve(client, volume, claim)
            await self._wait_bound(pod, node, awaited, limit_s)
        finally:
            for name in promised:
                del self._promised[name]
            for key in asked:
                del self._asked[key]
        for key in claims_of(pod):
            got = self._volume_of(key)
            if got is None or not _reaches(got, node):
                raise VolumeError(f"the claim {key[1]} got a volume that node {node.metadata.name} does not reach")

    @staticmethod
    async def _reserve(client: Client, volume: core.PersistentVolume, claim: core.Claim) -> None:
        """Reserve the volume for the claim, unless it changed meanwhile."""
        reference = volume.spec.claim_ref
        if reference is not None and reference.uid == claim.metadata.uid:
            return
        try:
            await client.patch(core.VOLUMES, volume.metadata.name, _reference(volume, claim))
        except ConflictError:
            raise VolumeError(f"volume {volume.metadata.name} changed meanwhile") from None

    async def _select(self, client: Client, claim: core.Claim, node: core.Node) -> None:
        """Write the node on the claim, unless another node is chosen for it or no provisioner serves it."""
        name, selected = claim.metadata.name, claim.metadata.annotations.get(SELECTED_NODE)
        kind = self._classes.get(Key(claim.spec.storage_class_name))
        if kind is None or kind.provisioner == NO_PROVISIONER:
            raise VolumeError(f"no free volume that {node.metadata.name} reaches is left for the claim {name}")
        if selected == node.metadata.name:
            return
        if selected:
            raise VolumeError(f"the claim {name} is provisioned for node {selected}")
        annotations = {SELECTED_NODE: node.metadata.name}
        wanted = {"metadata": {"resourceVersion": claim.metadata.resource_version, "annotations": annotations}}
        try:
            await client.patch(core.CLAIMS, name, wanted, claim.metadata.namespace)
        except ConflictError:
            raise VolumeError(f"the claim {name} changed meanwhile") from None

    async def _wait_bound(
        self, pod: core.Pod, node: core.Node, awaited: Mapping[ClaimKey, str], limit_s: float
    ) -> None:
        """Wait until the feed shows a volume for each claim; `awaited` are the claims that get a new one."""

        def missing() -> list[str]:
            return [key[1] for key in claims_of(pod) if self._volume_of(key) is None]

        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            async with asyncio.timeout(limit_s):
                while missing():
                    for key, version in awaited.items():
                        self._check_wanted(key, version, node)
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            names = ", ".join(missing())
            raise VolumeError(f"the claim {names} was not bound within {limit_s:.0f} s") from None
        finally:
            self._changed.discard(changed)

    def _check_wanted(self, key: ClaimKey, version: str, node: core.Node) -> None:
        """Raise if the claim's volume is no longer being provisioned. Every later version of the claim has the node
        that was written, unless the provisioner removed it because it cannot create a volume there."""
        claim = self._claim(key)
        if claim is None:
            raise VolumeError(f"the claim {key[1]} is gone")
        selected = claim.metadata.annotations.get(SELECTED_NODE)
        if claim.metadata.resource_version != version and not claim.spec.volume_name and selected != node.metadata.name:
            raise VolumeError(f"no volume for the claim {key[1]} is provisioned for node {node.metadata.name} any more")

    def _claim(self, key: ClaimKey) -> core.Claim | None:
        return self._claims.get(Key("/".join(key)))

    def _volume_of(self, key: ClaimKey) -> core.PersistentVolume | None:
        """The volume that the claim is bound to."""
        claim = self._claim(key)
        return self._volumes.get(Key(claim.spec.volume_name)) if claim is not None and _is_bound(claim) else None

    def _attachment(self, key: ClaimKey) -> Attachment | None:
        claim = self._claim(key)
        if claim is None:
            return None
        volume = self._volumes.get(Key(claim.spec.volume_name)) if claim.spec.volume_name else None
        if volume is not None:
            return attached_as(volume)
        kind = self._classes.get(Key(claim.spec.storage_class_name))
        return to_be_attached(claim, kind) if kind is not None else None

    def _is_anothers(self, pod: core.Pod, volume: core.Volume) -> bool:
        """Whether an ephemeral volume's claim belongs to another pod, such as an earlier one of the same name. That
        claim is deleted with its pod, and this pod then gets a new one."""
        if volume.ephemeral is None:
            return False
        claim = self._claim((pod.metadata.namespace, _ephemeral_claim(pod, volume)))
        if claim is None:
            return False
        owner = claim.metadata.controller()
        return owner is None or owner.uid != pod.metadata.uid

    def _claim_terms(self, key: ClaimKey) -> Terms | None:
        claim = self._claim(key)
        if claim is None or claim.metadata.deletion_timestamp:
            return NOWHERE
        if claim.spec.volume_name:
            volume = self._volume_of(key)
            return NOWHERE if volume is None else _volume_terms(volume)
        kind = self._classes.get(Key(claim.spec.storage_class_name))
        if kind is None or kind.volume_binding_mode != WAITS:
            return NOWHERE
        if selected := claim.metadata.annotations.get(SELECTED_NODE):
            return (NodeTerm(names=(selected,)),)
        terms: list[NodeTerm] = []
        if kind.provisioner != NO_PROVISIONER:
            if not kind.allowed_topologies:
                return None
            terms += [
                NodeTerm(selectors.requirements(term.match_label_expressions)) for term in kind.allowed_topologies
            ]
        for volume in self._free_volumes(claim):
            reach = _volume_terms(volume)
            if reach is None:
                return None
            terms += reach
        return tuple(dict.fromkeys(terms)) or NOWHERE

    def _best_volume(self, claim: core.Claim, node: core.Node) -> core.PersistentVolume | None:
        """The smallest free volume that fits the claim and is reachable from the node."""
        volumes = self._free_volumes(claim)
        reachable = [volume for volume in volumes if _reaches(volume, node)]
        elsewhere = self._asked.get(_key(claim), node.metadata.name) != node.metadata.name
        if elsewhere or (not reachable and any(self._is_reserved(volume) for volume in volumes)):
            raise VolumeError(f"the claim {claim.metadata.name} gets a volume that {node.metadata.name} does not reach")
        return min(reachable, key=lambda volume: (_storage(volume.spec.capacity), volume.metadata.name), default=None)

    def _free_volumes(self, claim: core.Claim) -> list[core.PersistentVolume]:
        """Volumes that the claim may get; once one is reserved for it, only that one."""
        key, spec = _key(claim), claim.spec
        need = _storage(spec.resources.requests)
        selector = selectors.label_selector(spec.selector) if spec.selector is not None else None
        found = []
        for volume in self._volumes:
            offer, reference = volume.spec, volume.spec.claim_ref
            if volume.metadata.deletion_timestamp or self._promised.get(volume.metadata.name, key) != key:
                continue
            if volume.status.phase in _NOT_FREE or (reference is not None and not _is_about(reference, claim)):
                continue
            if (
                offer.storage_class_name == spec.storage_class_name
                and offer.volume_mode == spec.volume_mode
                and set(spec.access_modes) <= set(offer.access_modes)
                and _storage(offer.capacity) >= need
                and (selector is None or selector.matches(volume.metadata.labels))
            ):
                found.append(volume)
        return [volume for volume in found if self._is_reserved(volume)] or found

    def _is_reserved(self, volume: core.PersistentVolume) -> bool:
        return volume.spec.claim_ref is not None or volume.metadata.name in self._promised

    def _claim_moved(self, delta: Delta[core.Claim]) -> None:
        claim = delta.new or delta.old
        if claim is not None:
            self._moved([_key(claim)])
        self._tell()

    def _volume_moved(self, delta: Delta[core.PersistentVolume]) -> None:
        """The claims that a change of the volume may concern: its own claim, or any claim if it is or was free."""
        references = [volume.spec.claim_ref for volume in (delta.old, delta.new) if volume is not None]
        known = [(reference.namespace, reference.name) for reference in references if reference is not None]
        self._moved(known if len(known) == len(references) else ())
        self._tell()

    def _drivers_moved(self, node: str | None) -> None:
        if node is None:
            self._moved(())
        else:
            self._limits_moved(node)

    def _tell(self) -> None:
        for event in self._changed:
            event.set()


def claims_of(pod: core.Pod) -> list[ClaimKey]:
    """The claims that the pod names, and the claims of its ephemeral volumes."""
    namespace = pod.metadata.namespace
    names = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            names.append(_ephemeral_claim(pod, volume))
    return [(namespace, name) for name in names]


def _key(claim: core.Claim) -> ClaimKey:
    return claim.metadata.namespace, claim.metadata.name


def _ephemeral_claim(pod: core.Pod, volume: core.Volume) -> str:
    return f"{pod.metadata.name}-{volume.name}"


def _is_bound(claim: core.Claim) -> bool:
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def _is_about(reference: core.ClaimReference, claim: core.Claim) -> bool:
    """Whether a claimRef means this claim: one left by an earlier claim of the same name does not."""
    return (reference.namespace, reference.name) == _key(claim) and reference.uid in ("", claim.metadata.uid)


def _storage(quantities: Mapping[str, Any]) -> int:
    return scaled(quantities.get("storage", 0))


def _volume_terms(volume: core.PersistentVolume) -> Terms | None:
    """The node terms of a volume; None if every node reaches it."""
    affinity = volume.spec.node_affinity
    terms = selectors.node_terms(affinity.required) if affinity is not None else ()
    labels = volume.metadata.labels
    zones = tuple(Requirement(key, "In", tuple(labels[key].split("__"))) for key in ZONES if key in labels)
    if not zones:
        return terms or None
    return tuple(NodeTerm((*term.expressions, *zones), term.names) for term in terms or (NodeTerm(),))


def _reaches(volume: core.PersistentVolume, node: core.Node) -> bool:
    terms = _volume_terms(volume)
    if terms is None:
        return True
    labels, name = node.metadata.labels, node.metadata.name
    return any(
        all(holds(item, labels.get(item.key)) for item in term.expressions) and (not term.names or name in term.names)
        for term in terms
    )


def _reference(volume: core.PersistentVolume, claim: core.Claim) -> dict[str, Any]:
    """The change that kube-scheduler writes on a volume; the volume controller then completes both sides."""
    ours = {BOUND_BY_CONTROLLER: "yes"} if volume.spec.claim_ref is None else {}
    return {
        "metadata": {"resourceVersion": volume.metadata.resource_version, "annotations": ours},
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "uid": claim.metadata.uid,
            }
        },
    }
