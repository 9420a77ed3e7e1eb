"""Lifecycle policies of jobs and tasks: valid events and actions."""

from baton.admission.findings import Field, Findings, Rule
from baton.model.durations import parse_duration_s
from baton.model.names import BusAction, JobEvent

EVENTS = (
    JobEvent.ANY,
    JobEvent.POD_FAILED,
    JobEvent.POD_EVICTED,
    JobEvent.POD_PENDING,
    JobEvent.UNKNOWN,
    JobEvent.TASK_COMPLETED,
    JobEvent.TASK_FAILED,
    JobEvent.JOB_UPDATED,
)
ACTIONS = (
    BusAction.ABORT_JOB,
    BusAction.RESTART_JOB,
    BusAction.RESTART_TASK,
    BusAction.RESTART_POD,
    BusAction.RESTART_PARTITION,
    BusAction.TERMINATE_JOB,
    BusAction.COMPLETE_JOB,
    BusAction.RESUME_JOB,
)

BOTH = Rule(
    "policy-event-and-exit-code",
    "{field} has an event and exitCode {value}: a policy must not specify event and exitCode simultaneously; "
    "split it into two policies",
)
NEITHER = Rule(
    "policy-without-event",
    "{field} is {value}: either event and exitCode should be specified; add `event: PodFailed` or an exitCode",
)
EVENT = Rule("policy-event", "{field} is {value}: invalid policy event; valid events are {events}")
ACTION = Rule("policy-action", "{field} is {value}: invalid policy action; valid actions are {actions}")
EVENT_TWICE = Rule(
    "policy-event-twice",
    "{field} is {value}, which another policy already has: duplicate event across different policy; keep one of them",
)
EXIT_CODE_ZERO = Rule(
    "policy-exit-code-zero",
    "{field} is {value}: 0 is not a valid error code; a container that ends with 0 has succeeded",
)
EXIT_CODE_TWICE = Rule(
    "policy-exit-code-twice",
    "{field} is {value}, which another policy already has: duplicate exitCode; keep one of them",
)
ANY_AND_OTHERS = Rule(
    "policy-any-and-others",
    "{field} has `*` together with other events: if there's * here, no other policy should be here; remove "
    "`*` or the others",
)
TIMEOUT = Rule("policy-timeout", "{field} is {value}, expected a duration such as 30s, 10m or 1h30m")
PENDING_TIMEOUT = Rule(
    "policy-pending-timeout",
    "{field} is {value}: a policy for PodPending needs a timeout, as in `timeout: 10m`, because every pod is "
    "pending for a moment",
)


def check_policies(policies: Field, findings: Findings) -> None:
    """Check all policies of one job or task."""
    events: set[str] = set()
    codes: set[int] = set()
    for policy in policies.items(findings):
        policy.mapping(findings)
        own = _events(policy, findings)
        code = policy["exitCode"].number(findings)
        if own and code is not None:
            findings.add(BOTH, Field(policy.path, code))
            continue
        if not own and code is None:
            findings.add(NEITHER, policy)
            continue
        if policy["action"].text(findings) not in ACTIONS:
            findings.add(ACTION, policy["action"], actions=", ".join(ACTIONS))
        _check_timeout(policy, own, findings)
        for place, event in own.items():
            if event not in EVENTS:
                findings.add(EVENT, Field(place, event), events=", ".join(EVENTS))
            elif event in events:
                findings.add(EVENT_TWICE, Field(place, event))
        events.update(own.values())
        if code == 0:
            findings.add(EXIT_CODE_ZERO, policy["exitCode"])
        elif code is not None and code in codes:
            findings.add(EXIT_CODE_TWICE, policy["exitCode"])
        if code is not None:
            codes.add(code)
    if JobEvent.ANY in events and len(events) > 1:
        findings.add(ANY_AND_OTHERS, policies)


def _events(policy: Field, findings: Findings) -> dict[str, str]:
    """The events of one policy by their paths. An event that is named twice counts once."""
    found = {item.path: item.text(findings) for item in policy["events"].items(findings)}
    if event := policy["event"].text(findings):
        found[policy["event"].path] = event
    unique = {event: path for path, event in reversed(found.items())}
    return {path: event for event, path in unique.items()}


def _check_timeout(policy: Field, events: dict[str, str], findings: Findings) -> None:
    timeout = policy["timeout"]
    if timeout and parse_duration_s(str(timeout.value)) is None:
        findings.add(TIMEOUT, timeout)
    elif not timeout and JobEvent.POD_PENDING in events.values():
        findings.add(PENDING_TIMEOUT, timeout)
