"""Every refusal through kubectl against a real API server, and the defaults that the API server stores."""

from collections.abc import Iterator
from typing import Any

import pytest

from testbed.bed import Bed
from tests.admission.cases import CASES, Case, changed, pod, pod_group, queue, task_of
from tests.admission.test_refusals import review
from tests.cluster.admission.webhooks import Kubectl, Replica, running
from tests.cluster.installation import install_crds
from tests.volcano_jobs import Object, container, manifest, task

pytestmark = pytest.mark.cluster

QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


@pytest.fixture(scope="module")
def admission(kwok_bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    install_crds(kwok_bed)
    with running(kwok_bed, tmp_path_factory.mktemp("admission")) as replica:
        yield replica


@pytest.fixture
def kubectl(admission: Replica, kwok_bed: Bed, kwok_namespace: str) -> Kubectl:
    return Kubectl(kwok_bed, kwok_namespace)


def set_states(bed: Bed, queues: list[Object]) -> None:
    for made in queues:
        if "status" in made:
            bed.api.patch(f"{QUEUES}/{made['metadata']['name']}/status", {"status": made["status"]})


def only_in_the_schema(case: Case) -> bool:
    """A queue's state is not the user's to write: the API server takes it out before anybody is asked."""
    return case.rule == "queue-state"


NEW = [case for case in CASES if not case.delete and not case.before and not only_in_the_schema(case)]


def expected(case: Case) -> str:
    """The sentence, word for word; of a template the API server says why."""
    if case.rule == "template":
        return "spec.tasks[0].template is refused by the API server: "
    return next(found.sentence for found in review(case).findings.refusals if found.rule.key == case.rule)


def test_kubectl_apply_is_refused_with_the_sentence_of_every_rule(
    kubectl: Kubectl, kwok_bed: Bed, kwok_namespace: str
) -> None:
    given = list({each["metadata"]["name"]: each for case in NEW for each in case.given}.values())
    assert kubectl.apply(*given)[0] == 0
    set_states(kwok_bed, given)
    asking, about_queues = Kubectl(kwok_bed, kwok_namespace, ("--dry-run=server",)), [c for c in NEW if c.given]

    def knows_the_queues() -> bool:
        said = asking.apply(*(case.manifest for case in about_queues))[1]
        return all(expected(case) in said for case in about_queues)

    try:
        kwok_bed.wait_for(knows_the_queues, "the watch to tell admission of the queues", 90)
        code, said = kubectl.apply(*(case.manifest for case in NEW))
        assert code == 1
        assert [str(case) for case in NEW if expected(case) not in said] == [], said
        assert len([line for line in said.splitlines() if "denied the request" in line]) == len(NEW), said
    finally:
        for made in reversed(given):
            kwok_bed.api.delete(f"{QUEUES}/{made['metadata']['name']}")


def test_the_job_of_the_tutorial_with_a_bare_command_is_shown_the_right_form(kubectl: Kubectl) -> None:
    code, said = kubectl.apply(manifest(task_of(container(command="train.sh"))))
    assert code == 1
    assert 'spec.tasks[0].template.spec.containers[0].command is "train.sh"' in said
    assert 'write `command: ["train.sh"]`' in said


@pytest.mark.parametrize("case", [case for case in CASES if case.before and case.manifest["kind"] == "Job"], ids=str)
def test_a_change_that_may_not_be_is_refused(kubectl: Kubectl, case: Case) -> None:
    assert case.before is not None
    assert kubectl.apply(case.before)[0] == 0
    code, said = kubectl.apply(case.manifest)
    assert code == 1
    assert "job updates may not" in said


def test_a_job_can_grow_and_be_deleted(kubectl: Kubectl, kwok_bed: Bed, kwok_namespace: str) -> None:
    assert kubectl.apply(manifest())[0] == 0
    code, said = kubectl.apply(manifest(task(replicas=5)))
    assert code == 0, said
    spec = stored(kwok_bed, "batch.volcano.sh/v1alpha1", kwok_namespace, "jobs", "train")
    assert (spec["tasks"][0]["replicas"], spec["tasks"][0]["maxRetry"]) == (5, 3)
    kwok_bed.kubectl("delete", "vcjob", "train", "-n", kwok_namespace)


@pytest.mark.parametrize("case", [case for case in CASES if case.delete], ids=str)
def test_a_queue_that_is_needed_is_not_deleted(kubectl: Kubectl, kwok_bed: Bed, case: Case) -> None:
    assert kubectl.apply(*case.given)[0] == 0
    name = case.manifest["metadata"]["name"]
    try:
        for path in (f"{QUEUES}/{name}", f"{QUEUES}?fieldSelector=metadata.name={name}"):
            status, answer = kwok_bed.api.request("DELETE", path)
            assert status == 422
            assert b"can not be deleted" in answer
    finally:
        for made in reversed(case.given):
            kwok_bed.api.request("DELETE", f"{QUEUES}/{made['metadata']['name']}")


def test_a_change_of_the_hierarchy_alone_is_checked_and_of_a_label_is_not(kubectl: Kubectl, kwok_bed: Bed) -> None:
    placed = {"volcano.sh/hierarchy": "root/lab", "volcano.sh/hierarchy-weights": "1/2"}
    assert kubectl.apply(queue("lab", annotations=placed))[0] == 0
    try:
        spoilt = {"metadata": {"annotations": {"volcano.sh/hierarchy-weights": "1/two"}}}
        merge = "application/merge-patch+json"
        status, answer = kwok_bed.api.request("PATCH", f"{QUEUES}/lab", spoilt, content_type=merge)
        assert status == 422
        assert b"each weight must be larger than 0" in answer
        kwok_bed.api.patch(f"{QUEUES}/lab", {"metadata": {"labels": {"touched": "yes"}}})
    finally:
        kwok_bed.api.delete(f"{QUEUES}/lab")


def test_a_queue_and_its_first_job_come_in_one_file(kubectl: Kubectl, kwok_bed: Bed) -> None:
    try:
        code, said = kubectl.apply(queue("fresh"), manifest(queue="fresh"))
        assert code == 0, said
    finally:
        kwok_bed.api.delete(f"{QUEUES}/fresh")


def stored(bed: Bed, group: str, namespace: str, plural: str, name: str) -> Any:
    return bed.api.get(f"/apis/{group}/namespaces/{namespace}/{plural}/{name}")["spec"]


def test_defaults_are_stored(kubectl: Kubectl, kwok_bed: Bed, kwok_namespace: str) -> None:
    nameless = task()
    del nameless["name"]
    assert kubectl.apply(manifest(nameless, plugins={"pytorch": []}))[0] == 0
    spec = stored(kwok_bed, "batch.volcano.sh/v1alpha1", kwok_namespace, "jobs", "train")
    assert (spec["queue"], spec["schedulerName"], spec["maxRetry"], spec["minAvailable"]) == (
        "default",
        "volcano",
        3,
        2,
    )
    assert (spec["tasks"][0]["name"], spec["tasks"][0]["minAvailable"]) == ("default0", 2)
    assert spec["plugins"] == {"pytorch": [], "svc": []}


def test_a_pod_group_goes_to_the_queue_of_its_namespace(kubectl: Kubectl, kwok_bed: Bed, kwok_namespace: str) -> None:
    kwok_bed.kubectl("annotate", "namespace", kwok_namespace, "scheduling.volcano.sh/queue-name=ml")
    assert kubectl.apply(queue("ml"))[0] == 0
    try:

        def goes_there() -> bool:
            path = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{kwok_namespace}/podgroups?dryRun=All"
            return bool(kwok_bed.api.create(path, pod_group(minMember=1))["spec"]["queue"] == "ml")

        kwok_bed.wait_for(goes_there, "the annotation to be known")
    finally:
        kwok_bed.api.delete(f"{QUEUES}/ml")


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_memory_of_a_card_without_a_number_is_one_card(
    admission: Replica, kwok_bed: Bed, kwok_namespace: str, part: str
) -> None:
    asking = {"name": "asks", "image": "busybox", "resources": {"limits": {"volcano.sh/vgpu-memory": 4096}}}
    made = changed(pod(), "spec", part, value=[asking])
    stored = kwok_bed.api.create(f"/api/v1/namespaces/{kwok_namespace}/pods?dryRun=All", made)
    assert stored["spec"][part][0]["resources"]["limits"]["volcano.sh/vgpu-number"] == "1"


def test_a_warning_reaches_the_user(kubectl: Kubectl) -> None:
    both = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4096, "volcano.sh/vgpu-memory-percentage": 50}
    code, said = kubectl.apply(manifest(task_of(container(resources={"limits": both}))))
    assert code == 0
    assert "Warning:" in said
    assert "the percentage takes precedence" in said


def test_a_gpu_pod_that_is_right_and_a_foreign_pod_with_its_own_gpus_are_let_through(kubectl: Kubectl) -> None:
    sees_all = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    mine = pod(container(resources={"limits": {"nvshare.com/gpu": 1}}))
    foreign = pod(container(env=sees_all))
    foreign["metadata"]["name"] = "monitor"
    assert kubectl.apply(mine, foreign)[0] == 0


def test_refusals_are_counted(admission: Replica, kubectl: Kubectl) -> None:
    kubectl.apply(manifest(minAvailable=-1))
    metrics = admission.metrics()
    assert 'baton_admission_refusals_total{rule="min-available"}' in metrics
    assert 'baton_admission_requests_total{path="/jobs/mutate",result="refused"}' in metrics
    assert "baton_admission_certificate_expiry_timestamp_seconds" in metrics
