"""JobFlows on a real API server with real jobs: order, ends, what is retained, and a controller that is killed."""

from collections.abc import Iterator
from typing import Any

import pytest

from testbed.bed import Bed
from testbed.kwok import OUTCOME
from tests.cluster.jobs.conftest import ControllerProcess, create, events, path
from tests.cluster.jobs.running_jobs import Doorman, small_task

pytestmark = pytest.mark.cluster


class Flows:
    """Templates and flows of one namespace."""

    def __init__(self, bed: Bed, namespace: str) -> None:
        self.bed = bed
        self.namespace = namespace

    def template(self, name: str, outcome: str = "succeed", **spec: Any) -> None:
        member = small_task("worker", 1)
        if outcome:
            member["template"]["metadata"] = {"annotations": {OUTCOME: outcome}}
        body = {"schedulerName": "default-scheduler", "minAvailable": 1, "tasks": [member], **spec}
        create(self.bed, "jobtemplates", {"metadata": {"name": name}, "spec": body}, self.namespace)

    def flow(self, name: str, steps: dict[str, list[str]], **spec: Any) -> None:
        flows = [{"name": step, **({"dependsOn": {"targets": on}} if on else {})} for step, on in steps.items()]
        create(self.bed, "jobflows", {"metadata": {"name": name}, "spec": {"flows": flows, **spec}}, self.namespace)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.bed.api.get(path("jobflows", self.namespace, name)).get("status", {})
        return found

    def until(self, name: str, phase: str) -> dict[str, Any]:
        try:
            self.bed.wait_for(
                lambda: self.status(name).get("state", {}).get("phase") == phase, f"flow {name} to be {phase}", 120
            )
        except Exception as error:
            raise AssertionError(f"{error}; it is {self.status(name)}") from None
        return self.status(name)

    def jobs(self) -> dict[str, dict[str, Any]]:
        items = self.bed.api.get(path("jobs", self.namespace))["items"]
        return {item["metadata"]["name"]: item for item in items if "deletionTimestamp" not in item["metadata"]}

    def until_jobs(self, *names: str) -> None:
        self.bed.wait_for(lambda: set(self.jobs()) == set(names), f"the jobs {names}", 90)

    def until_phase(self, name: str, phase: str) -> None:
        self.bed.wait_for(
            lambda: (
                self.jobs()[name].get("status", {}).get("state", {}).get("phase") == phase
                if name in self.jobs()
                else False
            ),
            f"job {name} to be {phase}",
            90,
        )


@pytest.fixture
def flows(job_bed: Bed, controller: ControllerProcess, namespace: str) -> Iterator[Flows]:
    with Doorman(job_bed, namespace):
        yield Flows(job_bed, namespace)


def ended(job: dict[str, Any]) -> str:
    return str(job["status"]["state"]["lastTransitionTime"])


def test_a_diamond_runs_in_its_order_and_succeeds(flows: Flows) -> None:
    for name in "abcd":
        flows.template(name)
    flows.flow("run", {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}, jobRetainPolicy="retain")
    status = flows.until("run", "Succeed")
    assert status["completedJobs"] == ["run-a", "run-b", "run-c", "run-d"]
    jobs = flows.jobs()
    for later, earlier in (("b", "a"), ("c", "a"), ("d", "b"), ("d", "c")):
        assert jobs[f"run-{later}"]["metadata"]["creationTimestamp"] >= ended(jobs[f"run-{earlier}"])
    assert jobs["run-d"]["metadata"]["labels"]["volcano.sh/createdByJobFlow"] == f"{flows.namespace}.run"
    assert [one["state"] for one in status["jobStatusList"]] == ["Completed"] * 4
    where = path("jobtemplates", flows.namespace, "d")
    flows.bed.wait_for(
        lambda: flows.bed.api.get(where).get("status", {}).get("jobDependsOnList") == ["run-d"], "the template to tell"
    )


def test_jobs_are_deleted_when_the_flow_does_not_retain_them(flows: Flows) -> None:
    flows.template("once")
    flows.flow("run", {"once": []}, jobRetainPolicy="delete")
    flows.until("run", "Succeed")
    flows.until_jobs()
    assert flows.status("run")["completedJobs"] == ["run-once"]


def test_a_flow_that_has_ended_is_left_alone(flows: Flows) -> None:
    flows.template("once")
    flows.flow("first", {"once": []})
    flows.until("first", "Succeed")

    def version() -> str:
        return str(flows.bed.api.get(path("jobflows", flows.namespace, "first"))["metadata"]["resourceVersion"])

    before = version()
    # What would be written again and again is written while another flow goes all its way.
    flows.flow("second", {"once": []})
    flows.until("second", "Succeed")
    assert version() == before


def test_a_failure_ends_the_flow_and_what_depends_on_it_never_starts(flows: Flows) -> None:
    flows.template("good")
    flows.template("bad", outcome="fail", maxRetry=1, policies=[{"event": "PodFailed", "action": "TerminateJob"}])
    flows.template("never")
    flows.flow("run", {"good": [], "bad": ["good"], "never": ["bad"]})
    status = flows.until("run", "Failed")
    assert status["completedJobs"] == ["run-good"]
    assert set(flows.jobs()) == {"run-good", "run-bad"}
    flows.bed.wait_for(
        lambda: any(
            event["reason"] == "Failed" and "run-bad" in event["message"]
            for event in events(flows.bed, flows.namespace, "run")
        ),
        "the failure to be told",
    )


def test_a_probe_starts_a_step_while_its_target_runs_and_a_missing_template_is_waited_for(flows: Flows) -> None:
    flows.template("server", outcome="")
    probe = {"taskStatusList": [{"taskName": "worker", "phase": "Running"}]}
    steps = [{"name": "server"}, {"name": "client", "dependsOn": {"targets": ["server"], "probe": probe}}]
    create(flows.bed, "jobflows", {"metadata": {"name": "pair"}, "spec": {"flows": steps}}, flows.namespace)
    flows.until_phase("pair-server", "Running")
    flows.bed.wait_for(
        lambda: "TemplateNotFound" in {e["reason"] for e in events(flows.bed, flows.namespace, "pair")},
        "the missing template to be told",
    )
    flows.template("client")
    flows.until_phase("pair-client", "Completed")
    flows.bed.finish_pod(flows.namespace, "pair-server-worker-0", "succeed")
    flows.until("pair", "Succeed")


def test_a_flow_goes_on_when_the_controller_was_killed_and_no_step_runs_twice(
    flows: Flows, controller: ControllerProcess
) -> None:
    names = [f"s{number}" for number in range(4)]
    for name in names:
        flows.template(name, ttlSecondsAfterFinished=1)
    flows.flow("long", {name: [names[n - 1]] if n else [] for n, name in enumerate(names)})
    uids: dict[str, set[str]] = {}
    for name in names:
        flows.bed.wait_for(
            lambda name=name: bool(  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                f"long-{name}" in flows.jobs() or f"long-{name}" in flows.status("long").get("completedJobs", [])
            ),
            f"step {name}",
            90,
        )
        controller.process.kill()
        for job, body in flows.jobs().items():
            uids.setdefault(job, set()).add(body["metadata"]["uid"])
        controller.process.start()
    status = flows.until("long", "Succeed")
    assert status["completedJobs"] == [f"long-{name}" for name in names]
    assert all(len(found) == 1 for found in uids.values()), uids
    # Their time to live is over.
    flows.until_jobs()
