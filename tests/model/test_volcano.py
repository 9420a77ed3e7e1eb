"""Volcano's objects come through reading and writing unchanged."""

from typing import Any

import msgspec
import pytest

from baton.model.volcano import Job, JobFlow, JobStatus, PodGroup, Queue

JOB: dict[str, Any] = {
    "metadata": {"name": "train", "namespace": "ml"},
    "spec": {
        "schedulerName": "volcano",
        "minAvailable": 3,
        "queue": "research",
        "maxRetry": 5,
        "plugins": {"svc": ["--disable-network-policy=true"], "env": []},
        "policies": [{"events": ["PodEvicted", "PodFailed"], "action": "RestartJob", "timeout": "10m"}],
        "tasks": [
            {
                "name": "worker",
                "replicas": 4,
                "minAvailable": 0,
                "template": {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": 0.5}}}]}},
                "policies": [{"exitCode": 3, "action": "AbortJob"}],
                "dependsOn": {"name": ["ps"], "iteration": "any"},
                "partitionPolicy": {"totalPartitions": 2, "partitionSize": 2},
            }
        ],
    },
    "status": {"state": {"phase": "Running"}, "taskStatusCount": {"worker": {"phase": {"Running": 4}}}, "version": 2},
}
GROUP: dict[str, Any] = {
    "metadata": {"name": "g", "namespace": "ml"},
    "spec": {"minMember": 2, "minResources": {"cpu": 2, "memory": "1Gi"}, "minTaskMember": {"a": 1}},
    "status": {"phase": "Inqueue", "conditions": [{"type": "Scheduled", "status": "True", "transitionID": "x"}]},
}
QUEUE: dict[str, Any] = {
    "metadata": {"name": "research"},
    "spec": {
        "weight": 4,
        "reclaimable": False,
        "guarantee": {"resource": {"cpu": "2"}},
        "affinity": {"nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["a"]}},
    },
    "status": {"state": "Open", "allocated": {"cpu": "1"}},
}
FLOW: dict[str, Any] = {
    "metadata": {"name": "f", "namespace": "ml"},
    "spec": {"flows": [{"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"]}}], "jobRetainPolicy": "delete"},
    "status": {"state": {"phase": "Running"}, "unKnowJobs": ["f-a"], "jobStatusList": [{"name": "f-a"}]},
}


@pytest.mark.parametrize(("kind", "written"), [(Job, JOB), (PodGroup, GROUP), (Queue, QUEUE), (JobFlow, FLOW)])
def test_an_object_that_is_read_and_written_again_says_the_same(kind: type[Any], written: dict[str, Any]) -> None:
    read = msgspec.json.decode(msgspec.json.encode(written), type=kind)
    again = msgspec.json.decode(msgspec.json.encode(read))
    metadata = {key: value for key, value in again["metadata"].items() if value}
    assert {**again, "metadata": metadata} == written


def test_an_empty_status_is_written_as_nothing() -> None:
    assert msgspec.json.encode(JobStatus()) == b"{}"


def test_a_task_needs_all_its_replicas_unless_it_says_otherwise() -> None:
    job = msgspec.convert(
        {"metadata": {}, "spec": {"tasks": [{"replicas": 3}, {"replicas": 2, "minAvailable": 0}]}}, Job
    )
    assert [task.minimum for task in job.spec.tasks] == [3, 0]
    assert (job.spec.total, job.spec.minimum) == (5, 3)
