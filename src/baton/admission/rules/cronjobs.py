"""CronJobs: schedules, time zones and names."""

from collections.abc import Mapping
from typing import Any

from baton.admission.findings import Field, Findings, Rule
from baton.admission.rules.jobs import check_job_spec, defaulted
from baton.model.cron import CronError, parse, time_zone

NAME_LIMIT = 52
"""The 63 characters of a pod name, less the time that is appended to name a job."""

SCHEDULE_EMPTY = Rule(
    "cron-schedule-empty",
    "{field} is {value}: schedule is required, but got empty; write five fields, as in */10 * * * *",
)
SCHEDULE = Rule("cron-schedule", "{field} is {value}: schedule is not a valid cron expression: {reason}")
SCHEDULE_ZONE = Rule(
    "cron-schedule-zone",
    "{field} is {value}: schedule should not contain TZ or CRON_TZ, TZ should only be set in the timeZone field",
)
ZONE_EMPTY = Rule(
    "cron-zone-empty", "{field} is {value}: timeZone must be nil or non-empty string, got empty string; remove it"
)
ZONE_LOCAL = Rule(
    "cron-zone-local",
    "{field} is {value}: timeZone can't be Local, and must be defined in https://www.iana.org/time-zones, as in "
    "Europe/Berlin",
)
ZONE = Rule(
    "cron-zone", "{field} is {value}: unknown timeZone (invalid timeZone); expected a name such as Europe/Berlin"
)
NAME = Rule(
    "cron-name",
    "{field} is {value}, {length} characters: cronJob name must be no more than 52 characters to accommodate job "
    "name suffix "
    "(max 63 total); shorten it",
)


def check_cron_job(cron_job: Mapping[str, Any], findings: Findings) -> None:
    """Check a new or changed CronJob. Simple limits and choices are in its schema."""
    root = Field("", cron_job)
    spec = root["spec"]
    spec.mapping(findings)
    name = root["metadata"]["name"].text(findings)
    if len(name) > NAME_LIMIT:
        findings.add(NAME, root["metadata"]["name"], length=len(name))
    _check_schedule(spec["schedule"], findings)
    _check_zone(spec["timeZone"], findings)
    template = spec["jobTemplate"]["spec"]
    whole = defaulted(template.mapping(findings))
    check_job_spec(Field(template.path, whole), findings, Field("metadata.name", f"{name}-{'0' * 10}"))


def _check_schedule(schedule: Field, findings: Findings) -> None:
    text = schedule.text(findings)
    if not text:
        findings.add(SCHEDULE_EMPTY, schedule)
    elif "TZ" in text:
        findings.add(SCHEDULE_ZONE, schedule)
    else:
        try:
            parse(text)
        except CronError as error:
            findings.add(SCHEDULE, schedule, reason=error)


def _check_zone(zone: Field, findings: Findings) -> None:
    if not zone:
        return
    name = zone.text(findings)
    if zone.value == "":
        findings.add(ZONE_EMPTY, zone)
    elif name.lower() == "local":
        findings.add(ZONE_LOCAL, zone)
    elif name:
        try:
            time_zone(name)
        except CronError:
            findings.add(ZONE, zone)
