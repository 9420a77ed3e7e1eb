"""Pods that a real API server refuses: by a quota, and because they are none."""

from typing import Any

import pytest

from testbed.bed import Bed
from tests.cluster.jobs.conftest import ControllerProcess, events
from tests.cluster.jobs.running_jobs import Doorman, RunningJob, small_job, small_task

pytestmark = pytest.mark.cluster


def test_a_quota_is_told_in_the_status_and_the_pods_come_when_it_is_gone(
    job_bed: Bed, controller: ControllerProcess, namespace: str
) -> None:
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    job_bed.api.create(quotas, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}})
    job_bed.wait_for(
        lambda: job_bed.api.get(f"{quotas}/small").get("status", {}).get("hard") == {"pods": "1"}, "the quota"
    )
    with Doorman(job_bed, namespace):
        mine = RunningJob(job_bed, namespace, small_job(small_task(replicas=4, minAvailable=1), minAvailable=1))
        mine.until("Running", running=1)
        job_bed.wait_for(lambda: mine.status["state"].get("reason") == "FailedCreate", "the reason")
        assert "exceeded quota: small" in mine.status["state"]["message"]
        told = [event for event in events(job_bed, namespace, mine.name) if event["reason"] == "FailedCreate"]
        assert told
        assert len(told) <= 10
        job_bed.api.delete(f"{quotas}/small")
        mine.until("Running", running=4)
        job_bed.wait_for(lambda: not mine.status["state"].get("reason"), "nothing more to be said")


def test_a_template_that_the_server_does_not_take_is_told_as_hopeless(
    job_bed: Bed, controller: ControllerProcess, namespace: str
) -> None:
    wrong: dict[str, Any] = small_task(replicas=1)
    wrong["template"]["spec"]["restartPolicy"] = "Sometimes"
    with Doorman(job_bed, namespace):
        mine = RunningJob(job_bed, namespace, small_job(wrong))
        job_bed.wait_for(lambda: mine.status.get("state", {}).get("reason") == "FailedCreate", "the reason", 60)
        message = mine.status["state"]["message"]
    assert message.startswith("no pods can be created from this template: ")
    assert "restartPolicy" in message
