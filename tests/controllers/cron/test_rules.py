"""CronJobs on virtual time: when a job starts, which one, which runs are skipped, and that a crash does no harm."""

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.controllers.cron import rules
from baton.model.meta import Metadata
from baton.model.names import CRONJOB_SCHEDULED
from baton.model.volcano import CronJob, CronJobSpec, CronJobStatus, Job, JobState, JobStatus
from tests.volcano_jobs import job

START = datetime.datetime(2026, 3, 1, 12, 0, 30, tzinfo=datetime.UTC)


def at(minutes: float, seconds: float = 0) -> datetime.datetime:
    return START.replace(second=0) + datetime.timedelta(minutes=minutes, seconds=seconds)


def stamp(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def cron(last: datetime.datetime | None = None, **spec: Any) -> CronJob:
    metadata = Metadata(name="nightly", namespace="team", uid="cron-uid", creation_timestamp=stamp(START))
    status = CronJobStatus(last_schedule_time=stamp(last) if last is not None else None)
    return CronJob(metadata, CronJobSpec(**{"schedule": "*/5 * * * *", **spec}), status)


def job_of(minute: float, phase: str = "Running", *, deleting: bool = False, ended: float | None = None) -> Job:
    """The job that stands for a minute."""
    due = at(minute)
    metadata = {
        "uid": f"job-{minute}",
        "creationTimestamp": stamp(due),
        "deletionTimestamp": stamp(due) if deleting else "",
        "annotations": {CRONJOB_SCHEDULED: stamp(due)},
    }
    end = stamp(at(ended if ended is not None else minute + 1))
    return job(name=rules.job_name(cron(), due), phase=phase, state={"lastTransitionTime": end}, metadata=metadata)


def reasons(decision: rules.Decision) -> list[str]:
    return [event.reason for event in decision.events]


def test_nothing_starts_early_and_the_next_sync_is_at_the_scheduled_time() -> None:
    decision = rules.decide(cron(), [], at(3))
    assert decision.start is None
    assert decision.again_s == 120.0


def test_a_job_starts_on_time_with_a_name_derived_from_it() -> None:
    decision = rules.decide(cron(), [], at(5))
    assert decision.start == at(5)
    body = rules.job_body(cron(time_zone="Europe/Berlin"), at(5))
    assert body["metadata"]["name"] == f"nightly-{int(at(5).timestamp()) // 60}"
    assert body["metadata"]["annotations"][CRONJOB_SCHEDULED] == "2026-03-01T13:05:00+01:00"
    assert rules.job_body(cron(), at(5))["metadata"]["annotations"][CRONJOB_SCHEDULED] == "2026-03-01T12:05:00Z"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "cron-uid"


def test_a_run_is_started_once() -> None:
    assert rules.decide(cron(last=at(5)), [], at(7)).start is None
    # Nor if the status was never written: the job itself tells its scheduled time.
    decision = rules.decide(cron(), [job_of(5)], at(7))
    assert decision.start is None
    assert decision.status.last_schedule_time == stamp(at(5))


def test_only_the_latest_missed_run_is_started() -> None:
    assert rules.decide(cron(last=at(5)), [], at(33)).start == at(30)


def test_a_run_past_its_deadline_is_skipped_and_reported() -> None:
    late = rules.decide(cron(last=at(5), starting_deadline_seconds=60), [], at(33))
    assert late.start is None
    assert reasons(late) == ["MissSchedule"]
    assert rules.decide(cron(last=at(5), starting_deadline_seconds=180), [], at(33)).start == at(30)


def test_many_missed_runs_are_reported_and_the_latest_is_started() -> None:
    decision = rules.decide(cron(last=at(0), schedule="* * * * *"), [], at(200))
    assert decision.start == at(200)
    assert reasons(decision) == ["TooManyMissedTimes"]
    few = rules.decide(cron(last=at(0), schedule="* * * * *", starting_deadline_seconds=600), [], at(200))
    assert (few.start, reasons(few)) == (at(200), [])


def test_a_suspended_cron_job_starts_nothing_and_still_deletes_old_jobs() -> None:
    finished = [job_of(minute, "Completed") for minute in (5, 10, 15, 20)]
    decision = rules.decide(cron(suspend=True), finished, at(60))
    assert decision.start is None
    assert decision.again_s is None
    assert decision.delete == (finished[0],)


def test_forbid_waits_for_the_job_that_runs_and_then_starts() -> None:
    waiting = rules.decide(cron(concurrency_policy="Forbid"), [job_of(5)], at(10))
    assert waiting.start is None
    assert reasons(waiting) == ["JobAlreadyActive"]
    going = rules.decide(cron(concurrency_policy="Forbid"), [job_of(5, deleting=True)], at(10))
    assert going.start is None
    ended = rules.decide(cron(concurrency_policy="Forbid"), [job_of(5, "Completed")], at(11))
    assert ended.start == at(10)


def test_replace_deletes_the_job_that_runs_and_starts_the_next() -> None:
    old = job_of(5)
    decision = rules.decide(cron(concurrency_policy="Replace"), [old], at(10))
    assert (decision.start, decision.delete, decision.status.active) == (at(10), (old,), ())
    early = rules.decide(cron(concurrency_policy="Replace"), [old], at(9))
    assert (early.start, early.delete) == (None, ())


def test_active_jobs_and_the_last_success_are_in_the_status() -> None:
    jobs = [job_of(5, "Completed", ended=6), job_of(10, "Completed", ended=14), job_of(15), job_of(20, deleting=True)]
    status = rules.decide(cron(), jobs, at(21)).status
    assert [one.name for one in status.active] == [jobs[2].metadata.name]
    assert status.last_successful_time == stamp(at(14))


def test_the_history_keeps_the_youngest_successful_and_failed_jobs() -> None:
    good = [job_of(minute, "Completed") for minute in (5, 10, 15)]
    bad = [job_of(20, "Failed"), job_of(25, "Terminated"), job_of(30, "Failed")]
    limited = cron(successful_jobs_history_limit=1, failed_jobs_history_limit=2)
    decision = rules.decide(limited, [*good, *bad, job_of(35, "Aborted")], at(36))
    assert decision.delete == (good[0], good[1], bad[0])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"schedule": "every day"}, "UnparseableSchedule"), ({"time_zone": "Mars/Base"}, "UnknownTimeZone")],
)
def test_an_invalid_schedule_is_reported_and_starts_nothing(spec: dict[str, Any], reason: str) -> None:
    decision = rules.decide(cron(**spec), [], at(5))
    assert (decision.start, decision.again_s, reasons(decision)) == (None, None, [reason])
    assert decision.events[0].warning


def test_a_zone_moves_the_times() -> None:
    berlin = cron(schedule="0 14 * * *", time_zone="Europe/Berlin")
    assert rules.decide(berlin, [], at(59)).start is None
    assert rules.decide(berlin, [], at(60)).start == at(60)


def test_every_counts_from_the_last_time() -> None:
    assert rules.decide(cron(schedule="@every 7m", last=at(5)), [], at(13)).start == at(12)
    assert rules.decide(cron(schedule="@every 7m", last=at(5)), [], at(11)).again_s == 60.0


class World:
    """A CronJob, its jobs, and a controller that syncs when asked and may die, forgetting everything."""

    def __init__(self, **spec: Any) -> None:
        self.cron = cron(**spec)
        self.now = START
        self.jobs: dict[str, Job] = {}
        self.ever: list[str] = []
        self.most_active = 0

    def look(self, *, dies_after: int = 9) -> float | None:
        """One sync; the controller dies after this many writes."""
        decision = rules.decide(self.cron, list(self.jobs.values()), self.now)
        writes = 0
        for gone in decision.delete:
            if writes == dies_after:
                return None
            del self.jobs[gone.metadata.name]
            writes += 1
        status = decision.status
        if decision.start is not None:
            if writes == dies_after:
                return None
            made = job_of((decision.start - at(0)).total_seconds() / 60)
            assert made.metadata.name not in self.jobs
            self.jobs[made.metadata.name] = made
            self.ever.append(made.metadata.name)
            status = rules.started(status, made, decision.start)
            writes += 1
        self.most_active = max(self.most_active, len(self.active()))
        if writes < dies_after:
            self.cron = msgspec.structs.replace(self.cron, status=status)
            assert [one.name for one in status.active] == [one.metadata.name for one in self.active()]
        return decision.again_s

    def active(self) -> list[Job]:
        return [one for one in self.jobs.values() if one.status.state.phase == "Running"]

    def finish(self, phase: str) -> None:
        for name, one in self.jobs.items():
            if one.status.state.phase == "Running":
                state = JobState(phase=phase, last_transition_time=stamp(self.now))
                self.jobs[name] = msgspec.structs.replace(one, status=JobStatus(state=state))
                return


steps = st.lists(
    st.tuples(st.integers(1, 400), st.sampled_from(["look", "die", "Completed", "Failed"]), st.integers(0, 3)),
    max_size=60,
)


@given(steps, st.sampled_from(["Allow", "Forbid", "Replace"]), st.sampled_from([None, 10, 200]))
def test_no_time_is_started_twice_and_no_policy_is_broken_whatever_happens(
    happenings: list[tuple[int, str, int]], policy: str, deadline_s: int | None
) -> None:
    world = World(concurrency_policy=policy, starting_deadline_seconds=deadline_s, schedule="*/2 * * * *")
    for seconds, what, writes in happenings:
        world.now += datetime.timedelta(seconds=seconds)
        if what in ("Completed", "Failed"):
            world.finish(what)
        world.look(dies_after=writes if what == "die" else 9)
    assert len(world.ever) == len(set(world.ever))
    if policy != "Allow":
        assert world.most_active <= 1
    world.look()
    finished = [one.status.state.phase for one in world.jobs.values()]
    assert finished.count("Completed") <= 3
    assert finished.count("Failed") <= 1


@given(st.integers(2, 500))
def test_a_controller_that_syncs_when_asked_starts_every_run_on_time(looks: int) -> None:
    world = World(schedule="*/3 * * * *", successful_jobs_history_limit=10_000)
    for _ in range(looks % 50):
        again_s = world.look()
        assert again_s is not None
        world.now += datetime.timedelta(seconds=again_s)
        world.finish("Completed")
    world.look()
    expected = (world.now - at(0)) // datetime.timedelta(minutes=3)
    assert len(world.ever) == expected


@pytest.mark.parametrize("deadline_s", [10**12, 2**63 - 1, -(2**63)])
def test_a_deadline_beyond_the_calendar_still_applies(deadline_s: int) -> None:
    decision = rules.decide(cron(starting_deadline_seconds=deadline_s), [], at(5, seconds=1))
    assert decision.start == (at(5) if deadline_s > 0 else None)


@pytest.mark.parametrize(
    "stamp", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "²"]
)
def test_a_time_outside_the_calendar_is_ignored_and_its_last_second_is_waited_for(stamp: str) -> None:
    """A user wrote it into the annotation of a job, or into the status."""
    odd = job_of(0)
    metadata = msgspec.structs.replace(odd.metadata, annotations={CRONJOB_SCHEDULED: stamp})
    for cron_job, jobs in (
        (cron(), [msgspec.structs.replace(odd, metadata=metadata)]),
        (msgspec.structs.replace(cron(), status=CronJobStatus(last_schedule_time=stamp)), []),
    ):
        decision = rules.decide(cron_job, jobs, at(5))
        assert decision.start == (None if stamp == "9999-12-31T23:59:59Z" else at(5))
