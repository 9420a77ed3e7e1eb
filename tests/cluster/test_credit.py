"""Jobs that the credit of their queue covers, on a real API server: what is written for them, and when it ends."""

import pytest
import yaml

from tests.cluster.conftest import GPUS
from tests.cluster.programs import POD_GROUPS, BatonPrograms
from tests.volcano_jobs import container, manifest, task

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

WITH_A_GATE = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: overcommit
    arguments:
      overcommit-factor: 1.0
  - name: predicates
  - name: nodeorder
"""
QUEUE = "/apis/scheduling.volcano.sh/v1beta1/queues/default"


def gpu_job(name: str, gpus: int, *, queue: str = "default") -> str:
    """A job of one pod that uses GPUs, as YAML."""
    only = task("main", 1, containers=[container(image="none", resources={"limits": {"nvidia.com/gpu": gpus}})])
    return yaml.safe_dump(manifest(only, name=name, schedulerName="baton", minAvailable=1, queue=queue))


def lent(baton: BatonPrograms) -> int:
    """GPUs that the default queue may let in without asking."""
    status = baton.bed.api.get(QUEUE).get("status", {})
    return int(status.get("credit", {}).get("amounts", {}).get("nvidia.com/gpu", "0"))


def until_lent(baton: BatonPrograms, gpus: int) -> None:
    baton.bed.wait_for(lambda: lent(baton) == gpus, f"{gpus} GPUs to be lent")


def test_within_the_credit_no_admission_is_written_and_beyond_it_pods_wait_for_one(
    baton_cluster: BatonPrograms, baton_namespace: str
) -> None:
    baton, namespace = baton_cluster, baton_namespace
    baton.configure(WITH_A_GATE)
    until_lent(baton, GPUS)
    baton.apply(namespace, gpu_job("first", 4))
    baton.until_phase(namespace, "first", "Running")
    asked = [(request.verb, request.resource, request.subresource) for request in baton.requests(namespace)]
    made, bound = asked.index(("create", "pods", "")), asked.index(("create", "pods", "binding"))
    assert asked.index(("create", "podgroups", "")) < made < bound
    assert ("patch", "podgroups", "") not in asked[:bound]

    until_lent(baton, GPUS - 4)
    baton.apply(namespace, gpu_job("second", 4))
    baton.until_phase(namespace, "second", "Running")
    until_lent(baton, 0)
    baton.apply(namespace, gpu_job("third", 1))
    baton.bed.wait_for(
        lambda: "Unschedulable" in str(baton.group(namespace, "third").get("status", {}).get("conditions")),
        "the third to be told that it waits",
    )
    assert baton.group(namespace, "third")["status"]["phase"] == "Pending"
    assert baton.pods(namespace, "third") == []
    baton.finish(namespace, "first")
    baton.until_phase(namespace, "third", "Running")
    until_lent(baton, 3)


def test_jobs_that_come_at_once_do_not_spend_the_same_credit(
    baton_cluster: BatonPrograms, baton_namespace: str
) -> None:
    """Each asks for more than half; the scheduler hears of the first only after the others were made."""
    baton, namespace = baton_cluster, baton_namespace
    baton.configure(WITH_A_GATE)
    names = [f"big{number}" for number in range(6)]

    def with_pods() -> int:
        return sum(bool(baton.pods(namespace, name)) for name in names)

    with baton.cordoned():
        until_lent(baton, GPUS)
        baton.apply(namespace, "---\n".join(gpu_job(name, 3) for name in names))
        baton.bed.wait_for(lambda: with_pods() == 2, "two to get their pods")
        for name in names:
            baton.until_phase(namespace, name, "Pending")
        baton.bed.wait_for(
            lambda: len(baton.bed.api.get(POD_GROUPS.format(namespace))["items"]) == len(names), "all groups"
        )
        assert with_pods() == 2


def test_a_scheduler_that_is_away_leaves_its_credit_to_be_spent_once(
    baton_cluster: BatonPrograms, baton_namespace: str
) -> None:
    baton, namespace = baton_cluster, baton_namespace
    baton.configure(WITH_A_GATE)
    until_lent(baton, GPUS)
    baton.scheduler.kill()
    try:
        baton.apply(namespace, "---\n".join(gpu_job(f"early{number}", 4) for number in range(2)))
        for number in range(2):
            baton.until_pods(namespace, f"early{number}", 1, "Pending")
        baton.controller.kill()
        baton.controller.start()
        baton.controller.wait_ready()
        baton.apply(namespace, gpu_job("late", 1))
        baton.until_phase(namespace, "late", "Pending")
        baton.bed.wait_for(lambda: baton.group(namespace, "late")["status"]["phase"] == "Pending", "its group")
        assert baton.pods(namespace, "late") == []
    finally:
        baton.scheduler.start()
        baton.scheduler.wait_ready()
    for number in range(2):
        baton.until_phase(namespace, f"early{number}", "Running")
    baton.finish(namespace, "early0")
    baton.until_phase(namespace, "late", "Running")
