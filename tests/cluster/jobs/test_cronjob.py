"""CronJobs on a real API server. Schedules name one minute of the year, just past: it is due now and not again."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.bed import Bed
from testbed.kwok import OUTCOME
from tests.cluster.jobs.conftest import ControllerProcess, create, events, path
from tests.cluster.jobs.running_jobs import Doorman, small_task

pytestmark = pytest.mark.cluster


class CronJobs:
    """CronJobs of one namespace."""

    def __init__(self, bed: Bed, namespace: str) -> None:
        self.bed = bed
        self.namespace = namespace
        self.began = datetime.datetime.now(datetime.UTC).replace(second=0, microsecond=0)

    def minute(self, ago: int) -> datetime.datetime:
        """A minute before the test."""
        return self.began - datetime.timedelta(minutes=ago)

    def schedule(self, ago: int) -> str:
        due = self.minute(ago)
        return f"{due.minute} {due.hour} {due.day} {due.month} *"

    def make(self, name: str, ago: int, *, outcome: str = "", **spec: Any) -> None:
        """One whose time was so many minutes ago, though it was made now."""
        member = small_task("worker", 1)
        if outcome:
            member["template"]["metadata"] = {"annotations": {OUTCOME: outcome}}
        job = {"schedulerName": "default-scheduler", "minAvailable": 1, "tasks": [member]}
        body = {
            "metadata": {"name": name},
            "spec": {
                "schedule": self.schedule(ago),
                "suspend": True,
                "jobTemplate": {"metadata": {"labels": {"team": "vision"}}, "spec": job},
                **spec,
            },
        }
        create(self.bed, "cronjobs", body, self.namespace)
        before = {"status": {"lastScheduleTime": f"{self.minute(60):%Y-%m-%dT%H:%M:%SZ}"}}
        self.bed.api.patch(path("cronjobs", self.namespace, name, "status"), before)
        self.change(name, suspend=False)

    def change(self, name: str, **spec: Any) -> None:
        self.bed.api.patch(path("cronjobs", self.namespace, name), {"spec": spec})

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.bed.api.get(path("cronjobs", self.namespace, name)).get("status", {})
        return found

    def version(self, name: str) -> str:
        return str(self.bed.api.get(path("cronjobs", self.namespace, name))["metadata"]["resourceVersion"])

    def active(self, name: str) -> list[str]:
        return [one["name"] for one in self.status(name).get("active", [])]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Those that are there to stay."""
        items = self.bed.api.get(path("jobs", self.namespace))["items"]
        return {item["metadata"]["name"]: item for item in items if "deletionTimestamp" not in item["metadata"]}

    def job_name(self, name: str, ago: int) -> str:
        return f"{name}-{int(self.minute(ago).timestamp()) // 60}"

    def until(self, *names: str) -> None:
        self.bed.wait_for(lambda: set(self.jobs()) == set(names), f"the jobs {names}", 90)

    def until_phase(self, name: str, phase: str) -> None:
        where = path("jobs", self.namespace, name)
        self.bed.wait_for(
            lambda: self.bed.api.get(where).get("status", {}).get("state", {}).get("phase") == phase,
            f"job {name} to be {phase}",
            90,
        )

    def until_said(self, name: str, reason: str) -> None:
        self.bed.wait_for(
            lambda: reason in {event["reason"] for event in events(self.bed, self.namespace, name)},
            f"the event {reason}",
        )


@pytest.fixture
def crons(job_bed: Bed, controller: ControllerProcess, namespace: str) -> Iterator[CronJobs]:
    with Doorman(job_bed, namespace):
        yield CronJobs(job_bed, namespace)


def test_a_run_is_made_at_its_time_runs_and_is_remembered(crons: CronJobs) -> None:
    crons.make("nightly", 3, outcome="succeed", timeZone="Etc/UTC")
    name = crons.job_name("nightly", 3)
    crons.until(name)
    metadata = crons.jobs()[name]["metadata"]
    assert metadata["labels"]["team"] == "vision"
    assert metadata["annotations"]["volcano.sh/cronjob-scheduled-timestamp"] == f"{crons.minute(3):%Y-%m-%dT%H:%M:%SZ}"
    (owner,) = metadata["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["name"]) == ("batch.volcano.sh/v1alpha1", "CronJob", "nightly")
    crons.until_phase(name, "Completed")
    crons.bed.wait_for(
        lambda: not crons.active("nightly") and "lastSuccessfulTime" in crons.status("nightly"),
        "the success to be told",
    )
    assert crons.status("nightly")["lastScheduleTime"] == f"{crons.minute(3):%Y-%m-%dT%H:%M:%SZ}"
    assert set(crons.jobs()) == {name}
    crons.until_said("nightly", "SuccessfulCreate")
    before = crons.version("nightly")
    crons.make("another", 3, outcome="succeed")
    crons.until_phase(crons.job_name("another", 3), "Completed")
    assert crons.version("nightly") == before, "nothing changed, and yet it was written"


def test_forbid_waits_for_the_run_before(crons: CronJobs) -> None:
    crons.make("single", 5, concurrencyPolicy="Forbid")
    first, second = crons.job_name("single", 5), crons.job_name("single", 2)
    crons.until(first)
    crons.bed.wait_for(lambda: crons.active("single") == [first], "the first to be active")
    crons.change("single", schedule=crons.schedule(2))
    crons.until_said("single", "JobAlreadyActive")
    assert set(crons.jobs()) == {first}
    crons.bed.wait_for_pod(crons.namespace, f"{first}-worker-0", "Running", 90)
    crons.bed.finish_pod(crons.namespace, f"{first}-worker-0", "succeed")
    crons.until(first, second)
    crons.bed.wait_for(lambda: crons.active("single") == [second], "the second to be active")


def test_replace_puts_the_new_run_in_the_place_of_the_old(crons: CronJobs) -> None:
    crons.make("fresh", 5, concurrencyPolicy="Replace")
    first, second = crons.job_name("fresh", 5), crons.job_name("fresh", 2)
    crons.until(first)
    crons.change("fresh", schedule=crons.schedule(2))
    crons.until(second)
    crons.bed.wait_for(lambda: crons.active("fresh") == [second], "the second alone to be active")


def test_history_is_kept_to_its_limits(crons: CronJobs) -> None:
    crons.make("tidy", 6, outcome="succeed", successfulJobsHistoryLimit=1)
    for ago in (6, 4, 2):
        crons.change("tidy", schedule=crons.schedule(ago))
        name = crons.job_name("tidy", ago)
        crons.bed.wait_for(lambda name=name: name in crons.jobs(), f"the job {name}", 90)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        crons.until_phase(name, "Completed")
        crons.until(name)


def test_what_cannot_be_read_is_told(crons: CronJobs) -> None:
    crons.make("odd", 3, schedule="every full moon")
    crons.until_said("odd", "UnparseableSchedule")
    assert crons.jobs() == {}


def test_a_run_that_was_due_while_the_controller_was_dead_is_made_once(
    crons: CronJobs, controller: ControllerProcess
) -> None:
    controller.process.kill()
    crons.make("late", 3)
    crons.make("too-late", 3, startingDeadlineSeconds=30)
    controller.process.start()
    name = crons.job_name("late", 3)
    crons.until(name)
    crons.until_said("too-late", "MissSchedule")
    controller.process.kill()
    # As if it had died before it wrote the status.
    crons.bed.api.patch(
        path("cronjobs", crons.namespace, "late", "status"),
        {"status": {"active": None, "lastScheduleTime": f"{crons.minute(60):%Y-%m-%dT%H:%M:%SZ}"}},
    )
    uid = crons.jobs()[name]["metadata"]["uid"]
    controller.process.start()
    crons.bed.wait_for(lambda: crons.active("late") == [name], "the status to be found again")
    assert {job["metadata"]["uid"] for job in crons.jobs().values()} == {uid}
