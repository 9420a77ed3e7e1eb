"""The controller is killed while jobs start, restart and end: nothing is lost, nothing is made twice."""

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.bed import Bed
from tests.cluster.jobs.conftest import ControllerProcess, path
from tests.cluster.jobs.running_jobs import Doorman, RunningJob, small_job, small_task

pytestmark = pytest.mark.cluster

Replicas = Callable[..., ControllerProcess]
KILLS = 6


def requests(bed: Bed, namespace: str) -> Iterator[dict[str, Any]]:
    """The finished requests about objects of a namespace, from the audit log."""
    for entry in bed.plane.audited(f'"namespace":"{namespace}"', '"stage":"ResponseComplete"'):
        if entry.get("objectRef", {}).get("namespace") == namespace:
            yield entry


def made(bed: Bed, namespace: str, plural: str) -> Counter[str]:
    """How often each object was made. A pod's name is in the request's path only for what exists: count by answer."""
    found = Counter[str]()
    for entry in requests(bed, namespace):
        about = entry["objectRef"]
        if (about["resource"], entry["verb"]) == (plural, "create") and not about.get("subresource"):
            found[str(about.get("name", ""))] += entry["responseStatus"]["code"] == 201
    return found


def pods_of(bed: Bed, namespace: str) -> dict[str, str]:
    items = bed.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {item["metadata"]["name"]: item["status"].get("phase", "") for item in items}


def something_happened(bed: Bed, namespace: str, jobs: list[RunningJob], seen: dict[str, str]) -> bool:
    """A pod came or went, or there is nothing left to do."""
    return set(pods_of(bed, namespace)) != set(seen) or all(each.phase == "Running" for each in jobs)


def test_jobs_start_and_restart_through_the_death_of_their_controller(
    job_bed: Bed, controllers: Replicas, namespace: str
) -> None:
    replica = controllers()
    replica.until_leading()
    chance = random.Random(7)
    with Doorman(job_bed, namespace):
        jobs = [
            RunningJob(
                job_bed,
                namespace,
                small_job(
                    small_task(replicas=3),
                    name=f"life-{number}",
                    policies=[{"event": "PodFailed", "action": "RestartJob"}],
                ),
            )
            for number in range(8)
        ]
        for _ in range(KILLS):
            seen = pods_of(job_bed, namespace)
            job_bed.wait_for(
                functools.partial(something_happened, job_bed, namespace, jobs, seen),
                "the controller to do something",
                90,
            )
            replica.process.kill()
            victim = f"{chance.choice(jobs).name}-worker-0"
            if pods_of(job_bed, namespace).get(victim) == "Running":
                job_bed.finish_pod(namespace, victim, "fail")
            controllers()
        replica.until_leading()
        for each in jobs:
            each.until("Running", running=3)
    # What was made is read first: the last of the failed pods may begin another life at any moment.
    pods, groups = (made(job_bed, namespace, plural) for plural in ("pods", "podgroups"))
    for each in jobs:
        status = each.status
        restarts = [condition["status"] for condition in status["conditions"]].count("Restarting")
        assert restarts == status.get("retryCount", 0) == status.get("version", 0)
        for index in range(3):
            assert pods[f"{each.name}-worker-{index}"] <= 1 + restarts, "a pod was made twice in one life"
        assert groups[each.group] <= 1 + restarts


def test_a_command_is_carried_out_once_though_its_reader_dies(
    job_bed: Bed, controllers: Replicas, namespace: str
) -> None:
    replica = controllers()
    replica.until_leading()
    with Doorman(job_bed, namespace):
        mine = RunningJob(job_bed, namespace, small_job(small_task(replicas=2), maxRetry=9))
        mine.until("Running", running=2)
        replica.process.kill()
        mine.order("RestartJob")
        controllers()
        job_bed.wait_for(lambda: mine.status.get("retryCount", 0) > 0, "the restart", 90)
        replica.process.kill()
        controllers()
        replica.until_leading()
        mine.until("Running", running=2)
        job_bed.wait_for(
            lambda: not job_bed.api.get(path("commands", namespace))["items"], "the command to be consumed"
        )
    assert mine.status["retryCount"] == 1


def test_pods_lost_while_nobody_looked_are_evictions(job_bed: Bed, controllers: Replicas, namespace: str) -> None:
    replica = controllers()
    replica.until_leading()
    with Doorman(job_bed, namespace):
        mine = RunningJob(
            job_bed,
            namespace,
            small_job(small_task(replicas=2), policies=[{"event": "PodEvicted", "action": "TerminateJob"}]),
        )
        mine.until("Running", running=2)
        replica.process.kill()
        job_bed.api.delete(f"/api/v1/namespaces/{namespace}/pods/{mine.name}-worker-1", grace_s=0)
        mine.until_pods(lambda pods: len(pods) == 1, "one pod")
        controllers()
        replica.until_leading()
        mine.until("Terminated")
