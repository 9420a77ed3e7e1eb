"""How the job, queue and pod commands parse options and describe objects."""

from pathlib import Path

import pytest

from baton.cli.cluster import workloads
from baton.errors import UsageError
from baton.model import times


def test_an_age_is_the_time_since_a_timestamp() -> None:
    assert workloads.age("2026-06-01T12:00:00Z", times.seconds("2026-06-01T12:02:05Z")) == "2m5s"
    assert workloads.age("yesterday") == "<unknown>"


def test_an_absent_time_has_no_age() -> None:
    assert workloads.age(None) == "<unknown>"


def test_amounts_are_pairs() -> None:
    assert workloads.parse_amounts("cpu=500m,nvshare.com/gpu=1,memory=1.5Gi", "--limits") == {
        "cpu": "500m",
        "nvshare.com/gpu": "1",
        "memory": "1.5Gi",
    }
    assert workloads.parse_amounts("", "--limits") == {}


@pytest.mark.parametrize("text", ["cpu", "cpu=", "=1", "cpu=abc", "cpu=1,memory", "cpu=1GiB"])
def test_an_invalid_amount_names_the_flag_and_the_value(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--limits has '.*', expected RESOURCE=AMOUNT"):
        workloads.parse_amounts(text, "--limits")


def test_a_manifest_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("kind: Pod\n")
    with pytest.raises(UsageError, match="kind is 'Pod', expected Job"):
        workloads.read_documents(path, "Job")
    path.write_text("a: [")
    with pytest.raises(UsageError, match="not valid YAML"):
        workloads.read_documents(path, "Job")
    path.write_text("kind: Job\nspec: {since: 2026-02-30}\n")
    with pytest.raises(UsageError, match="not valid YAML: day is out of range"):
        workloads.read_documents(path, "Job")
    path.write_text("---\n")
    with pytest.raises(UsageError, match="is empty, expected a Job"):
        workloads.read_documents(path, "Job")


@pytest.mark.parametrize("metadata", ["", "metadata:", "metadata: train", "metadata: {labels: {a: b}}"])
def test_a_manifest_without_a_name_is_refused(tmp_path: Path, metadata: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"kind: Job\n{metadata}\n")
    with pytest.raises(UsageError, match=r"metadata is .*, expected the name of the Job"):
        workloads.read_documents(path, "Job")


def test_a_command_is_owned_by_its_target() -> None:
    job = {"metadata": {"name": "train", "uid": "u-1"}}
    order = workloads.command_object(job, "batch.volcano.sh/v1alpha1", "Job", "AbortJob")
    assert order["action"] == "AbortJob"
    assert order["metadata"]["generateName"] == "train-abortjob-"
    assert order["target"] == order["metadata"]["ownerReferences"][0]
    assert order["target"]["uid"] == "u-1"


def test_a_pod_belongs_to_a_queue_by_label_or_annotation() -> None:
    assert workloads.belongs_to_queue({"labels": {"volcano.sh/queue-name": "q"}}, "q")
    assert workloads.belongs_to_queue({"annotations": {"scheduling.volcano.sh/queue-name": "q"}}, "q")
    assert not workloads.belongs_to_queue({"labels": {"volcano.sh/queue-name": "other"}}, "q")


def test_recorded_cards_are_listed_once_each() -> None:
    text = "GPU-aaaaaaaa-1,NVIDIA,3000,50:GPU-bbbbbbbb-2,NVIDIA,3000,50:;GPU-aaaaaaaa-1,NVIDIA,2000,0:"
    assert workloads.cards_of({"annotations": {"volcano.sh/vgpu-ids-new": text}}) == ["aaaaaaaa", "bbbbbbbb"]
    assert workloads.cards_of({}) == []
