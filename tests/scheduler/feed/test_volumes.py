"""From where a pod's claims can be reached, and which volume a claim gets."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from baton.engine.objects import NodeTerm, Requirement
from baton.kube.errors import ConflictError
from baton.model import core
from baton.model.ids import Key
from baton.scheduler.feed.volumes import NOWHERE, VolumeBook, VolumeError

HOST = "kubernetes.io/hostname"


class Shelf:
    """A book of volumes, filled by hand."""

    def __init__(self) -> None:
        self.moved: list[list[tuple[str, str]]] = []
        self.limits_moved: list[str] = []
        self.book = VolumeBook(self._note, self.limits_moved.append)
        self._stores = {resource.plural: (resource, store) for resource, store in self.book.stores()}
        self._version = 0

    def _note(self, keys: Iterable[tuple[str, str]]) -> None:
        self.moved.append(list(keys))

    def put(self, plural: str, name: str, namespace: str = "", **body: Any) -> None:
        self._version += 1
        resource, store = self._stores[plural]
        metadata = {"name": name, "uid": name, "resourceVersion": str(self._version), **body.pop("metadata", {})}
        store.put(msgspec.convert({"metadata": {**metadata, "namespace": namespace}, **body}, resource.kind))

    def remove(self, plural: str, key: str) -> None:
        self._stores[plural][1].remove(Key(key))

    def kind(self, name: str, *, waits: bool = True, provisioner: str = "csi.example", **more: Any) -> None:
        mode = "WaitForFirstConsumer" if waits else "Immediate"
        self.put("storageclasses", name, provisioner=provisioner, volumeBindingMode=mode, **more)

    def claim(
        self,
        volume: str = "",
        *,
        name: str = "data",
        kind: str = "k",
        size: str = "1Gi",
        done: bool = True,
        mode: str = "ReadWriteOnce",
        **metadata: Any,
    ) -> None:
        """Bound to the volume, unless the volume controller is not `done` with it."""
        spec = {
            "volumeName": volume,
            "storageClassName": kind,
            "accessModes": [mode],
            "resources": {"requests": {"storage": size}},
        }
        if volume and done:
            metadata["annotations"] = {**metadata.get("annotations", {}), "pv.kubernetes.io/bind-completed": "yes"}
        self.put("persistentvolumeclaims", name, "team", spec=spec, metadata=metadata)

    def volume(
        self,
        name: str,
        node: str,
        *,
        size: str = "1Gi",
        claim: str = "",
        uid: str = "",
        kind: str = "k",
        phase: str = "",
    ) -> None:
        spec: dict[str, Any] = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": kind,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [_on(node)]}},
        }
        if claim:
            spec["claimRef"] = {"namespace": "team", "name": claim, "uid": uid}
        self.put("persistentvolumes", name, spec=spec, status={"phase": phase})

    def source(self, name: str, **source: dict[str, str]) -> None:
        """A volume, by where it comes from."""
        self.put("persistentvolumes", name, spec={"claimRef": {"namespace": "team", "name": "data"}, **source})

    def csi_node(self, name: str, **drivers: int | None) -> None:
        """Drivers (with `_` for `.`) and how many volumes the node can attach."""
        listed = [{"name": driver.replace("_", "."), "allocatable": {"count": n}} for driver, n in drivers.items()]
        self.put("csinodes", name, spec={"drivers": [*listed, {"name": "silent.example"}]})

    def attachments(self, **volume: Any) -> tuple[tuple[str, str], ...]:
        return self.book.attachments(reader(**volume))

    def terms(self) -> tuple[tuple[NodeTerm, ...], ...]:
        return self.book.terms(reader())


def _on(node: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}


def at(*nodes: str) -> tuple[NodeTerm, ...]:
    return tuple(NodeTerm((Requirement(HOST, "In", (node,)),)) for node in nodes)


def reader(**volume: Any) -> core.Pod:
    volumes = [{"name": "v", **(volume or {"persistentVolumeClaim": {"claimName": "data"}})}]
    metadata = {"name": "p", "namespace": "team", "uid": "p"}
    return msgspec.convert({"metadata": metadata, "spec": {"volumes": volumes}}, core.Pod)


def host(name: str) -> core.Node:
    return msgspec.convert({"metadata": {"name": name, "labels": {HOST: name}}}, core.Node)


class Written:
    """A client that takes patches, or refuses them because the version they are about is not the newest."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.refuse = False

    async def patch(self, _resource: Any, name: str, body: dict[str, Any], *_: Any) -> None:
        assert body["metadata"]["resourceVersion"], "else it would undo what somebody else wrote"
        if self.refuse:
            raise ConflictError(409, "Conflict", "the object has been modified")
        self.patches.append((name, body))


async def bind(shelf: Shelf, client: Any, node: str, *, pod: core.Pod | None = None, limit_s: float = 20.0) -> None:
    await shelf.book.bind(client, pod or reader(), host(node), limit_s)


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


def test_a_claim_that_only_names_its_volume_is_not_bound(shelf: Shelf) -> None:
    """Anybody may write a claim that names a volume which another claim has."""
    shelf.kind("k")
    shelf.volume("pv", "a", claim="another", uid="another")
    shelf.claim("pv", done=False)
    assert shelf.terms() == (NOWHERE,)
    assert [claim.metadata.name for claim in shelf.book.unbound(reader())] == ["data"]


def test_a_claim_of_an_ephemeral_volume_counts_if_it_was_made_for_the_pod(shelf: Shelf) -> None:
    """A pod of a job that starts anew has the name of the one before it, whose claim is about to go."""
    shelf.kind("k")
    pod = reader(ephemeral={})

    def owned(uid: str) -> None:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
        shelf.claim(name="p-v", ownerReferences=[reference])

    owned("the one before")
    assert shelf.book.terms(pod) == (NOWHERE,)
    owned("p")
    assert shelf.book.terms(pod) == ()


@pytest.mark.parametrize("phase", ["Released", "Bound", "Failed"])
def test_a_volume_of_an_earlier_claim_of_the_same_name_is_not_given_away(shelf: Shelf, phase: str) -> None:
    shelf.kind("k", provisioner="kubernetes.io/no-provisioner")
    shelf.claim()
    shelf.volume("old", "a", claim="data", uid="the one before", phase=phase)
    assert shelf.terms() == (NOWHERE,)


def test_once_a_volume_is_reserved_for_a_claim_no_other_one_counts(shelf: Shelf) -> None:
    shelf.kind("k")
    shelf.claim()
    shelf.volume("free", "a")
    shelf.volume("reserved", "b", claim="data", uid="data")
    assert shelf.terms() == ()  # the class provisions anywhere
    shelf.kind("k", provisioner="kubernetes.io/no-provisioner")
    assert shelf.terms() == (at("b"),)


async def test_a_pod_is_bound_when_its_claim_has_a_volume_that_is_known(shelf: Shelf) -> None:
    shelf.kind("k", provisioner="kubernetes.io/no-provisioner")
    shelf.claim()
    shelf.volume("pv", "a")
    client = Written()
    work = asyncio.create_task(bind(shelf, client, "a"))
    await asyncio.sleep(0)
    ((name, body),) = client.patches
    assert (name, body["spec"]["claimRef"]["uid"]) == ("pv", "data")
    assert body["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}
    shelf.claim("pv", done=False)
    await asyncio.sleep(0)
    assert not work.done()
    shelf.volume("pv", "a", claim="data", uid="data")
    shelf.claim("pv")
    await work


@pytest.mark.parametrize("free", [True, False], ids=["a volume", "a node"])
async def test_two_pods_of_one_claim_do_not_get_a_volume_each(shelf: Shelf, *, free: bool) -> None:
    """Of one plan, on two nodes: the one whose claim is about to get another node's volume is planned anew. One that
    is on the same node waits for the same volume."""
    shelf.kind("k")
    shelf.claim()
    if free:
        shelf.volume("pv-a", "a")
        shelf.volume("pv-b", "b")
    client = Written()
    works = [asyncio.create_task(bind(shelf, client, "a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(VolumeError, match="gets a volume that b does not reach"):
        await bind(shelf, client, "b")
    assert [name for name, _ in client.patches] == ["pv-a" if free else "data"]
    shelf.volume("pv-a", "a", claim="data", uid="data")
    shelf.claim("pv-a")
    await asyncio.gather(*works)


async def test_who_finds_its_volume_taken_goes_where_another_one_is(shelf: Shelf) -> None:
    """Two pods of one plan with a claim each, on a node that reaches one volume: nobody makes another one there."""
    shelf.kind("k", provisioner="kubernetes.io/no-provisioner")
    shelf.claim()
    shelf.claim(name="other")
    shelf.volume("pv-a", "a")
    shelf.volume("pv-b", "b")
    assert shelf.terms() == (at("a", "b"),)
    second, client = reader(persistentVolumeClaim={"claimName": "other"}), Written()
    first = asyncio.create_task(bind(shelf, client, "a"))
    await asyncio.sleep(0)
    with pytest.raises(VolumeError, match="no free volume that a reaches is left for the claim other"):
        await bind(shelf, client, "a", pod=second)
    assert [name for name, _ in client.patches] == ["pv-a"]
    shelf.moved.clear()
    shelf.volume("pv-a", "a", claim="data", uid="data")
    assert shelf.moved == [[]], "it was free: everybody looks anew"
    assert shelf.book.terms(second) == (at("b"),)
    shelf.claim("pv-a")
    await first


async def test_a_claim_is_provisioned_for_one_node(shelf: Shelf) -> None:
    shelf.kind("k")
    shelf.claim(annotations={"volume.kubernetes.io/selected-node": "a"})
    client = Written()
    with pytest.raises(VolumeError, match="is provisioned for node a"):
        await bind(shelf, client, "b")
    assert client.patches == []


@pytest.mark.parametrize("free", [True, False], ids=["a volume", "a node"])
async def test_who_writes_first_decides(shelf: Shelf, *, free: bool) -> None:
    shelf.kind("k")
    shelf.claim()
    if free:
        shelf.volume("pv", "a")
    client = Written()
    client.refuse = True
    with pytest.raises(VolumeError, match="changed meanwhile"):
        await bind(shelf, client, "a")


async def test_a_pod_is_not_bound_where_its_new_volume_cannot_be_reached(shelf: Shelf) -> None:
    shelf.kind("k")
    shelf.claim()
    work = asyncio.create_task(bind(shelf, Written(), "a"))
    await asyncio.sleep(0)
    shelf.volume("pv", "b", claim="data", uid="data")
    shelf.claim("pv")
    with pytest.raises(VolumeError, match="got a volume that node a does not reach"):
        await work


async def test_a_pod_is_not_bound_without_its_claim(shelf: Shelf) -> None:
    shelf.kind("k")
    shelf.claim()
    work = asyncio.create_task(bind(shelf, Written(), "a"))
    await asyncio.sleep(0)
    shelf.remove("persistentvolumeclaims", "team/data")
    with pytest.raises(VolumeError, match="the claim data is gone"):
        await asyncio.wait_for(work, 2)


async def test_a_pod_does_not_wait_for_a_volume_that_is_not_made(shelf: Shelf) -> None:
    """A provisioner that cannot make a volume for a node takes the node off the claim."""
    shelf.kind("k")
    shelf.claim()
    works = [asyncio.create_task(bind(shelf, Written(), "a")) for _ in range(2)]
    await asyncio.sleep(0)
    shelf.put("storageclasses", "another")
    shelf.volume("anothers", "a", claim="another", uid="another")
    await asyncio.sleep(0)
    assert not any(work.done() for work in works), "it is not known yet that the node was written"
    shelf.claim(annotations={"volume.kubernetes.io/selected-node": "a"})
    await asyncio.sleep(0)
    assert not any(work.done() for work in works)
    shelf.claim()
    for work in works:
        with pytest.raises(VolumeError, match="no volume for the claim data is provisioned for node a"):
            await asyncio.wait_for(work, 2)
    assert shelf.terms() == (), "it may go anywhere again"


def test_the_concerned_claims_are_reported(shelf: Shelf) -> None:
    shelf.claim()
    shelf.volume("pv", "a", claim="data")
    shelf.volume("free", "a")
    assert shelf.moved == [[("team", "data")], [("team", "data")], []]


CSI = {"driver": "csi.example", "volumeHandle": "vol-1"}


def test_a_bound_claim_counts_by_its_volume_and_an_unbound_one_by_its_name() -> None:
    shelf = Shelf()
    shelf.csi_node("n", csi_example=2)
    assert shelf.attachments() == (), "the claim is not known"
    shelf.kind("k")
    shelf.claim()
    assert shelf.attachments() == (("csi.example", "claim team/data"),)
    shelf.source("pv", csi=CSI)
    shelf.claim("pv")
    assert shelf.attachments() == (("csi.example", "vol-1"),)
    shelf.claim(name="p-v")
    assert shelf.attachments(ephemeral={}) == (("csi.example", "claim team/p-v"),)
    assert shelf.attachments(emptyDir={}) == ()


def test_two_volumes_of_a_pod_with_one_claim_are_one_attachment() -> None:
    shelf = Shelf()
    shelf.csi_node("n", csi_example=2)
    shelf.kind("k")
    for name in ("data", "more"):
        shelf.claim(name=name)
    volumes = [{"persistentVolumeClaim": {"claimName": name}} for name in ("more", "data", "data")]
    body = {"metadata": {"name": "p", "namespace": "team"}, "spec": {"volumes": volumes}}
    assert shelf.book.attachments(msgspec.convert(body, core.Pod)) == (
        ("csi.example", "claim team/data"),
        ("csi.example", "claim team/more"),
    )


@pytest.mark.parametrize(
    ("source", "provisioner", "driver", "volume"),
    [
        ({"awsElasticBlockStore": {"volumeID": "vol-1"}}, "kubernetes.io/aws-ebs", "ebs.csi.aws.com", "vol-1"),
        ({"gcePersistentDisk": {"pdName": "disk"}}, "kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "disk"),
        ({"azureDisk": {"diskName": "disk"}}, "kubernetes.io/azure-disk", "disk.csi.azure.com", "disk"),
    ],
)
def test_disks_from_before_csi_count_for_the_driver_that_serves_them(
    source: dict[str, Any], provisioner: str, driver: str, volume: str
) -> None:
    shelf = Shelf()
    shelf.csi_node("n", **{driver.replace(".", "_"): 2})
    shelf.kind("k", provisioner=provisioner)
    shelf.claim()
    assert shelf.attachments() == ((driver, "claim team/data"),)
    shelf.source("pv", **source)
    shelf.claim("pv")
    assert shelf.attachments() == ((driver, volume),)


def test_volumes_without_a_driver_and_of_drivers_without_limits_do_not_count() -> None:
    shelf = Shelf()
    shelf.csi_node("n", csi_example=None)
    shelf.source("pv", csi=CSI)
    shelf.claim("pv")
    assert shelf.attachments() == ()
    shelf.source("pv", nfs={"server": "s"})
    shelf.csi_node("n", csi_example=0)
    assert shelf.attachments() == ()
    shelf.source("pv", csi=CSI)
    assert shelf.attachments() == (("csi.example", "vol-1"),)
    shelf.remove("csinodes", "n")
    assert shelf.attachments() == ()


def test_a_nodes_limits_are_told_when_they_change_and_pods_are_looked_at_when_other_drivers_count() -> None:
    shelf = Shelf()
    shelf.csi_node("a", csi_example=2)
    assert (shelf.limits_moved, shelf.moved) == (["a"], [[]])
    assert shelf.book.limits.on("a") == (("csi.example", 2),)
    assert shelf.book.limits.on("b") == ()
    shelf.csi_node("b", csi_example=5)
    shelf.csi_node("b", csi_example=5)
    assert (shelf.limits_moved, shelf.moved) == (["a", "b"], [[]])
    shelf.remove("csinodes", "a")
    shelf.csi_node("b", other_example=5)
    assert (shelf.limits_moved, shelf.moved) == (["a", "b", "a", "b"], [[], []])


def test_a_claim_for_one_pod_is_known_by_its_access_mode() -> None:
    shelf = Shelf()
    assert shelf.book.sole_claims(reader()) == ()
    shelf.claim()
    assert shelf.book.sole_claims(reader()) == ()
    shelf.claim(mode="ReadWriteOncePod")
    assert shelf.book.sole_claims(reader()) == ("team/data",)
