"""The objects that the job, queue and pod commands make and read.

`baton job …` and `vcctl job …` are two interfaces to the same operations, which this module implements once.
"""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from baton.cli.cluster.requests import Cluster, Object
from baton.errors import UsageError
from baton.model import card_annotations, times
from baton.model.durations import age_text
from baton.model.names import JOB_NAME, JOB_TYPE, QUEUE_NAME, QUEUE_OF_POD, PodGroupPhase
from baton.model.quantities import is_quantity
from baton.model.volcano import COMMANDS, QUEUES, SCHEDULING

PHASES = (
    *(PodGroupPhase.INQUEUE, PodGroupPhase.PENDING, PodGroupPhase.RUNNING),
    *(PodGroupPhase.UNKNOWN, PodGroupPhase.COMPLETED),
)
"""The phases of a pod group, in the order of the columns of a queue list."""

_UNKNOWN_AGE = "<unknown>"


def parse_amounts(text: str, field: str) -> dict[str, str]:
    """`cpu=1,memory=1Gi` as a mapping."""
    amounts: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, amount = part.partition("=")
        if not name or not equals or not is_quantity(amount):
            raise UsageError(f"{field} has {part!r}, expected RESOURCE=AMOUNT such as cpu=1 or memory=2Gi")
        amounts[name] = amount
    return amounts


def job_object(
    name: str,
    *,
    image: str,
    replicas: int,
    min_available: int,
    requests: dict[str, str],
    limits: dict[str, str],
    scheduler: str,
    queue: str = "",
    command: Iterable[str] = (),
    plugins: dict[str, list[str]] | None = None,
) -> Object:
    """A job with one task, from the options of a command line."""
    container: Object = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": limits, "requests": requests},
    }
    words = list(command)
    if words:
        container["command"] = words
    spec: Object = {
        "minAvailable": min_available,
        "schedulerName": scheduler,
        "tasks": [
            {
                "replicas": replicas,
                "template": {
                    "metadata": {"name": name, "labels": {"job.volcano.sh": name}},
                    "spec": {"restartPolicy": "Never", "containers": [container]},
                },
            }
        ],
    }
    if queue:
        spec["queue"] = queue
    if plugins:
        spec["plugins"] = plugins
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def read_documents(path: Path, kind: str) -> list[Object]:
    """The objects in a manifest, which must all be of one kind."""
    try:
        documents = [item for item in yaml.safe_load_all(path.read_text()) if item is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except (yaml.YAMLError, ValueError) as error:  # YAML raises ValueError for a date that does not exist
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not documents:
        raise UsageError(f"{path} is empty, expected a {kind}")
    for document in documents:
        found = document.get("kind") if isinstance(document, dict) else type(document).__name__
        if found != kind:
            raise UsageError(f"{path}: kind is {found!r}, expected {kind}")
        metadata = document.get("metadata")
        if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
            raise UsageError(f"{path}: metadata is {metadata!r}, expected the name of the {kind}: {{name: …}}")
    return documents


def command_object(target: Object, api_version: str, kind: str, action: str) -> Object:
    """A command for the controller about a job or a queue, which owns it; deleting the target deletes the command."""
    metadata = target["metadata"]
    owner = {
        "apiVersion": api_version,
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"generateName": f"{metadata['name']}-{action.lower()}-", "ownerReferences": [owner]},
        "target": owner,
        "action": action,
    }


def order_queue(cluster: Cluster, name: str, action: str) -> None:
    """Let the controller open or close a queue; the command is in the default namespace because queues have none."""
    queue = cluster.get(QUEUES, name)
    cluster.create(COMMANDS, command_object(queue, SCHEDULING, "Queue", action), "default")


def pod_selector(job: str, queue: str) -> str:
    """The label selector for the pods of one job or of all jobs; empty with a queue, which is checked for each pod."""
    if job:
        return f"{JOB_NAME}={job}"
    return "" if queue else JOB_NAME


def cards_of(metadata: Object) -> list[str]:
    """The cards that the scheduler recorded for a pod, without duplicates and without their common prefix."""
    annotations: dict[str, str] = metadata.get("annotations") or {}
    shares = card_annotations.assigned_shares(annotations.get(card_annotations.ASSIGNED, ""))
    names = [share.card for container in shares for share in container]
    for cards in card_annotations.our_cards(annotations.get(card_annotations.OUR_CARDS, "")).values():
        names += cards
    return list(dict.fromkeys(name.removeprefix("GPU-")[:8] for name in names))


def replicas_of(job: Object) -> int:
    """The number of pods that a job has when all of them exist."""
    return sum(task.get("replicas", 0) for task in job.get("spec", {}).get("tasks") or [])


def type_of(job: Object) -> str:
    """The type of a job, from a label that frameworks set."""
    return str((job["metadata"].get("labels") or {}).get(JOB_TYPE) or "Batch")


def phase_of(item: Object) -> str:
    """The phase of a job or a job flow."""
    return str(item.get("status", {}).get("state", {}).get("phase", ""))


def phases_by_queue(groups: Iterable[Object]) -> dict[str, Counter[str]]:
    """The number of pod groups in each phase, by queue."""
    counts: dict[str, Counter[str]] = {}
    for group in groups:
        queue = group.get("spec", {}).get("queue", "")
        counts.setdefault(queue, Counter())[group.get("status", {}).get("phase", "")] += 1
    return counts


def belongs_to_queue(metadata: Object, queue: str) -> bool:
    """Whether a pod belongs to a queue, by its job's label or its own annotation."""
    labels: dict[str, Any] = metadata.get("labels") or {}
    annotations: dict[str, Any] = metadata.get("annotations") or {}
    return queue in (labels.get(QUEUE_NAME), annotations.get(QUEUE_OF_POD))


def age(timestamp: str | None, now_s: float | None = None) -> str:
    """The time since a timestamp, as `kubectl get` shows it."""
    since_s = times.seconds(timestamp)
    return _UNKNOWN_AGE if since_s is None else age_text((time.time() if now_s is None else now_s) - since_s)
