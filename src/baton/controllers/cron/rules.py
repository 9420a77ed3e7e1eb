"""The next actions of a CronJob: a pure function of its spec, its status, its jobs, and the time.

Each sync starts at most one job, for the latest time that is due. Earlier missed times (the program was down, the
CronJob was suspended) are not made up for one by one, and a due time older than `startingDeadlineSeconds` is skipped.
The job's name is derived from its scheduled time, so it cannot be started twice. The scheduled times of existing jobs
count as much as the status, so a program that died between creating a job and writing the status does not create it
again.
"""

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

from baton.model import times
from baton.model.cron import CronError, Schedule, parse, time_zone
from baton.model.meta import ObjectEvent, ObjectReference
from baton.model.names import CRONJOB_SCHEDULED, FINAL_PHASES, JobPhase
from baton.model.volcano import BATCH, CRON_JOB_KIND, JOB_KIND, CronJob, CronJobStatus, Job

MANY_MISSED = 100
_LONGEST_PAUSE_S = 300.0
"""The clock may be changed in the meantime, so a sync happens at least this often, however far the next time is."""

_LONGEST_DEADLINE_S = 10**9
"""No CronJob is that old."""


class Decision(NamedTuple):
    """What to do, in this order: delete, start, write the status."""

    status: CronJobStatus
    """The status to write if no job is started."""
    delete: tuple[Job, ...] = ()
    start: datetime.datetime | None = None
    """The scheduled time of the job to start."""
    again_s: float | None = None
    events: tuple[ObjectEvent, ...] = ()


def decide(cron: CronJob, jobs: Sequence[Job], now: datetime.datetime) -> Decision:
    """The next actions. `jobs` are those that the CronJob controls."""
    events: list[ObjectEvent] = []
    unfinished = [job for job in jobs if job.status.state.phase not in FINAL_PHASES]
    active = [job for job in unfinished if not job.metadata.deletion_timestamp]
    delete = _beyond_history(cron, jobs)
    start: datetime.datetime | None = None
    again_s: float | None = None
    last = _last_scheduled(cron, jobs)
    if not cron.spec.suspend and not cron.metadata.deletion_timestamp:
        schedule = _schedule(cron, events)
        if schedule is not None:
            due, again_s = _due(cron, schedule, last, now, events)
            if due is not None and unfinished and cron.spec.concurrency_policy == "Forbid":
                names = ", ".join(job.metadata.name for job in unfinished)
                events.append(
                    ObjectEvent("JobAlreadyActive", f"the run of {_clock(due)} waits: {names} still runs", warning=True)
                )
                due = None
            if due is not None and cron.spec.concurrency_policy == "Replace":
                delete += active
                active = []
            start = due
    status = CronJobStatus(
        active=tuple(reference(job) for job in sorted(active, key=_age)),
        last_schedule_time=_clock(last) if last is not None else None,
        last_successful_time=_last_success(cron, jobs),
    )
    return Decision(status, tuple(delete), start, again_s, tuple(events))


def job_name(cron: CronJob, due: datetime.datetime) -> str:
    """The name tells the scheduled minute."""
    return f"{cron.metadata.name}-{int(due.timestamp()) // 60}"


def job_body(cron: CronJob, due: datetime.datetime) -> dict[str, Any]:
    """The job to create."""
    template = cron.spec.job_template
    wall = times.stamp(due.timestamp(), time_zone(cron.spec.time_zone))
    return {
        "apiVersion": BATCH,
        "kind": JOB_KIND,
        "metadata": {
            "name": job_name(cron, due),
            "labels": template.metadata.get("labels") or {},
            "annotations": {**(template.metadata.get("annotations") or {}), CRONJOB_SCHEDULED: wall},
            "ownerReferences": [
                {
                    "apiVersion": BATCH,
                    "kind": CRON_JOB_KIND,
                    "name": cron.metadata.name,
                    "uid": cron.metadata.uid,
                    "controller": True,
                }
            ],
        },
        "spec": template.spec,
    }


def reference(job: Job) -> ObjectReference:
    return job.metadata.reference(JOB_KIND, BATCH)


def started(status: CronJobStatus, job: Job, due: datetime.datetime) -> CronJobStatus:
    """The status after a job was started."""
    others = tuple(one for one in status.active if one.uid != job.metadata.uid)
    running = job.status.state.phase not in FINAL_PHASES
    return CronJobStatus((*others, reference(job)) if running else others, _clock(due), status.last_successful_time)


def _schedule(cron: CronJob, events: list[ObjectEvent]) -> Schedule | None:
    try:
        zone = time_zone(cron.spec.time_zone)
    except CronError as error:
        events.append(ObjectEvent("UnknownTimeZone", f"no job is started: {error}", warning=True))
        return None
    try:
        return parse(cron.spec.schedule, zone)
    except CronError as error:
        sentence = f"no job is started: the schedule {cron.spec.schedule!r} is invalid: {error}"
        events.append(ObjectEvent("UnparseableSchedule", sentence, warning=True))
        return None


def _due(
    cron: CronJob, schedule: Schedule, last: datetime.datetime | None, now: datetime.datetime, events: list[ObjectEvent]
) -> tuple[datetime.datetime | None, float | None]:
    """The latest due time that has no job yet, and in how many seconds to look again."""
    since = last or _moment(cron.metadata.creation_timestamp) or now
    due = schedule.latest(since, now)
    ahead = schedule.following(due or since)
    if ahead is not None and ahead <= now:
        ahead = schedule.following(now)
    again_s = None if ahead is None else min(_LONGEST_PAUSE_S, max(0.0, (ahead - now).total_seconds()))
    if due is None:
        return None, again_s
    deadline_s = cron.spec.starting_deadline_seconds
    if deadline_s is not None:
        limit = now - datetime.timedelta(seconds=min(max(0, deadline_s), _LONGEST_DEADLINE_S))
        if due < limit:
            late_s = (now - due).total_seconds()
            words = f"the run of {_clock(due)} is skipped: it is {late_s:.0f} s late, startingDeadlineSeconds is"
            events.append(ObjectEvent("MissSchedule", f"{words} {deadline_s}", warning=True))
            return None, again_s
        since = max(since, limit)
    if schedule.count(since, due, MANY_MISSED + 2) > MANY_MISSED + 1:
        words = (
            f"more than {MANY_MISSED} runs were missed and are skipped; set startingDeadlineSeconds or check the clock"
        )
        events.append(ObjectEvent("TooManyMissedTimes", words, warning=True))
    return due, again_s


def _beyond_history(cron: CronJob, jobs: Sequence[Job]) -> list[Job]:
    """The oldest finished jobs beyond the history limits."""
    over: list[Job] = []
    good = [job for job in jobs if job.status.state.phase == JobPhase.COMPLETED]
    bad = [
        job for job in jobs if job.status.state.phase in FINAL_PHASES and job.status.state.phase != JobPhase.COMPLETED
    ]
    for kept, limit in (
        (good, cron.spec.successful_jobs_history_limit),
        (bad, cron.spec.failed_jobs_history_limit),
    ):
        there = sorted((job for job in kept if not job.metadata.deletion_timestamp), key=_age)
        over += there[: max(0, len(there) - limit)]
    return over


def _last_scheduled(cron: CronJob, jobs: Sequence[Job]) -> datetime.datetime | None:
    stamps = [cron.status.last_schedule_time, *(job.metadata.annotations.get(CRONJOB_SCHEDULED) for job in jobs)]
    return max((moment for moment in map(_moment, stamps) if moment is not None), default=None)


def _last_success(cron: CronJob, jobs: Sequence[Job]) -> str | None:
    good = [job.status.state.last_transition_time for job in jobs if job.status.state.phase == JobPhase.COMPLETED]
    moments = [moment for moment in map(_moment, [cron.status.last_successful_time, *good]) if moment is not None]
    return _clock(max(moments)) if moments else None


def _age(job: Job) -> tuple[str, str]:
    return job.metadata.creation_timestamp, job.metadata.name


def _moment(text: str | None) -> datetime.datetime | None:
    at_s = times.seconds(text)
    try:
        return None if at_s is None else datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    except (ValueError, OverflowError):  # outside the calendar
        return None


def _clock(moment: datetime.datetime) -> str:
    return times.stamp(moment.timestamp())
