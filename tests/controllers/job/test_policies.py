"""Policies: the events, the policy that answers, and the affected pods."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from baton.controllers.job.lifecycle import PodView, happenings
from baton.controllers.job.tracking import lost_while_away
from baton.model.names import JobPhase
from tests.controllers.job.worlds import NOW_S, a_group, a_job, a_pod, on, phase_after, pods_in, step

P = JobPhase
RUNNING = pods_in("Running", "Running", "Running")
WORLDS: dict[str, dict[str, Any]] = {
    "PodFailed": {"pods": pods_in("Running", "Failed", "Running")},
    "PodEvicted": {"pods": [a_pod(0), a_pod(1, terminating=True), a_pod(2)]},
    "PodPending": {"pods": [a_pod(0), a_pod(1, "Pending", created_s=NOW_S - 60), a_pod(2)]},
    "Unknown": {"pods": pods_in("Running", "Running"), "group": a_group("Unknown")},
    "TaskCompleted": {"pods": pods_in("Succeeded", "Succeeded", "Succeeded")},
    "TaskFailed": {"pods": [a_pod(0, restarts=2), a_pod(1, restarts=1), a_pod(2)]},
    "JobUpdated": {"pods": RUNNING, "updated": True},
}
ACTIONS = {
    "AbortJob": P.ABORTING,
    "RestartJob": P.RESTARTING,
    "TerminateJob": P.TERMINATING,
    "CompleteJob": P.COMPLETING,
}
TASK_EVENTS = ("PodFailed", "PodEvicted", "PodPending", "TaskCompleted", "TaskFailed")


@pytest.mark.parametrize("phase", ["Pending", "Running"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("event", WORLDS)
def test_every_event_leads_to_every_action(event: str, action: str, phase: str) -> None:
    job = a_job(phase, policies=[on(event, action, timeout="30s" if event == "PodPending" else None)])
    plan = step(job, **WORLDS[event])
    assert phase_after(plan) == ACTIONS[action]
    assert plan.status.version == 1
    assert plan.events[0].reason == "ExecuteAction"
    assert action in plan.events[0].message
    assert event in plan.events[0].message


@pytest.mark.parametrize("event", WORLDS)
def test_nothing_else_triggers_a_policy(event: str) -> None:
    job = a_job("Running", policies=[on(event, "AbortJob", timeout="30s" if event == "PodPending" else None)])
    for other, world in WORLDS.items():
        reacted = step(job, **world).reaction is not None
        assert reacted == (other == event), f"{event} answered to {other}"


@pytest.mark.parametrize("event", WORLDS)
def test_the_wildcard_stands_for_failures_and_completions(event: str) -> None:
    reacted = step(a_job("Running", policies=[on("*", "AbortJob")]), **WORLDS[event]).reaction is not None
    assert reacted == (event not in ("PodPending", "JobUpdated"))


def test_a_scaled_down_job_lacks_no_pods_even_if_its_group_reports_it() -> None:
    """The scheduler may see the pods go before it knows that fewer are needed."""
    fewer = [{"name": "worker", "replicas": 2, "template": {}}]
    job = a_job("Running", tasks=fewer, policies=[on("Unknown", "RestartJob")])
    pods = [a_pod(0), a_pod(1), a_pod(2, terminating=True, marked=True)]
    assert step(job, pods, group=a_group("Unknown")).reaction is None


def test_a_job_with_enough_pods_may_still_lack_one_of_a_role() -> None:
    roles = [
        {"name": "master", "replicas": 1, "minAvailable": 1, "template": {}},
        {"name": "worker", "replicas": 3, "minAvailable": 1, "template": {}},
    ]
    job = a_job("Running", tasks=roles, minAvailable=2, policies=[on("Unknown", "RestartJob")])
    assert phase_after(step(job, RUNNING, group=a_group("Unknown"))) == P.RESTARTING


def test_a_policy_may_name_several_events() -> None:
    job = a_job("Running", policies=[{"events": ["PodEvicted", "PodFailed"], "action": "TerminateJob"}])
    assert phase_after(step(job, **WORLDS["PodFailed"])) == P.TERMINATING
    assert phase_after(step(job, **WORLDS["PodEvicted"])) == P.TERMINATING
    assert step(job, **WORLDS["Unknown"]).reaction is None


@pytest.mark.parametrize("event", TASK_EVENTS)
def test_the_tasks_own_policy_comes_before_the_jobs(event: str) -> None:
    timeout = "30s" if event == "PodPending" else None
    tasks = [{"name": "worker", "replicas": 3, "template": {}, "policies": [on(event, "CompleteJob", timeout=timeout)]}]
    job = a_job("Running", tasks=tasks, policies=[on(event, "AbortJob", timeout=timeout)])
    assert phase_after(step(job, **WORLDS[event])) == P.COMPLETING


def test_exit_codes_are_matched_exactly_and_only_for_failures() -> None:
    job = a_job("Running", policies=[{"exitCode": 3, "action": "AbortJob"}])
    assert phase_after(step(job, [a_pod(0, "Failed", exit_code=3)])) == P.ABORTING
    assert step(job, [a_pod(0, "Failed", exit_code=4)]).reaction is None
    assert step(job, [a_pod(0, "Succeeded", exit_code=3), a_pod(1)]).reaction is None


def test_a_completed_task_counts_before_a_failed_neighbour() -> None:
    tasks = [
        {"name": "master", "replicas": 1, "template": {}, "policies": [on("TaskCompleted", "CompleteJob")]},
        {"name": "worker", "replicas": 1, "template": {}},
    ]
    job = a_job("Running", tasks=tasks, policies=[on("PodFailed", "RestartJob")])
    pods = [*pods_in("Succeeded", task="master"), *pods_in("Failed")]
    assert phase_after(step(job, pods)) == P.COMPLETING


def test_a_task_completed_partly_before_a_resume_is_complete() -> None:
    job = a_job("Running", status={"version": 2}, reason="", policies=[on("TaskCompleted", "CompleteJob")])
    earlier = pods_in("Succeeded", "Succeeded", version=0)
    assert step(job, [*earlier, a_pod(2, version=2)]).reaction is None
    assert phase_after(step(job, [*earlier, a_pod(2, "Succeeded", version=2)])) == P.COMPLETING


def test_surplus_pods_do_not_complete_a_task() -> None:
    fewer = [{"name": "worker", "replicas": 2, "template": {}}]
    job = a_job("Running", tasks=fewer, policies=[on("TaskCompleted", "CompleteJob")])
    assert step(job, pods_in("Running", "Succeeded", "Succeeded")).reaction is None


@pytest.mark.parametrize("reason", ["ResumeJob", "RestartJob"])
def test_a_task_that_was_complete_in_an_earlier_life_is_no_event_in_the_next(reason: str) -> None:
    job = a_job("Restarting", status={"version": 2}, reason=reason, policies=[on("TaskCompleted", "AbortJob")])
    assert step(job, pods_in("Succeeded", "Succeeded", "Succeeded", version=1)).reaction is None


def test_a_timeout_delays_the_action_and_ends_with_its_cause() -> None:
    job = a_job("Running", policies=[on("PodFailed", "RestartJob", timeout="2m")])
    fresh = step(job, [a_pod(0, "Failed", finished_s=NOW_S - 30), a_pod(1), a_pod(2)])
    assert fresh.reaction is None
    assert fresh.wait_s == pytest.approx(90)
    due = step(job, [a_pod(0, "Failed", finished_s=NOW_S - 121), a_pod(1), a_pod(2)])
    assert phase_after(due) == P.RESTARTING
    assert step(job, RUNNING).wait_s is None


def test_without_a_time_in_the_pod_the_first_sight_counts() -> None:
    job = a_job("Running", policies=[on("PodEvicted", "AbortJob", timeout="1m")])
    pods = WORLDS["PodEvicted"]["pods"]
    first = step(job, pods)
    assert first.wait_s == pytest.approx(60)
    seen_s = {cause.key: NOW_S - 61 for cause in first.waiting}
    assert phase_after(step(job, pods, seen_s=seen_s)) == P.ABORTING


def test_a_pending_pod_needs_a_timeout_to_matter() -> None:
    job = a_job("Running", policies=[on("PodPending", "AbortJob")])
    assert step(job, **WORLDS["PodPending"]).reaction is None


def test_pods_that_disappeared_count_as_evicted() -> None:
    job = a_job("Running", policies=[on("PodEvicted", "RestartJob")])
    plan = step(job, RUNNING[:2], gone=[("worker", "train-worker-2")])
    assert phase_after(plan) == P.RESTARTING


def test_pods_of_an_earlier_life_and_pods_deleted_by_the_controller_cause_no_events() -> None:
    job = a_job("Running", status={"version": 2}, policies=[on("*", "AbortJob")], minAvailable=1)
    pods = [a_pod(0, "Failed", version=1), a_pod(1, version=2, terminating=True, marked=True), a_pod(2, version=2)]
    assert step(job, pods).reaction is None


def test_pods_beyond_the_replicas_cause_no_events() -> None:
    job = a_job("Running", policies=[on("PodEvicted", "AbortJob")])
    assert step(job, [*RUNNING, a_pod(3, terminating=True)]).reaction is None


def test_a_finished_timeout_of_a_task_that_never_fails() -> None:
    tasks = [{"name": "worker", "replicas": 3, "maxRetry": -1, "template": {}}]
    job = a_job("Running", tasks=tasks, policies=[on("TaskFailed", "AbortJob")])
    assert step(job, [a_pod(0, restarts=99)]).reaction is None


PARTS = [
    {"name": "ps", "replicas": 1, "template": {}},
    {
        "name": "worker",
        "replicas": 4,
        "template": {},
        "partitionPolicy": {"totalPartitions": 2, "partitionSize": 2},
    },
]
PART_PODS = [*pods_in("Running", task="ps"), *pods_in("Running", "Running", "Running", "Failed")]


@pytest.mark.parametrize(
    ("action", "restarted"),
    [
        ("RestartPod", ["train-worker-3"]),
        ("RestartPartition", ["train-worker-2", "train-worker-3"]),
        ("RestartTask", ["train-worker-0", "train-worker-1", "train-worker-2", "train-worker-3"]),
    ],
)
def test_partial_restarts_delete_their_target_and_keep_group_and_version(action: str, restarted: list[str]) -> None:
    job = a_job("Running", tasks=PARTS, policies=[on("PodFailed", action)])
    plan = step(job, PART_PODS)
    assert phase_after(plan) == P.RESTARTING
    assert (plan.status.version, plan.status.retry_count) == (0, 1)
    assert [pod.name for pod in plan.delete] == restarted
    assert plan.mark == set(restarted)
    assert plan.status.terminating == len(restarted)
    assert plan.group.value == "present"


def test_a_targeted_restart_is_counted_once_and_comes_back() -> None:
    job = a_job("Running", policies=[on("PodFailed", "RestartPod")])
    pods = pods_in("Running", "Running", "Failed")
    plan = step(job, pods)
    # The controller died after storing the status: the next one finds the failed pod without a mark.
    job = msgspec.structs.replace(job, status=plan.status)
    again = step(job, pods)
    assert again.status.retry_count == 1
    assert [pod.index for pod in again.delete] == [2]
    leaving = step(job, [*pods[:2], a_pod(2, "Failed", terminating=True, marked=True)])
    assert (phase_after(leaving), leaving.delete) == (P.RESTARTING, ())
    back = step(job, pods[:2])
    assert phase_after(back) == P.PENDING
    job = msgspec.structs.replace(job, status=back.status)
    assert [slot.index for slot in step(job, pods[:2]).create] == [2]


def test_an_evicted_pod_is_marked_so_that_it_counts_once() -> None:
    job = a_job("Running", policies=[on("PodEvicted", "RestartPod")])
    plan = step(job, WORLDS["PodEvicted"]["pods"])
    assert plan.delete == ()
    assert plan.mark == {"train-worker-1"}


def test_a_partition_restart_of_a_vanished_pod_takes_its_neighbours() -> None:
    job = a_job("Running", tasks=PARTS, policies=[on("PodEvicted", "RestartPartition")])
    plan = step(job, PART_PODS[:4], gone=[("worker", "train-worker-3")])
    assert [pod.name for pod in plan.delete] == ["train-worker-2"]


def test_each_event_is_listed_once() -> None:
    job = a_job("Running")
    found = happenings(job.spec, 0, [a_pod(0, "Failed"), a_pod(1, terminating=True), a_pod(2, "Pending")])
    assert [str(each.event) for each in found] == ["PodFailed", "PodEvicted", "PodPending"]


def test_a_pod_that_was_marked_and_not_deleted_is_deleted_after_a_restart_of_the_controller() -> None:
    job = a_job("Restarting", reason="RestartPod", status={"retryCount": 1})
    plan = step(job, [*RUNNING[:2], a_pod(2, "Failed", marked=True)])
    assert [pod.index for pod in plan.delete] == [2]
    assert phase_after(plan) == P.RESTARTING


def names(pods: Iterable[PodView]) -> list[str]:
    return [pod.name for pod in pods]


WORKERS = [f"train-worker-{index}" for index in range(4)]


@pytest.mark.parametrize(
    ("event", "action", "world", "restarted"),
    [
        ("PodFailed", "RestartTask", {"pods": PART_PODS}, WORKERS),
        ("PodFailed", "RestartPartition", {"pods": PART_PODS}, WORKERS[2:]),
        ("PodEvicted", "RestartTask", {"pods": PART_PODS[:4], "gone": [("worker", "train-worker-3")]}, WORKERS[:3]),
        (
            "PodEvicted",
            "RestartPartition",
            {"pods": PART_PODS[:4], "gone": [("worker", "train-worker-3")]},
            WORKERS[2:3],
        ),
        ("TaskFailed", "RestartTask", {"pods": [a_pod(0), a_pod(1, restarts=3)]}, WORKERS[:2]),
        ("TaskCompleted", "RestartTask", {"pods": pods_in(*["Succeeded"] * 4)}, WORKERS),
    ],
)
def test_a_stored_partial_restart_is_carried_out_after_a_restart_of_the_controller(
    event: str, action: str, world: dict[str, Any], restarted: list[str]
) -> None:
    """The controller died while marking pods: the cause is marked or gone, and the other pods are not marked."""
    job = a_job("Running", tasks=PARTS, policies=[on(event, action)])
    plan = step(job, **world)
    assert names(plan.delete) == restarted
    job = msgspec.structs.replace(job, status=plan.status)
    pods = {pod.name: pod for pod in world["pods"]}
    for name in reversed(restarted):
        pods[name] = msgspec.structs.replace(pods[name], marked=True)
        again = step(job, list(pods.values()))
        assert (phase_after(again), again.status.retry_count) == (P.RESTARTING, 1)
        assert names(again.delete) == restarted
        assert again.mark == {name for name in restarted if not pods[name].marked}
    left = [pod for pod in world["pods"] if pod.name not in restarted]
    assert phase_after(step(job, left)) == P.PENDING


def test_two_stored_restarts_are_both_carried_out_after_a_restart_of_the_controller() -> None:
    tasks: list[dict[str, Any]] = [{"name": name, "replicas": 2, "template": {}} for name in ("ps", "worker")]
    job = a_job("Running", tasks=tasks, policies=[on("PodFailed", "RestartTask")])
    pods = [*pods_in("Running", "Failed", task="ps"), *pods_in("Running", "Failed")]
    for failed in (1, 3):
        job = msgspec.structs.replace(job, status=step(job, pods).status)
        pods[failed] = msgspec.structs.replace(pods[failed], marked=True)
    plan = step(job, pods)
    assert names(plan.delete) == names(pods)
    assert plan.mark == {"train-ps-0", "train-worker-0"}
    assert plan.status.retry_count == 1


def test_a_job_restarts_as_a_whole_although_a_part_of_it_restarts_already() -> None:
    policies = [on("PodFailed", "RestartTask"), on("PodEvicted", "RestartJob")]
    job = a_job("Running", tasks=PARTS, policies=policies)
    job = msgspec.structs.replace(job, status=step(job, PART_PODS).status)
    marked = [msgspec.structs.replace(pod, marked=True) for pod in PART_PODS[1:]]
    plan = step(job, marked, gone=[("ps", "train-ps-0")])
    assert (phase_after(plan), plan.status.state.reason, plan.status.version) == (P.RESTARTING, "RestartJob", 1)
    assert names(plan.delete) == WORKERS


@pytest.mark.parametrize("action", ["RestartPod", "RestartPartition", "RestartTask"])
def test_on_the_last_retry_a_partial_restart_keeps_finished_pods(action: str) -> None:
    job = a_job("Running", tasks=PARTS, policies=[on("PodFailed", action)], status={"retryCount": 2})
    plan = step(job, PART_PODS)
    assert "train-worker-3" not in names(plan.delete)
    job = msgspec.structs.replace(job, status=plan.status)
    ended = step(job, PART_PODS)
    assert phase_after(ended) == P.FAILED
    job = msgspec.structs.replace(job, status=ended.status)
    assert names(step(job, PART_PODS).delete) == ["train-ps-0", *WORKERS[:3]]


def test_pods_lost_while_no_controller_ran_are_found() -> None:
    tasks = [{"name": "worker", "replicas": 2**31 - 1, "minAvailable": 1, "template": {}}]
    job = a_job("Running", tasks=tasks, status={"taskStatusCount": {"worker": {"phase": {"Running": 3}}}})
    assert names(lost_while_away(job, pods_in("Running"))) == ["train-worker-1", "train-worker-2"]


@pytest.mark.parametrize("reason", ["RestartTask", "RestartPod", "RestartPartition"])
def test_a_pod_lost_while_no_controller_ran_and_another_task_restarts_counts_as_evicted(reason: str) -> None:
    counts = {"ps": {"phase": {"Running": 1}}, "worker": {"phase": {"Running": 1}}}
    job = a_job("Restarting", tasks=PARTS, reason=reason, status={"retryCount": 1, "taskStatusCount": counts})
    staying = [a_pod(index, marked=index > 0) for index in range(4)]
    assert names(lost_while_away(job, staying)) == ["train-ps-0"]
    assert not lost_while_away(a_job("Restarting", tasks=PARTS, status={"taskStatusCount": counts}), staying)


@pytest.mark.parametrize("action", ["RestartPod", "RestartPartition", "RestartTask"])
@pytest.mark.parametrize(
    ("event", "pods"),
    [
        ("TaskFailed", [a_pod(0), a_pod(1), a_pod(2), a_pod(3, restarts=3)]),
        ("TaskCompleted", pods_in("Succeeded", "Succeeded", "Succeeded", "Succeeded")),
    ],
)
def test_an_event_of_a_task_that_names_no_pod_restarts_the_task(event: str, pods: list[PodView], action: str) -> None:
    """Not its first partition, which may be healthy, and not nothing, which would use up all retries in a second."""
    job = a_job("Running", tasks=PARTS, policies=[on(event, action)])
    plan = step(job, pods)
    assert names(plan.delete) == WORKERS
    job = msgspec.structs.replace(job, status=plan.status)
    assert names(step(job, pods).delete) == WORKERS


def test_a_task_without_partitions_is_a_single_partition() -> None:
    """A restart of nothing would use up all retries in a second."""
    job = a_job("Running", policies=[on("PodFailed", "RestartPartition")])
    assert names(step(job, pods_in("Running", "Failed", "Running")).delete) == WORKERS[:3]
