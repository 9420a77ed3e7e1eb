"""Volumes: from where a pod's claims can be reached, and what must be said before a pod with unbound claims is bound.

A claim that is bound ties the pod to its volume's nodes. A claim of a class that binds immediately must be bound
first. A claim of a class that waits for its first consumer can go where a free volume fits, or where its class
provisions; when the pod gets its node, that choice is written down (the volume's claimRef, or the claim's selected-node
annotation), and the pod is bound once the claim is.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from baton.engine.objects import NodeTerm, Requirement
from baton.engine.objects import requirement_holds as holds
from baton.errors import BatonError
from baton.kube import core
from baton.kube.client import Client, Resource
from baton.kube.mapping import selectors
from baton.kube.quantities import scaled
from baton.kube.store import Delta, Key, Store

SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
WAITS = "WaitForFirstConsumer"
ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")

ClaimKey = tuple[str, str]
Terms = tuple[NodeTerm, ...]

NOWHERE: Terms = (NodeTerm(expressions=(Requirement("baton.dev/nothing", "In", ()),)),)


class VolumeError(BatonError):
    """A volume did not become ready for the pod."""


class VolumeBook:
    """What is known of claims, volumes and storage classes."""

    def __init__(self, moved: Callable[[Iterable[ClaimKey]], None]) -> None:
        self._moved = moved
        self._claims: Store[core.Claim] = Store()
        self._volumes: Store[core.PersistentVolume] = Store()
        self._classes: Store[core.StorageClass] = Store()
        self._promised: dict[str, ClaimKey] = {}
        """Volumes that a binding in progress has chosen, by name."""
        self._changed: set[asyncio.Event] = set()
        self._claims.subscribe(self._claim_moved)
        self._volumes.subscribe(self._volume_moved)
        self._classes.subscribe(lambda _delta: self._moved(()))

    def stores(self) -> list[tuple[Resource[Any], Store[Any]]]:
        return [
            (core.STORAGE_CLASSES, self._classes),
            (core.VOLUMES, self._volumes),
            (core.CLAIMS, self._claims),
        ]

    def claims_of(self, pod: core.Pod) -> list[ClaimKey]:
        """The claims that the pod names, and those that are made for its ephemeral volumes."""
        namespace = pod.metadata.namespace
        names = []
        for volume in pod.spec.volumes:
            if volume.persistent_volume_claim is not None:
                names.append(volume.persistent_volume_claim.claim_name)
            elif volume.ephemeral is not None:
                names.append(f"{pod.metadata.name}-{volume.name}")
        return [(namespace, name) for name in names]

    def terms(self, pod: core.Pod) -> tuple[Terms, ...]:
        """One entry per claim that restricts the pod: the nodes for which one of the terms holds."""
        found = (self._claim_terms(key) for key in self.claims_of(pod))
        return tuple(terms for terms in found if terms is not None)

    def unbound(self, pod: core.Pod) -> list[core.Claim]:
        """Claims of the pod that wait for its node."""
        claims = (self._claims.get(Key("/".join(key))) for key in self.claims_of(pod))
        return [claim for claim in claims if claim is not None and not claim.spec.volume_name]

    async def bind(self, client: Client, pod: core.Pod, node: core.Node, limit_s: float) -> None:
        """Say where the pod's claims are wanted and wait until they are bound; raises when that does not happen."""
        chosen: list[str] = []
        try:
            for claim in self.unbound(pod):
                volume = self._best_volume(claim, node)
                if volume is not None:
                    chosen.append(volume.metadata.name)
                    self._promised[volume.metadata.name] = _key(claim)
                    await client.patch(core.VOLUMES, volume.metadata.name, _reference(claim))
                elif claim.metadata.annotations.get(SELECTED_NODE) != node.metadata.name:
                    wanted = {"metadata": {"annotations": {SELECTED_NODE: node.metadata.name}}}
                    await client.patch(core.CLAIMS, claim.metadata.name, wanted, claim.metadata.namespace)
            await self._wait_bound(pod, limit_s)
        finally:
            for name in chosen:
                self._promised.pop(name, None)

    async def _wait_bound(self, pod: core.Pod, limit_s: float) -> None:
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            async with asyncio.timeout(limit_s):
                while self.unbound(pod):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            names = ", ".join(claim.metadata.name for claim in self.unbound(pod))
            raise VolumeError(f"the claim {names} was not bound within {limit_s:.0f} s") from None
        finally:
            self._changed.discard(changed)

    def _claim_terms(self, key: ClaimKey) -> Terms | None:
        claim = self._claims.get(Key("/".join(key)))
        if claim is None or claim.metadata.deletion_timestamp:
            return NOWHERE
        if claim.spec.volume_name:
            volume = self._volumes.get(Key(claim.spec.volume_name))
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
        reachable = [volume for volume in self._free_volumes(claim) if _reaches(volume, node)]
        return min(reachable, key=lambda volume: (_storage(volume.spec.capacity), volume.metadata.name), default=None)

    def _free_volumes(self, claim: core.Claim) -> list[core.PersistentVolume]:
        key, spec = _key(claim), claim.spec
        need = _storage(spec.resources.requests)
        selector = selectors.label_selector(spec.selector) if spec.selector is not None else None
        found = []
        for volume in self._volumes:
            offer, reference = volume.spec, volume.spec.claim_ref
            if volume.metadata.deletion_timestamp or self._promised.get(volume.metadata.name, key) != key:
                continue
            if reference is not None and (reference.namespace, reference.name) != key:
                continue
            if (
                offer.storage_class_name == spec.storage_class_name
                and offer.volume_mode == spec.volume_mode
                and set(spec.access_modes) <= set(offer.access_modes)
                and _storage(offer.capacity) >= need
                and (selector is None or selector.matches(volume.metadata.labels))
            ):
                found.append(volume)
        return found

    def _claim_moved(self, delta: Delta[core.Claim]) -> None:
        claim = delta.new or delta.old
        if claim is not None:
            self._moved([_key(claim)])
        self._tell()

    def _volume_moved(self, delta: Delta[core.PersistentVolume]) -> None:
        """A volume that binds itself to a claim is that claim's matter; a free one can be anybody's."""
        volume = delta.new or delta.old
        reference = volume.spec.claim_ref if volume is not None else None
        self._moved([(reference.namespace, reference.name)] if reference is not None else ())
        self._tell()

    def _tell(self) -> None:
        for event in self._changed:
            event.set()


def _key(claim: core.Claim) -> ClaimKey:
    return claim.metadata.namespace, claim.metadata.name


def _storage(quantities: Mapping[str, Any]) -> int:
    return scaled(quantities.get("storage", 0))


def _volume_terms(volume: core.PersistentVolume) -> Terms | None:
    """None for a volume that every node reaches."""
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


def _reference(claim: core.Claim) -> dict[str, Any]:
    """What kube-scheduler writes on a volume; the volume controller then completes both sides."""
    return {
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "uid": claim.metadata.uid,
            }
        }
    }
