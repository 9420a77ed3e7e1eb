"""The text of `vcctl job view`: a job and its events, line by line as Volcano's command prints them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from baton.cli.cluster.requests import Object
from baton.cli.cluster.workloads import age
from baton.model import times

_STATUS_COUNTS = {
    "Succeeded": "succeeded",
    "Pending": "pending",
    "Running": "running",
    "Failed": "failed",
    "Terminating": "terminating",
    "Unknown": "unknown",
    "RetryCount": "retryCount",
    "Min Available": "minAvailable",
    "Version": "version",
}
_TEMPLATE_ANNOTATIONS = {
    "Cri . Cci . Io / Container - Type:          ": "cri.cci.io/container-type",
    "Kubernetes . Io / Availablezone:            ": "kubernetes.io/availablezone",
    "Network . Alpha . Kubernetes . Io / Network:": "network.alpha.kubernetes.io/network",
}
_NO_TIME = "0001-01-01 00:00:00 +0000 UTC"


def job_text(job: Object) -> str:
    """The job without its events."""
    return "".join(f"{'  ' * level}{line}\n" for level, line in _job_lines(job))


def events_text(events: list[Object]) -> str:
    """The events of a job as a table."""
    if not events:
        return "Events: \t<none>\n"
    rule = "-------"
    rows = [("Type", "Reason", "Age", "Form", "Message"), (rule,) * 5, *map(_event_cells, events)]
    return "Events:\n" + "".join(f"{a:<15}\t{b:<40}\t{c:<30}\t{d:<40}\t{e}\n" for a, b, c, d, e in rows)


def _event_cells(event: Object) -> tuple[str, str, str, str, str]:
    when = age(event.get("firstTimestamp"))
    if event.get("count", 0) > 1:
        when = f"{age(event.get('lastTimestamp'))} (x{event['count']} over {when})"
    source = event.get("source") or {}
    origin = ", ".join([source.get("component", ""), *([source["host"]] if source.get("host") else [])])
    return event.get("type", ""), event.get("reason", ""), when, origin, event.get("message", "").strip()


def _job_lines(job: Object) -> Iterator[tuple[int, str]]:
    metadata, spec = job["metadata"], job.get("spec", {})
    plugins = spec.get("plugins") or {}
    yield 0, f"Name:       \t{metadata['name']}"
    yield 0, f"Namespace:  \t{metadata['namespace']}"
    yield 0, f"Labels:     \t{_compact(metadata.get('labels'))}"
    yield 0, f"Annotations:\t{_compact(metadata.get('annotations'))}"
    # The client of Volcano's command leaves these two empty.
    yield 0, "API Version:\t"
    yield 0, "Kind:       \t"
    yield 0, "Metadata:"
    yield 1, f"Creation Timestamp:\t{_time(metadata.get('creationTimestamp'))}"
    yield 1, f"Generate Name:     \t{metadata.get('generateName', '')}"
    yield 1, f"Generation:        \t{metadata.get('generation', 0)}"
    yield 1, f"Resource Version:  \t{metadata.get('resourceVersion', '')}"
    yield 1, f"UID:               \t{metadata.get('uid', '')}"
    yield 0, "Spec:"
    yield 1, f"Min Available:     \t{spec.get('minAvailable', 0)}"
    yield 1, "Plugins:"
    yield 2, f"Env:\t{_words(plugins.get('env'))}"
    yield 2, f"Ssh:\t{_words(plugins.get('ssh'))}"
    yield 1, f"Scheduler Name:    \t{spec.get('schedulerName', '')}"
    yield 1, "Tasks:"
    for task in spec.get("tasks") or []:
        yield from _task_lines(task)
    yield from _status_lines(job.get("status") or {})


def _task_lines(task: Object) -> Iterator[tuple[int, str]]:
    template = task.get("template") or {}
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    yield 2, f"Name:\t{task.get('name', '')}"
    yield 2, f"Replicas:\t{task.get('replicas', 0)}"
    yield 2, "Template:"
    yield 3, "Metadata:"
    yield 4, "Annotations:"
    for words, key in _TEMPLATE_ANNOTATIONS.items():
        yield 5, f"{words}\t{annotations.get(key, '')}"
    yield 4, f"Creation Timestamp:\t{_time(metadata.get('creationTimestamp'))}"
    yield 3, "Spec:"
    yield 4, "Containers:"
    for container in spec.get("containers") or []:
        yield from _container_lines(container)
    yield 4, "Image Pull Secrets:"
    for secret in spec.get("imagePullSecrets") or []:
        yield 5, f"Name:     \t{secret.get('name', '')}"
    yield 4, f"Restart Policy:   \t{spec.get('restartPolicy', '')}"


def _container_lines(container: Object) -> Iterator[tuple[int, str]]:
    yield 5, "Command:"
    for word in container.get("command") or []:
        yield 6, str(word)
    yield 5, f"Image:\t{container.get('image', '')}"
    yield 5, f"Name: \t{container.get('name', '')}"
    yield 5, "Ports:"
    for port in container.get("ports") or []:
        yield 6, f"Container Port:\t{port.get('containerPort', 0)}"
        yield 6, f"Name:          \t{port.get('name', '')}"
    yield 5, "Resources:"
    resources = container.get("resources") or {}
    for title, key in (("Limits", "limits"), ("Requests", "requests")):
        amounts = resources.get(key) or {}
        yield 6, f"{title}:"
        yield 7, f"Cpu:   \t{_cpu(amounts.get('cpu', 0))}"
        yield 7, f"Memory:\t{amounts.get('memory', 0)}"
    yield 6, f"Working Dir:\t{container.get('workingDir', '')}"


def _status_lines(status: Object) -> Iterator[tuple[int, str]]:
    yield 0, "Status:"
    for title, key in _STATUS_COUNTS.items():
        if status.get(key, 0) > 0:
            yield 1, f"{title + ':':<14}\t{status[key]}"
    yield 1, "State:"
    yield 2, f"Phase:\t{(status.get('state') or {}).get('phase', '')}"
    if status.get("controlledResources"):
        yield 1, "Controlled Resources:"
        for name, value in sorted(status["controlledResources"].items()):
            yield 2, f"{name}: \t{value}"
    if status.get("conditions"):
        yield 1, "Conditions:"
        yield 2, "Status\tTransitionTime"
        for condition in status["conditions"]:
            yield 2, f"{condition.get('status', '')} \t{_time(condition.get('lastTransitionTime'))} "


def _compact(values: Mapping[str, Any] | None) -> str:
    """JSON as Go writes it: compact, sorted and escaped for HTML."""
    if not values:
        return "<none>"
    text = json.dumps(values, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _words(values: list[str] | None) -> str:
    return f"[{' '.join(values or [])}]"


def _time(timestamp: str | None) -> str:
    at_s = times.seconds(timestamp)
    return _NO_TIME if at_s is None else times.stamp(at_s).replace("T", " ").replace("Z", " +0000 UTC")


def _cpu(amount: str | int) -> str:
    """The canonical form: whole cores without the milli suffix."""
    text = str(amount)
    if text.endswith("m") and text[:-1].isdigit() and int(text[:-1]) % 1000 == 0:
        return str(int(text[:-1]) // 1000)
    return text
