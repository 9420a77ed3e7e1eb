"""The phases of a job, one by one: which action and which counts lead where."""

from typing import Any

import msgspec
import pytest

from baton.controllers.job.census import PORTION
from baton.controllers.job.phases import GroupTarget
from baton.model.names import BusAction, JobPhase
from tests.controllers.job.worlds import a_group, a_job, a_pod, command, on, phase_after, pods_in, step

P = JobPhase
ENDINGS = {
    BusAction.ABORT_JOB: P.ABORTING,
    BusAction.TERMINATE_JOB: P.TERMINATING,
    BusAction.COMPLETE_JOB: P.COMPLETING,
}
RUNNING_POD = pods_in("Running", "Running", "Running")


def test_a_new_job_is_pending_and_has_a_group_but_no_pods_until_the_group_is_in_the_queue() -> None:
    plan = step(a_job(""), group=None)
    assert (phase_after(plan), plan.group, plan.create) == (P.PENDING, GroupTarget.PRESENT, ())
    assert plan.status.min_available == 3
    assert [each.status for each in plan.status.conditions] == ["Pending"]
    for phase in ("", "Pending"):
        assert not step(a_job("Pending"), group=a_group(phase)).create
    for phase in ("Inqueue", "Running", "Unknown"):
        assert [slot.index for slot in step(a_job("Pending"), group=a_group(phase)).create] == [0, 1, 2]


@pytest.mark.parametrize("phase", list(P))
@pytest.mark.parametrize(("action", "leads_to"), ENDINGS.items())
def test_abort_terminate_and_complete_act_while_the_job_lives(phase: P, action: str, leads_to: P) -> None:
    plan = step(a_job(phase), RUNNING_POD, order=command(action))
    lives = phase in (P.PENDING, P.RUNNING, P.RESTARTING)
    assert (plan.reaction is not None) == lives
    if lives:
        assert phase_after(plan) == leads_to
        assert (plan.status.version, plan.status.retry_count) == (1, 0)
        assert len(plan.delete) == plan.status.terminating == 3
        assert plan.group is GroupTarget.ABSENT
        assert plan.plugin_objects is False


@pytest.mark.parametrize("phase", list(P))
def test_a_restart_begins_a_new_life_and_costs_a_retry(phase: P) -> None:
    plan = step(a_job(phase, status={"retryCount": 1}), RUNNING_POD, order=command("RestartJob"))
    if phase in (P.PENDING, P.RUNNING):
        assert phase_after(plan) == P.RESTARTING
        assert (plan.status.version, plan.status.retry_count) == (1, 2)
        assert len(plan.delete) == 3
        assert plan.group is GroupTarget.ABSENT
    else:
        assert plan.reaction is None


@pytest.mark.parametrize("phase", list(P))
def test_only_an_aborted_job_can_be_resumed(phase: P) -> None:
    plan = step(a_job(phase), [], order=command("ResumeJob"))
    if phase in (P.ABORTING, P.ABORTED):
        assert phase_after(plan) == P.RESTARTING
        assert plan.status.retry_count == (1 if phase == P.ABORTING else 0)
    else:
        assert plan.reaction is None


@pytest.mark.parametrize("action", ["SyncJob", "EnqueueJob", "RestartTask", "OpenQueue", "nonsense"])
@pytest.mark.parametrize("phase", list(P))
def test_an_inapplicable_command_changes_nothing(phase: P, action: str) -> None:
    assert step(a_job(phase), RUNNING_POD, order=command(action)).reaction is None


def test_a_command_that_was_already_carried_out_is_recognised() -> None:
    job = a_job("Running")
    first = step(job, RUNNING_POD, order=command("RestartJob"))
    again = step(
        msgspec.structs.replace(job, status=first.status), RUNNING_POD, order=command("RestartJob"), group=None
    )
    assert again.reaction is None
    assert again.status.retry_count == 1


@pytest.mark.parametrize(
    ("pods", "leads_to"),
    [
        (("Pending", "Running", "Running"), P.PENDING),
        (("Running", "Running", "Running"), P.RUNNING),
        (("Succeeded", "Failed", "Running"), P.RUNNING),
    ],
)
def test_a_pending_job_runs_when_enough_pods_have_started(pods: tuple[str, ...], leads_to: P) -> None:
    assert phase_after(step(a_job("Pending"), pods_in(*pods))) == leads_to


@pytest.mark.parametrize(
    ("spec", "pods", "leads_to"),
    [
        ({}, ("Succeeded", "Succeeded", "Succeeded"), P.COMPLETED),
        ({}, ("Succeeded", "Succeeded", "Failed"), P.FAILED),
        ({"minAvailable": 2}, ("Succeeded", "Succeeded", "Failed"), P.COMPLETED),
        ({"minAvailable": 2}, ("Succeeded", "Failed", "Failed"), P.FAILED),
        ({"minSuccess": 1}, ("Succeeded", "Running", "Running"), P.COMPLETED),
        ({"minSuccess": 2}, ("Succeeded", "Failed", "Failed"), P.FAILED),
        ({"minSuccess": 1}, ("Failed", "Failed", "Failed"), P.FAILED),
        ({}, ("Succeeded", "Failed", "Running"), P.RUNNING),
        ({"minAvailable": 2}, ("Running", "Pending", "Pending"), P.PENDING),
        ({"minAvailable": 2}, ("Running", "Running", "Pending"), P.RUNNING),
        ({}, ("Running", "Running", "Unknown"), P.RUNNING),
    ],
)
def test_the_next_phase_of_a_running_job(spec: dict[str, Any], pods: tuple[str, ...], leads_to: P) -> None:
    assert phase_after(step(a_job("Running", **spec), pods_in(*pods))) == leads_to


def test_a_task_below_its_minimum_of_successes_fails_the_job() -> None:
    tasks = [
        {"name": "ps", "replicas": 1, "minAvailable": 1, "template": {}},
        {"name": "worker", "replicas": 3, "minAvailable": 1, "template": {}},
    ]
    pods = [*pods_in("Failed", task="ps"), *pods_in("Succeeded", "Succeeded", "Succeeded")]
    assert phase_after(step(a_job("Running", tasks=tasks, minAvailable=2), pods)) == P.FAILED
    assert phase_after(step(a_job("Running", tasks=tasks, minAvailable=1), pods)) == P.COMPLETED


def test_a_job_scaled_to_nothing_keeps_its_phase() -> None:
    job = a_job("Running", tasks=[{"name": "worker", "replicas": 0, "template": {}}])
    plan = step(job, pods_in("Running", "Running"))
    assert phase_after(plan) == P.RUNNING
    assert len(plan.delete) == 2


def test_a_restarting_job_waits_for_its_old_pods_and_then_starts_over() -> None:
    job = a_job("Restarting", status={"version": 1, "retryCount": 1})
    still = step(job, pods_in("Running", "Failed", "Succeeded"))
    assert phase_after(still) == P.RESTARTING
    assert [pod.index for pod in still.delete] == [0, 1, 2]
    leaving = [a_pod(index, terminating=True) for index in range(3)]
    assert phase_after(step(job, leaving)) == P.RESTARTING
    gone = step(job, [])
    assert phase_after(gone) == P.PENDING
    assert gone.create == ()


def test_the_group_of_the_previous_life_is_deleted_before_the_next_one_is_created() -> None:
    restarting = a_job("Restarting", status={"version": 1, "retryCount": 1})
    assert step(restarting, [], group=a_group("Running", 0)).group is GroupTarget.ABSENT
    assert step(restarting, [], group=a_group("Running", None)).group is GroupTarget.ABSENT
    pending = a_job("Pending", status={"version": 1, "retryCount": 1})
    late = step(pending, [], group=a_group("Running", 0))
    assert (late.group, late.create) == (GroupTarget.ABSENT, ())
    assert step(pending, [], group=None).group is GroupTarget.PRESENT


def test_the_last_retry_fails_the_job_and_keeps_finished_pods() -> None:
    job = a_job("Running", status={"retryCount": 2})
    plan = step(job, pods_in("Failed", "Succeeded", "Running"), order=command("RestartJob"))
    assert [pod.index for pod in plan.delete] == [2]
    failed = step(msgspec.structs.replace(job, status=plan.status), pods_in("Failed", "Succeeded"))
    assert phase_after(failed) == P.FAILED
    assert "maxRetry (3)" in failed.status.state.message
    assert failed.status.running_duration is not None


@pytest.mark.parametrize(
    ("phase", "end"), [(P.ABORTING, P.ABORTED), (P.TERMINATING, P.TERMINATED), (P.COMPLETING, P.COMPLETED)]
)
def test_an_ending_phase_ends_when_no_pod_is_alive(phase: P, end: P) -> None:
    job = a_job(phase, status={"version": 1})
    for alive in ("Running", "Pending", "Unknown"):
        plan = step(job, pods_in("Succeeded", "Failed", alive))
        assert phase_after(plan) == phase
        assert [pod.index for pod in plan.delete] == [2]
    assert phase_after(step(job, [a_pod(0, terminating=True)])) == phase
    plan = step(job, pods_in("Succeeded", "Failed"))
    assert (phase_after(plan), plan.delete) == (end, ())


@pytest.mark.parametrize("phase", [P.COMPLETED, P.FAILED, P.TERMINATED, P.ABORTED])
def test_a_final_phase_never_changes(phase: P) -> None:
    job = a_job(phase, policies=[on("*", "RestartJob")])
    plan = step(job, pods_in("Failed", "Running", "Succeeded"))
    assert (phase_after(plan), plan.reaction, plan.create) == (phase, None, ())
    assert [pod.index for pod in plan.delete] == [1]
    assert (plan.group, plan.plugin_objects) == (GroupTarget.ABSENT, False)


def test_a_resumed_job_keeps_finished_pods_and_runs_the_rest_again() -> None:
    job = a_job("Aborted", status={"version": 1})
    resumed = step(job, pods_in("Succeeded"), order=command("ResumeJob"))
    assert resumed.delete == ()
    job = msgspec.structs.replace(job, status=resumed.status)
    pending = step(job, pods_in("Succeeded"), group=None)
    assert phase_after(pending) == P.PENDING
    job = msgspec.structs.replace(job, status=pending.status)
    assert [slot.index for slot in step(job, pods_in("Succeeded")).create] == [1, 2]


def test_a_job_scaled_down_while_aborted_does_not_count_surplus_pods() -> None:
    """A finished surplus pod does not replace one that still has to run."""
    fewer = [{"name": "worker", "replicas": 2, "template": {}}]
    job = a_job("Running", tasks=fewer, status={"version": 2}, reason="")
    finished = [a_pod(0, "Succeeded", version=0), a_pod(2, "Succeeded", version=0)]
    plan = step(job, [*finished, a_pod(1, version=2)])
    assert [pod.name for pod in plan.delete] == ["train-worker-2"]
    assert phase_after(plan) == P.RUNNING
    assert (plan.status.succeeded, plan.status.running) == (1, 1)


def test_scaling_creates_missing_pods_and_removes_surplus_ones() -> None:
    up = step(a_job("Running", tasks=[{"name": "worker", "replicas": 5, "template": {}}]), RUNNING_POD)
    assert [slot.index for slot in up.create] == [3, 4]
    down = step(a_job("Running", tasks=[{"name": "worker", "replicas": 1, "template": {}}]), RUNNING_POD)
    assert [pod.index for pod in down.delete] == [1, 2]
    assert (down.status.running, down.status.terminating) == (1, 2)
    renamed = step(a_job("Running", tasks=[{"name": "other", "replicas": 1, "template": {}}]), RUNNING_POD)
    assert len(renamed.delete) == 3


def test_a_pod_name_that_is_still_in_use_is_not_created_again() -> None:
    plan = step(a_job("Running"), [a_pod(0), a_pod(1, terminating=True)])
    assert [slot.index for slot in plan.create] == [2]


@pytest.mark.parametrize(
    ("depends", "ps", "db", "starts"),
    [
        ({"name": ["ps"]}, "Pending", "Running", False),
        ({"name": ["ps"]}, "Running", "Pending", True),
        ({"name": ["ps"]}, "Succeeded", "Pending", True),
        ({"name": ["ps", "db"]}, "Running", "Pending", False),
        ({"name": ["ps", "db"], "iteration": "any"}, "Running", "Pending", True),
        ({"name": ["ps", "db"], "iteration": "any"}, "Pending", "Pending", False),
        ({"name": ["ps"], "iteration": "any"}, "Pending", "Running", False),
    ],
)
def test_a_task_waits_for_those_that_it_depends_on(depends: dict[str, object], ps: str, db: str, starts: bool) -> None:
    tasks = [
        {"name": "ps", "replicas": 1, "template": {}},
        {"name": "db", "replicas": 1, "template": {}},
        {"name": "worker", "replicas": 1, "template": {}, "dependsOn": depends},
    ]
    pods = [*pods_in(ps, task="ps"), *pods_in(db, task="db")]
    plan = step(a_job("Pending", tasks=tasks, minAvailable=1), pods)
    assert bool(plan.create) == starts


def test_a_running_pod_that_is_not_ready_still_blocks_dependent_tasks() -> None:
    tasks = [
        {"name": "ps", "replicas": 1, "template": {}},
        {"name": "worker", "replicas": 1, "template": {}, "dependsOn": {"name": ["ps"]}},
    ]
    plan = step(a_job("Pending", tasks=tasks, minAvailable=1), [a_pod(task="ps", ready=False)])
    assert plan.create == ()


def test_counts_are_by_phase_and_task_without_terminating_pods() -> None:
    pods = [*pods_in("Running", "Pending", "Strange"), a_pod(7, terminating=True)]
    status = step(a_job("Running", minAvailable=1), pods).status
    assert (status.running, status.pending, status.unknown, status.terminating) == (1, 1, 1, 1)
    assert status.task_status_count["worker"].phase == {"Running": 1, "Pending": 1, "Unknown": 1}


def test_pods_are_created_in_portions() -> None:
    """A typo must not fill the memory of a controller that all jobs share."""
    job = a_job("Pending", tasks=[{"name": "worker", "replicas": 2**31 - 1, "minAvailable": 1, "template": {}}])
    first = step(job)
    assert [slot.index for slot in first.create] == list(range(PORTION))
    there = [a_pod(slot.index, "Pending") for slot in first.create]
    assert step(job, there).create[0].index == PORTION
