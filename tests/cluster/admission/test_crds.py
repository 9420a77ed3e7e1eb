"""The custom resources on a real API server: installed by the command, served, printed, defaulted, checked."""

import subprocess
import sys
from typing import Any

import pytest
import yaml

from baton.install.crds import definitions
from testbed.bed import Bed
from testbed.errors import BedError
from tests.cluster.installation import install_crds

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def crds(kwok_bed: Bed) -> None:
    install_crds(kwok_bed)


def baton(bed: Bed, *words: str) -> str:
    """`baton` against the bed; its sentence when it fails."""
    command = [sys.executable, "-m", "baton.cli.main", *words, "--kubeconfig", str(bed.kubeconfig)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def apply(bed: Bed, namespace: str, manifest: str) -> dict[str, Any]:
    answer: dict[str, Any] = yaml.safe_load(
        bed.kubectl("apply", "-n", namespace, "-f", "-", "-o", "yaml", stdin=manifest)
    )
    return answer


JOB = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: gang}
spec:
  minAvailable: 2
  tasks:
    - name: worker
      replicas: 2
      template:
        spec:
          containers: [{name: main, image: busybox, command: COMMAND, ports: [{containerPort: 80}]}]
"""


HYPER_NODE = """
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: columns}
spec: {tier: 1, members: [{type: Node, selector: {SELECTOR}}]}
"""


def test_installing_again_changes_nothing_and_says_so(kwok_bed: Bed) -> None:
    lines = baton(kwok_bed, "install", "--crds").splitlines()
    assert sorted(lines) == sorted(
        f"CustomResourceDefinition {each['metadata']['name']} unchanged" for each in definitions()
    )


def test_a_dry_run_says_what_would_change_and_stores_nothing(kwok_bed: Bed) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/commands.bus.volcano.sh"
    before = kwok_bed.api.get(path)
    versions = before["spec"]["versions"]
    versions[0]["schema"]["openAPIV3Schema"]["properties"]["reason"]["description"] = "something else"
    kwok_bed.api.patch(path, {"spec": {"versions": versions}})
    lines = baton(kwok_bed, "install", "--crds", "--dry-run").splitlines()
    assert "CustomResourceDefinition commands.bus.volcano.sh changed (dry run)" in lines
    schema = kwok_bed.api.get(path)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["properties"]["reason"]["description"] == "something else"
    assert "CustomResourceDefinition commands.bus.volcano.sh changed" in baton(kwok_bed, "install", "--crds")


@pytest.mark.parametrize(
    ("word", "columns"),
    [
        ("vcjob", ["NAME", "STATUS", "MINAVAILABLE", "RUNNINGS", "AGE"]),
        ("vj", ["NAME", "STATUS", "MINAVAILABLE", "RUNNINGS", "AGE"]),
        ("pg", ["NAME", "STATUS", "MINMEMBER", "RUNNINGS", "AGE"]),
        ("jf", ["NAME", "STATUS", "AGE"]),
        ("hn", ["NAME", "TIER", "TIERNAME", "NODECOUNT", "AGE"]),
    ],
)
def test_short_names_and_columns_are_those_that_people_type(
    kwok_bed: Bed, kwok_namespace: str, word: str, columns: list[str]
) -> None:
    apply(kwok_bed, kwok_namespace, JOB.replace("COMMAND", "[sleep]"))
    apply(
        kwok_bed,
        kwok_namespace,
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: 1}\n",
    )
    apply(
        kwok_bed,
        kwok_namespace,
        "apiVersion: flow.volcano.sh/v1alpha1\nkind: JobFlow\nmetadata: {name: f}\nspec: {flows: [{name: a}]}\n",
    )
    apply(kwok_bed, kwok_namespace, HYPER_NODE.replace("SELECTOR", "exactMatch: {name: a}"))
    try:
        assert kwok_bed.kubectl("get", word, "-n", kwok_namespace).splitlines()[0].split() == columns
    finally:
        kwok_bed.api.delete("/apis/topology.volcano.sh/v1alpha1/hypernodes/columns")


def test_defaults_are_set_and_the_pod_template_is_kept_whole(kwok_bed: Bed, kwok_namespace: str) -> None:
    job = apply(kwok_bed, kwok_namespace, JOB.replace("COMMAND", "[sleep, '5']"))
    assert job["spec"]["queue"] == "default"
    assert job["spec"]["maxRetry"] == 3
    (container,) = job["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert container["ports"] == [{"containerPort": 80}]


def test_a_patch_in_a_flow_gets_no_defaults_that_would_overwrite_the_template(
    kwok_bed: Bed, kwok_namespace: str
) -> None:
    flow = apply(
        kwok_bed,
        kwok_namespace,
        "apiVersion: flow.volcano.sh/v1alpha1\nkind: JobFlow\nmetadata: {name: patched}\n"
        "spec: {flows: [{name: a, patch: {jobSpec: {minAvailable: 2}}}]}\n",
    )
    assert flow["spec"]["flows"][0]["patch"]["jobSpec"] == {"minAvailable": 2}


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        (JOB.replace("COMMAND", "train.sh"), "command.*must be of type array"),
        (JOB.replace("COMMAND", "[a]").replace("minAvailable: 2", "minAvailable: -1"), "greater than or equal to 0"),
        (JOB.replace("COMMAND", "[a]").replace("replicas: 2", "replica: 2"), "unknown field"),
        (
            "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: q}\nspec: {weight: 70000}\n",
            "less than or equal to 65535",
        ),
        (HYPER_NODE.replace("SELECTOR", "exactMatch: {name: ''}"), "should be at least 1 chars long"),
        (HYPER_NODE.replace("SELECTOR", "exactMatch: {name: A_b}"), "should match"),
        (HYPER_NODE.replace("SELECTOR", ""), "give exactly one of exactMatch, regexMatch and labelMatch"),
        (
            HYPER_NODE.replace("SELECTOR", "exactMatch: {name: a}, regexMatch: {pattern: a}"),
            "give exactly one of exactMatch, regexMatch and labelMatch",
        ),
        (
            HYPER_NODE.replace("{type: Node, selector: {SELECTOR}}", ""),
            "members",
        ),
    ],
)
def test_wrong_types_are_refused_even_without_a_webhook(
    kwok_bed: Bed, kwok_namespace: str, manifest: str, complaint: str
) -> None:
    with pytest.raises(BedError, match=complaint):
        apply(kwok_bed, kwok_namespace, manifest)


def test_every_field_is_explained(kwok_bed: Bed) -> None:
    said = kwok_bed.kubectl("explain", "jobs.spec.minAvailable", "--api-version=batch.volcano.sh/v1alpha1")
    assert "must be able to run together" in said


def test_the_plain_manifests_install_with_kubectl(kwok_bed: Bed) -> None:
    kwok_bed.kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-k", "deploy/crds")
