"""JobFlows: the order of a graph, probes, patches, ends; then random graphs through failures, deletions and deaths."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.controllers.flow import rules
from baton.controllers.flow.patches import patched
from baton.model.meta import Metadata
from baton.model.volcano import (
    Flow,
    FlowDependsOn,
    FlowPatch,
    FlowState,
    Job,
    JobFlow,
    JobFlowSpec,
    JobFlowStatus,
    JobSpec,
    JobTemplate,
    TaskSpec,
)
from tests.volcano_jobs import container, job, task

TASK = task(containers=[container(image="a:1")])
SPEC = JobSpec(tasks=(msgspec.convert(TASK, TaskSpec),))


def flow(steps: Mapping[str, tuple[str, ...]], policy: str = "retain", **status: Any) -> JobFlow:
    """A flow of steps, each with its dependencies."""
    flows = tuple(Flow(name, FlowDependsOn(targets) if targets else None) for name, targets in steps.items())
    metadata = Metadata(name="train", namespace="team", uid="flow-uid")
    return JobFlow(metadata, JobFlowSpec(flows, policy), JobFlowStatus(**status))


def job_of(step: str, phase: str = "Running", **status: Any) -> Job:
    """The job that the flow made for a step."""
    metadata = {"uid": f"uid-{step}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return job(TASK, name=f"train-{step}", phase=phase, metadata=metadata, status=status)


def by_name(*jobs: Job) -> dict[str, Job]:
    return {one.metadata.name: one for one in jobs}


def templates(*names: str) -> dict[str, JobTemplate]:
    return {name: JobTemplate(Metadata(name=name, namespace="team"), SPEC) for name in names}


def made(decision: rules.Decision) -> list[str]:
    return [body["metadata"]["name"] for body in decision.make]


DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


@pytest.mark.parametrize(
    ("jobs", "makes", "phase"),
    [
        ((), ["train-a"], "Pending"),
        ((job_of("a", ""),), [], "Pending"),
        ((job_of("a", "Pending"),), [], "Pending"),
        ((job_of("a"),), [], "Running"),
        ((job_of("a", "Completed"),), ["train-b", "train-c"], "Running"),
        ((job_of("a", "Completed"), job_of("b", "Completed"), job_of("c")), [], "Running"),
        ((job_of("a", "Completed"), job_of("b", "Completed"), job_of("c", "Completed")), ["train-d"], "Running"),
        (tuple(job_of(name, "Completed") for name in "abcd"), [], "Succeed"),
        ((job_of("a", "Completed"), job_of("b", "Failed"), job_of("c")), [], "Failed"),
        ((job_of("a", "Terminated"),), [], "Failed"),
        ((job_of("a", "Aborted"),), [], "Running"),
    ],
)
def test_steps_start_when_what_they_depend_on_is_completed(jobs: tuple[Job, ...], makes: list[str], phase: str) -> None:
    decision = rules.decide(flow(DIAMOND), by_name(*jobs), templates(*"abcd"))
    assert made(decision) == makes
    assert decision.status.state.phase == phase


def test_jobs_are_owned_by_the_flow_and_name_their_template() -> None:
    (body,) = rules.decide(flow({"a": ()}), {}, templates("a")).make
    marks = {"volcano.sh/createdByJobTemplate": "team.a", "volcano.sh/createdByJobFlow": "team.train"}
    assert body["metadata"]["labels"] == body["metadata"]["annotations"] == marks
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("JobFlow", "flow-uid", True)
    assert body["spec"] == SPEC


def test_a_name_too_long_for_a_label_is_only_an_annotation() -> None:
    name = "a" * 60
    (body,) = rules.decide(flow({name: ()}), {}, templates(name)).make
    assert body["metadata"]["labels"] == {"volcano.sh/createdByJobFlow": "team.train"}
    assert body["metadata"]["annotations"]["volcano.sh/createdByJobTemplate"] == f"team.{name}"


def test_a_missing_template_is_reported_and_blocks_only_its_step() -> None:
    decision = rules.decide(flow({"a": (), "b": ()}), {}, templates("b"))
    assert made(decision) == ["train-b"]
    assert [event.reason for event in decision.events] == ["TemplateNotFound"]


def test_a_new_flow_starts_at_once_and_gets_its_first_status_later() -> None:
    """A client that creates a flow and changes it at once must not conflict with an empty status."""
    one = flow(DIAMOND)
    decision = rules.decide(one, {}, templates("a"), new=True)
    assert made(decision) == ["train-a"]
    assert (decision.status, decision.again_s) == (one.status, rules.FIRST_STATUS_S)
    running = rules.decide(one, by_name(job_of("a")), templates("a"), new=True)
    assert running.status.state.phase == "Running"


def test_a_patch_changes_only_the_fields_that_it_names() -> None:
    container = {"name": "main", "image": "a:2", "env": [{"name": "LR", "value": "1"}]}
    change = {"queue": "gpu", "tasks": [{"name": "worker", "template": {"spec": {"containers": [container]}}}]}
    step = Flow("a", None, FlowPatch(change))
    body = rules.job_body(flow({}), step, templates("a")["a"])
    assert body["spec"] == {
        "queue": "gpu",
        "tasks": [{"name": "worker", "replicas": 2, "template": {"spec": {"containers": [container]}}}],
    }


def test_patches_merge_lists_by_name_add_new_elements_and_replace_whole_mappings() -> None:
    before = {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "affinity": {"x": 1},
        "nodeSelector": {"zone": "a"},
        "args": ["1"],
        "gone": True,
    }
    change = {
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "affinity": {"y": 2},
        "nodeSelector": {"gpu": "h100"},
        "args": ["2"],
        "gone": None,
    }
    assert patched(before, change) == {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "affinity": {"y": 2},
        "nodeSelector": {"zone": "a", "gpu": "h100"},
        "args": ["2"],
    }


def probing(probe: dict[str, Any]) -> JobFlow:
    steps = (Flow("a"), Flow("b", FlowDependsOn(("a",), probe)))
    return JobFlow(Metadata(name="train", namespace="team"), JobFlowSpec(steps))


def test_a_probe_of_task_phases_lets_a_step_start_while_its_target_runs() -> None:
    one = probing({"taskStatusList": [{"taskName": "worker", "phase": "Running"}]})
    half = by_name(job_of("a", taskStatusCount={"worker": {"phase": {"Running": 1, "Pending": 1}}}))
    waiting = rules.decide(one, half, templates("a", "b"))
    assert (made(waiting), waiting.again_s) == ([], rules.PROBE_EVERY_S)
    whole = by_name(job_of("a", taskStatusCount={"worker": {"phase": {"Running": 2}}}))
    assert made(rules.decide(one, whole, templates("a", "b"))) == ["train-b"]
    assert made(rules.decide(one, by_name(job_of("a", "Completed")), templates("a", "b"))) == ["train-b"]


def test_a_network_probe_checks_running_targets_and_is_repeated() -> None:
    header = {"name": "Host", "value": "x"}
    one = probing(
        {
            "httpGetList": [{"taskName": "worker", "path": "/up", "port": 8080, "httpHeader": header}],
            "tcpSocketList": [{"taskName": "worker", "port": 23456}, {"taskName": "elsewhere", "port": 1}],
        }
    )
    assert rules.checks(one, by_name(job_of("a", "Pending"))) == set()
    running = by_name(job_of("a"))
    asked = rules.checks(one, running)
    http = rules.Check("train-a", "worker", 8080, "/up", ("Host", "x"))
    tcp = rules.Check("train-a", "worker", 23456)
    assert asked == {http, tcp}
    assert made(rules.decide(one, running, templates("a", "b"), {http})) == []
    assert made(rules.decide(one, running, templates("a", "b"), asked)) == ["train-b"]
    assert rules.checks(one, by_name(job_of("a"), job_of("b"))) == set()


def test_finished_jobs_are_kept_or_deleted_by_the_policy() -> None:
    done = by_name(*(job_of(name, "Completed") for name in "abcd"))
    assert rules.decide(flow(DIAMOND), done, {}).delete == ()
    decision = rules.decide(flow(DIAMOND, "delete"), done, {})
    assert decision.delete == tuple(done.values())
    after = msgspec.structs.replace(flow(DIAMOND, "delete"), status=decision.status)
    later = rules.decide(after, {}, templates(*"abcd"))
    assert (later.status, later.make, later.delete, later.events) == (decision.status, (), (), ())


def test_a_failed_flow_stays_failed_and_a_deleted_one_creates_nothing() -> None:
    failed = flow(DIAMOND, state=FlowState("Failed"))
    decision = rules.decide(failed, by_name(job_of("a", "Completed")), templates(*"abcd"))
    assert (made(decision), decision.status.state.phase, decision.events) == ([], "Failed", ())
    metadata = msgspec.structs.replace(failed.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    going = msgspec.structs.replace(flow(DIAMOND), metadata=metadata)
    assert rules.decide(going, {}, templates("a")) == rules.Decision(JobFlowStatus(state=FlowState("Terminating")))


def test_the_status_lists_jobs_by_phase_in_the_order_of_the_flow() -> None:
    jobs = by_name(
        job_of("d", "Aborted"),
        job_of("c", "Completing"),
        job_of("b", "Pending"),
        job_of("a", "Completed", retryCount=2),
    )
    status = rules.decide(flow(DIAMOND), jobs, {}).status
    assert status.completed_jobs == ("train-a",)
    assert status.pending_jobs == ("train-b",)
    assert status.running_jobs == ("train-c",)
    assert status.un_know_jobs == ("train-d",)
    assert (status.job_status_list[0].name, status.job_status_list[0].restart_count) == ("train-a", 2)
    assert list(status.conditions) == ["train-a", "train-b", "train-c", "train-d"]


class World:
    """A flow, its jobs, and a controller that may die between any two writes."""

    def __init__(self, parents: list[set[int]]) -> None:
        self.steps = {f"s{n}": tuple(f"s{p}" for p in sorted(ps)) for n, ps in enumerate(parents)}
        self.flow = flow(self.steps)
        self.templates = templates(*self.steps)
        self.jobs: dict[str, Job] = {}
        self.completed: set[str] = set()

    def look(self, dies_after: int = 99) -> None:
        decision = rules.decide(self.flow, self.jobs, self.templates)
        if dies_after == 0:
            return
        self.flow = msgspec.structs.replace(self.flow, status=decision.status)
        for body in decision.make[: dies_after - 1]:
            step = body["metadata"]["name"].removeprefix("train-")
            assert step not in self.completed, "a step ran twice"
            assert set(self.steps[step]) <= self.completed, "a step began before what it depends on"
            self.jobs[f"train-{step}"] = job_of(step)

    def end(self, choice: int, phase: str) -> None:
        running = [name for name, one in self.jobs.items() if one.status.state.phase == "Running"]
        if running:
            name = running[choice % len(running)]
            step = name.removeprefix("train-")
            self.jobs[name] = job_of(step, phase)
            if phase == "Completed":
                self.completed.add(step)

    def lose(self, choice: int) -> None:
        """A user deletes a job; a finished one only after the status records it, as its time to live is longer."""
        recorded = {one.name for one in self.flow.status.job_status_list if one.state in ("Completed", "Failed")}
        open_to = [n for n, one in self.jobs.items() if one.status.state.phase == "Running" or n in recorded]
        if open_to:
            del self.jobs[open_to[choice % len(open_to)]]


graphs = (
    st.integers(1, 6)
    .flatmap(
        lambda size: st.tuples(
            *(st.sets(st.integers(0, n - 1), max_size=3) if n else st.just(set()) for n in range(size))
        )
    )
    .map(list)
)
happenings = st.lists(
    st.tuples(st.sampled_from(["look", "die", "Completed", "Completed", "lose"]), st.integers(0, 5)), max_size=40
)


@given(graphs, happenings)
def test_every_step_runs_once_and_in_order_and_the_flow_succeeds(
    parents: list[set[int]], events: list[tuple[str, int]]
) -> None:
    world = World(parents)
    for what, number in events:
        if what == "Completed":
            world.end(number, "Completed")
        elif what == "lose":
            world.lose(number)
        world.look(dies_after=number if what == "die" else 99)
    for _ in range(2 * len(parents) + 1):
        world.look()
        world.end(0, "Completed")
    world.look()
    assert world.flow.status.state.phase == "Succeed"
    assert world.completed == set(world.steps)
    assert set(world.flow.status.completed_jobs) == {f"train-{step}" for step in world.steps}


@given(graphs, st.integers(0, 5), st.integers(0, 5))
def test_nothing_starts_after_a_failure(parents: list[set[int]], successes: int, which: int) -> None:
    world = World(parents)
    for _ in range(min(successes, len(parents) - 1)):
        world.look()
        world.end(0, "Completed")
    world.look()
    world.end(which, "Failed")
    there = set(world.jobs)
    for _ in range(len(parents)):
        world.look()
        world.end(0, "Completed")
    assert world.flow.status.state.phase == "Failed"
    assert set(world.jobs) == there


@pytest.mark.parametrize("name", [{}, [1], None])
def test_a_list_of_unnamed_elements_is_replaced(name: Any) -> None:
    """The API server then refuses it with a message; a list that cannot be merged must not stop the flow."""
    change = {"containers": [{"name": name}]}
    assert patched({"containers": [{"name": "main", "image": "x"}]}, change) == change
