"""The pod of a process: the spellings of a pod's cgroup, and kubelet's records of slots."""

import json
from pathlib import Path

import pytest

from baton.agent.kubelet.podresources import CHECKPOINT, grouped, read_checkpoint
from baton.agent.kubelet.records import Holding, over_committed, owners_of
from baton.agent.node.identity import pod_in_cgroup, pod_of_process
from baton.agent.proto import podresources_pb2 as api
from baton.errors import UnavailableError

UID = "5f2c1a30-9d1b-4c39-8c4e-0d6c2f7f3b11"
UNDERSCORED = UID.replace("-", "_")
BOX = "c" * 64


@pytest.mark.parametrize(
    "text",
    [
        f"4:memory:/kubepods/burstable/pod{UID}/{BOX}\n",
        f"12:devices:/bed-1/kubepods/besteffort/pod{UID}/{BOX}\n3:cpu:/\n",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{BOX}.scope\n",
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{BOX}.scope\n",
        f"1:name=systemd:/system.slice/kubepods-pod{UNDERSCORED}.slice:cri-containerd:{BOX}/kubepods/pod{UID}/{BOX}\n",
    ],
)
def test_every_spelling_of_a_pods_cgroup_is_read(text: str) -> None:
    found = pod_in_cgroup(text)
    assert found is not None
    assert (found.uid, found.container_id) == (UID, BOX)


@pytest.mark.parametrize("text", ["0::/\n", "0::/user.slice/session-1.scope\n", "", "0::/kubepods/podnonsense/x\n"])
def test_a_process_outside_of_pods_has_no_pod(text: str) -> None:
    assert pod_in_cgroup(text) is None


def test_a_static_pods_uid_without_dashes_is_read() -> None:
    found = pod_in_cgroup(f"0::/kubepods/pod{'a' * 32}/{BOX}")
    assert found is not None
    assert found.uid == "a" * 32


def test_an_ended_process_has_no_pod(tmp_path: Path) -> None:
    assert pod_of_process(1, tmp_path) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"0::/kubepods/pod{UID}/{BOX}\n")
    found = pod_of_process(7, tmp_path)
    assert found is not None
    assert found.uid == UID


def checkpoint(folder: Path) -> Path:
    entries = [
        {"PodUID": UID, "ContainerName": "main", "ResourceName": "nvshare.com/gpu",
         "DeviceIDs": {"-1": ["GPU-a__1"], "0": ["GPU-b__2"]}, "AllocResp": "Cg=="},
        {"PodUID": "other", "ContainerName": "main", "ResourceName": "nvshare.com/gpu",
         "DeviceIDs": {"-1": ["GPU-a__2"]}, "AllocResp": ""},
    ]  # fmt: skip
    content = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}
    (folder / CHECKPOINT).write_text(json.dumps(content))
    return folder


def test_kubelets_checkpoint_leads_from_a_pod_to_its_slots_and_back(tmp_path: Path) -> None:
    records = read_checkpoint(checkpoint(tmp_path))
    (owner,) = owners_of(["GPU-b__2", "GPU-a__1"], "nvshare.com/gpu", records)
    assert (owner.pod_uid, owner.container) == (UID, "main")
    assert owners_of(["GPU-a__1"], "nvshare.com/gpu", records) == [], "part of a container's slots has no owner"


def test_a_missing_or_empty_checkpoint_has_no_slots(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) == []
    (tmp_path / CHECKPOINT).write_text('{"Data": {"PodDeviceEntries": null}}')
    assert read_checkpoint(tmp_path) == []


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"Data": 3}'])
def test_an_unreadable_checkpoint_is_not_treated_as_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / CHECKPOINT).write_text(content)
    with pytest.raises(UnavailableError, match=r"kubelet's records in .* cannot be read"):
        read_checkpoint(tmp_path)


def test_kubelets_many_entries_become_one_holding_per_container_and_resource() -> None:
    """A device on two NUMA nodes is listed twice."""
    devices = [
        api.ContainerDevices(resource_name="nvshare.com/gpu", device_ids=["GPU-a__1"]),
        api.ContainerDevices(resource_name="nvshare.com/gpu", device_ids=["GPU-a__1"]),
        api.ContainerDevices(resource_name="nvshare.com/gpu", device_ids=["GPU-b__1"]),
    ]
    pod = api.PodResources(name="p", namespace="ml", containers=[api.ContainerResources(name="main", devices=devices)])
    held = grouped([pod])
    assert held == [Holding("ml", "p", "main", "nvshare.com/gpu", frozenset({"GPU-a__1", "GPU-b__1"}))]


def test_a_slot_in_two_containers_is_detected() -> None:
    twice = [Holding("ml", name, "main", "r/x", frozenset({"GPU-a__1"})) for name in ("one", "two")]
    assert over_committed(twice) == ["slot GPU-a__1 of r/x is in ml/one/main and in ml/two/main"]
    assert over_committed(twice[:1]) == []
