"""The PodGroup of a job: its requests, and when it has to change."""

from typing import Any

import msgspec

from baton.controllers.job.group import group_changes, group_spec, min_resources
from baton.model.volcano import Job, PodGroupSpec


def a_job(*tasks: dict[str, Any], **spec: Any) -> Job:
    return msgspec.convert(
        {"metadata": {"name": "j", "uid": "u"}, "spec": {"tasks": [dict(task) for task in tasks], **spec}}, Job
    )


def a_task(name: str, replicas: int, cpu: str, *, priority: str = "", **more: Any) -> dict[str, Any]:
    pod = {"containers": [{"resources": {"requests": {"cpu": cpu}}}], "priorityClassName": priority}
    return {"name": name, "replicas": replicas, "template": {"spec": pod}, **more}


def test_a_gang_requests_the_sum_of_its_members() -> None:
    job = a_job(a_task("a", 2, "500m"), a_task("b", 3, "1"))
    assert group_spec(job, {}) == PodGroupSpec(
        min_member=5,
        min_task_member={"a": 2, "b": 3},
        min_resources={"cpu": "4", "requests.cpu": "4", "pods": "5", "count/pods": "5"},
    )


def test_the_tasks_with_the_highest_priority_count_first() -> None:
    tasks = (a_task("low", 4, "1"), a_task("high", 2, "10", priority="high"))
    assert min_resources(a_job(*tasks, minAvailable=3).spec, {"high": 100})["cpu"] == "21"
    assert min_resources(a_job(*tasks, minAvailable=3).spec, {})["cpu"] == "3"


def test_the_minima_of_all_tasks_count_before_surplus_replicas() -> None:
    tasks = (a_task("a", 4, "1", minAvailable=1), a_task("b", 4, "10", minAvailable=1))
    assert min_resources(a_job(*tasks, minAvailable=3).spec, {})["cpu"] == "12"


def test_limits_replace_missing_requests_and_larger_init_containers_count() -> None:
    pod = {
        "containers": [{"resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}, "requests": {"cpu": "1"}}}],
        "initContainers": [
            {"resources": {"requests": {"cpu": "3"}}},
            {"resources": {"requests": {"memory": "1Gi"}}, "restartPolicy": "Always"},
        ],
    }
    job = a_job({"name": "t", "replicas": 2, "template": {"spec": pod}})
    asked = {"nvidia.com/gpu": "2", "memory": "4Gi", "cpu": "6"}
    assert min_resources(job.spec, {}) == {
        **asked,
        **{f"requests.{name}": quantity for name, quantity in asked.items()},
        "limits.memory": "2Gi",
        "pods": "2",
        "count/pods": "2",
    }


def test_a_job_without_requests_counts_pods_and_an_empty_job_requests_nothing() -> None:
    bare = {"name": "t", "replicas": 3, "template": {"spec": {"containers": [{"name": "main"}]}}}
    assert min_resources(a_job(bare).spec, {}) == {"pods": "3", "count/pods": "3"}
    assert min_resources(a_job({**bare, "replicas": 0}).spec, {}) == {}


def test_partitions_become_sub_groups() -> None:
    policy = {"totalPartitions": 4, "partitionSize": 2, "minPartitions": 3, "networkTopology": {"mode": "soft"}}
    spec = group_spec(a_job(a_task("w", 8, "1", partitionPolicy=policy), minAvailable=6), {})
    assert spec.min_task_member == {"w": 6}
    (group,) = spec.sub_group_policy
    assert (group.name, group.sub_group_size, group.min_sub_groups) == ("w", 2, 3)
    assert group.match_label_keys == ("volcano.sh/partition-id",)
    assert group.network_topology is not None
    assert group.network_topology.mode == "soft"


def test_only_differences_are_patched_and_notation_does_not_matter() -> None:
    wanted = group_spec(a_job(a_task("a", 2, "500m")), {})
    less_plain = {"cpu": "1000m", "requests.cpu": "1000m", "pods": 2, "count/pods": "2"}
    same = msgspec.structs.replace(wanted, min_resources=less_plain)
    assert group_changes(same, wanted) == {}
    other = PodGroupSpec(min_member=1, min_task_member={"gone": 1}, min_resources={"memory": "1"})
    assert group_changes(other, wanted) == {
        "minMember": 2,
        "minTaskMember": {"gone": None, "a": 2},
        "minResources": {"memory": None, "cpu": "1", "requests.cpu": "1", "pods": "2", "count/pods": "2"},
    }
