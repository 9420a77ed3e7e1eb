"""From where a pod's claims can be reached, and which volume a claim gets."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from baton.engine.objects import NodeTerm, Requirement
from baton.kube import core
from baton.kube.scheduler.volumes import NOWHERE, VolumeBook

HOST = "kubernetes.io/hostname"


class Shelf:
    """A book of volumes, filled by hand."""

    def __init__(self) -> None:
        self.moved: list[list[tuple[str, str]]] = []
        self.book = VolumeBook(self._note)
        self._stores = {resource.plural: (resource, store) for resource, store in self.book.stores()}
        self._version = 0

    def _note(self, keys: Iterable[tuple[str, str]]) -> None:
        self.moved.append(list(keys))

    def put(self, plural: str, name: str, namespace: str = "", **body: Any) -> None:
        self._version += 1
        resource, store = self._stores[plural]
        metadata = {"name": name, "uid": name, "resourceVersion": str(self._version), **body.pop("metadata", {})}
        store.put(msgspec.convert({"metadata": {**metadata, "namespace": namespace}, **body}, resource.kind))

    def kind(self, name: str, *, waits: bool = True, provisioner: str = "csi.example", **more: Any) -> None:
        mode = "WaitForFirstConsumer" if waits else "Immediate"
        self.put("storageclasses", name, provisioner=provisioner, volumeBindingMode=mode, **more)

    def claim(self, volume: str = "", *, kind: str = "k", size: str = "1Gi", **metadata: Any) -> None:
        spec = {
            "volumeName": volume,
            "storageClassName": kind,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        }
        self.put("persistentvolumeclaims", "data", "team", spec=spec, metadata=metadata)

    def volume(self, name: str, node: str, *, size: str = "1Gi", claim: str = "", kind: str = "k") -> None:
        spec: dict[str, Any] = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": kind,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [_on(node)]}},
        }
        if claim:
            spec["claimRef"] = {"namespace": "team", "name": claim}
        self.put("persistentvolumes", name, spec=spec)

    def terms(self) -> tuple[tuple[NodeTerm, ...], ...]:
        return self.book.terms(reader())


def _on(node: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}


def at(*nodes: str) -> tuple[NodeTerm, ...]:
    return tuple(NodeTerm((Requirement(HOST, "In", (node,)),)) for node in nodes)


def reader() -> core.Pod:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    return msgspec.convert({"metadata": {"name": "p", "namespace": "team"}, "spec": {"volumes": volumes}}, core.Pod)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_a_claim_that_is_not_there_is_nowhere(shelf: Shelf) -> None:
    assert shelf.terms() == (NOWHERE,)


def test_a_bound_claim_is_where_its_volume_is(shelf: Shelf) -> None:
    shelf.claim("pv")
    assert shelf.terms() == (NOWHERE,), "the volume is not known yet"
    shelf.volume("pv", "a", claim="data")
    assert shelf.terms() == (at("a"),)


def test_an_unbound_claim_of_an_immediate_class_has_to_be_bound_first(shelf: Shelf) -> None:
    shelf.kind("k", waits=False)
    shelf.claim()
    assert shelf.terms() == (NOWHERE,)


def test_a_class_that_provisions_anywhere_restricts_nothing(shelf: Shelf) -> None:
    shelf.kind("k")
    shelf.claim()
    assert shelf.terms() == ()


def test_a_class_that_provisions_somewhere_restricts_to_it(shelf: Shelf) -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["z1"], "operator": "In"}]}]
    shelf.kind("k", allowedTopologies=topologies)
    shelf.claim()
    assert shelf.terms() == ((NodeTerm((Requirement("zone", "In", ("z1",)),)),),)


def test_without_a_provisioner_only_free_volumes_that_fit_count(shelf: Shelf) -> None:
    shelf.kind("k", provisioner="kubernetes.io/no-provisioner")
    shelf.claim(size="2Gi")
    shelf.volume("small", "a", size="1Gi")
    shelf.volume("taken", "b", size="5Gi", claim="somebody")
    shelf.volume("other", "c", size="5Gi", kind="else")
    assert shelf.terms() == (NOWHERE,)
    shelf.volume("fits", "d", size="5Gi")
    assert shelf.terms() == (at("d"),)


def test_a_node_that_was_selected_before_is_kept(shelf: Shelf) -> None:
    shelf.kind("k")
    shelf.claim(annotations={"volume.kubernetes.io/selected-node": "b"})
    assert shelf.terms() == ((NodeTerm(names=("b",)),),)


def test_whoever_is_concerned_is_told(shelf: Shelf) -> None:
    shelf.claim()
    shelf.volume("pv", "a", claim="data")
    shelf.volume("free", "a")
    assert shelf.moved == [[("team", "data")], [("team", "data")], []]
