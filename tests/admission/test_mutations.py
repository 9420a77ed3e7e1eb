"""Defaults: what an object gets for unset fields, and what it keeps."""

import re
from pathlib import Path
from typing import Any

import pytest

from baton.admission.findings import Field
from baton.admission.patches import Patches, patched
from baton.admission.rules.gpus import default_shares
from baton.admission.rules.jobs import default_job
from baton.admission.rules.podgroups import default_pod_group
from baton.admission.rules.queues import default_queue
from baton.admission.rules.resource_groups import ResourceGroupError, default_pod, read_groups
from tests.admission.cases import limits, pod, pod_group, queue
from tests.volcano_jobs import Object, container, manifest, task


def with_defaults(manifest: Object) -> Any:
    return patched(manifest, default_job(manifest["spec"], "volcano", "spec"))["spec"]


def test_an_empty_job_gets_all_defaults() -> None:
    spec = with_defaults(manifest({"replicas": 2, "template": {}}, {"replicas": 3, "minAvailable": 1, "template": {}}))
    assert (spec["queue"], spec["schedulerName"], spec["maxRetry"]) == ("default", "volcano", 3)
    assert [each["name"] for each in spec["tasks"]] == ["default0", "default1"]
    assert [each["minAvailable"] for each in spec["tasks"]] == [2, 1]
    assert [each["maxRetry"] for each in spec["tasks"]] == [3, 3]
    assert spec["minAvailable"] == 3


def test_an_empty_text_counts_as_not_set() -> None:
    """Charts often render one for an unset value."""
    pods = {"spec": {"hostNetwork": True, "dnsPolicy": "", "containers": [container()]}}
    spec = with_defaults(manifest(task(name="", template=pods), queue="", schedulerName=""))
    assert (spec["queue"], spec["schedulerName"], spec["tasks"][0]["name"]) == ("default", "volcano", "default0")
    assert spec["tasks"][0]["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_settings_of_a_job_are_kept() -> None:
    said = manifest(task(minAvailable=2, maxRetry=5), minAvailable=1, queue="q", schedulerName="mine", maxRetry=10)
    assert with_defaults(said) == said["spec"]


@pytest.mark.parametrize("plugin", ["tensorflow", "pytorch", "ray"])
def test_framework_plugins_get_the_svc_plugin(plugin: str) -> None:
    assert with_defaults(manifest(plugins={plugin: []}))["plugins"] == {plugin: [], "svc": []}


def test_mpi_also_gets_ssh_and_arguments_are_kept() -> None:
    plugins = with_defaults(manifest(plugins={"mpi": [], "svc": ["--publish-not-ready-addresses"]}))["plugins"]
    assert plugins == {"mpi": [], "svc": ["--publish-not-ready-addresses"], "ssh": []}


def test_pods_on_the_host_network_still_find_services() -> None:
    spec = with_defaults(manifest(task(template={"spec": {"hostNetwork": True, "containers": [container()]}})))
    assert spec["tasks"][0]["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_memory_of_a_card_without_a_number_is_one_card() -> None:
    containers = [container(resources=limits(vgpu_memory="4096")), container()]
    spec = with_defaults(manifest(task(template={"spec": {"containers": containers}})))
    asked, other = spec["tasks"][0]["template"]["spec"]["containers"]
    assert asked["resources"]["limits"] == {"volcano.sh/vgpu-memory": "4096", "volcano.sh/vgpu-number": "1"}
    assert "resources" not in other


@pytest.mark.parametrize("said", [limits(vgpu_memory="4096", vgpu_number="2"), limits(vgpu_cores="30")])
def test_a_number_of_cards_is_neither_changed_nor_guessed(said: Object) -> None:
    patches = Patches()
    default_shares(Field("", pod(container(resources=said)))["spec"], patches, "spec")
    assert patches.operations == []


def test_a_queue_is_reclaimable_and_has_a_weight() -> None:
    made = queue("q")
    assert patched(made, default_queue(made))["spec"] == {"reclaimable": True, "weight": 1}
    said = queue("q", reclaimable=False, weight=5)
    assert patched(said, default_queue(said)) == said
    assert patched({"metadata": {}}, default_queue({"metadata": {}}))["spec"] == {"reclaimable": True, "weight": 1}


def test_a_hierarchy_starts_at_root() -> None:
    made = queue("q", annotations={"volcano.sh/hierarchy": "a/b", "volcano.sh/hierarchy-weights": "2/8"})
    annotations = patched(made, default_queue(made))["metadata"]["annotations"]
    assert annotations == {"volcano.sh/hierarchy": "root/a/b", "volcano.sh/hierarchy-weights": "1/2/8"}


def test_a_pod_group_takes_its_namespaces_queue() -> None:
    annotations = {"scheduling.volcano.sh/queue-name": "ml"}
    for group in (pod_group(queue="default", minMember=1), pod_group(minMember=1)):
        assert patched(group, default_pod_group(group, annotations))["spec"]["queue"] == "ml"
        assert default_pod_group(group, {}).operations == []
    chosen = pod_group(queue="mine", minMember=1)
    assert default_pod_group(chosen, annotations).operations == []


GROUPS = """
resourceGroups:
- resourceGroup: management
  object: {key: namespace, value: [mng-ns-1]}
  schedulerName: default-scheduler
  tolerations: [{effect: NoSchedule, key: taint, operator: Exists}]
  labels: {volcano.sh/nodetype: management}
- resourceGroup: cpu
  object: {key: annotation, value: ["volcano.sh/resource-group: cpu"]}
  schedulerName: volcano
  labels: {volcano.sh/nodetype: cpu}
- resourceGroup: gpu
  affinity: |
    {"nodeAffinity": {}}
"""


@pytest.fixture
def groups_file(tmp_path: Path) -> Path:
    path = tmp_path / "groups.yaml"
    path.write_text(GROUPS)
    return path


def test_a_resource_group_adds_to_its_pods(groups_file: Path) -> None:
    groups = read_groups(groups_file)
    plain = {"metadata": {"annotations": {"volcano.sh/resource-group": "cpu"}}, "spec": {"nodeSelector": {"a": "b"}}}
    spec = patched(plain, default_pod(plain, "any", groups))["spec"]
    assert spec == {"nodeSelector": {"a": "b", "volcano.sh/nodetype": "cpu"}, "schedulerName": "volcano"}
    managed = pod()
    spec = patched(managed, default_pod(managed, "mng-ns-1", groups))["spec"]
    assert spec["schedulerName"] == "volcano", "a scheduler that was chosen stays"
    assert spec["tolerations"] == [{"effect": "NoSchedule", "key": "taint", "operator": "Exists"}]
    by_name = {"metadata": {"annotations": {"volcano.sh/resource-group": "gpu"}}, "spec": {}}
    assert patched(by_name, default_pod(by_name, "any", groups))["spec"] == {"affinity": {"nodeAffinity": {}}}
    assert default_pod(pod(), "any", groups).operations == []


GROUP = "resourceGroups: [{resourceGroup: a, "
BAD_FILES = [
    (f"{GROUP}object: {{key: color}}}}]", 'resourceGroups[0].object.key is "color", expected namespace or annotation'),
    (f"{GROUP}label: {{}}}}]", "resourceGroups[0].label is not known; the fields are resourceGroup, object, "),
    (f"{GROUP}affinity: 'none'}}]", 'resourceGroups[0].affinity is "none", expected an affinity as in a pod'),
    (f"{GROUP}labels: {{gpu: true}}}}]", "resourceGroups[0].labels.gpu is true, expected text: put it in quotes"),
    (f"{GROUP}tolerations: all}}]", 'resourceGroups[0].tolerations is "all", expected a list'),
    ("resourceGroups: [{}, {labels: {}}]", "resourceGroups[1].resourceGroup is not set, expected the group's name"),
    ("[a]", 'it holds ["a"], expected `resourceGroups:` and a list of groups'),
    ("resourceGroups: {", "not valid YAML"),
]


@pytest.mark.parametrize(("text", "complaint"), BAD_FILES)
def test_a_bad_file_is_refused_with_its_field(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text(text)
    with pytest.raises(ResourceGroupError, match=re.escape(complaint)):
        read_groups(path)


def test_all_mistakes_in_a_file_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text("resourceGroups: [{resourceGroup: a, label: {}, labels: {1: 2}, object: {key: color, value: x}}]")
    with pytest.raises(ResourceGroupError) as raised:
        read_groups(path)
    assert str(raised.value).count("; ") >= 3
    assert "did you mean 'labels'?" in str(raised.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResourceGroupError, match="not valid YAML"):
        read_groups(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceGroupError, match=r"none\.yaml: cannot be read"):
        read_groups(tmp_path / "none.yaml")
