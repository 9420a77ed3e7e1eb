"""Why a pod or a job waits, or that it does not wait: one answer for the running scheduler and for `baton why`.

`baton why` calls the same functions when no scheduler answers, on a feed that it fills itself. The pod's own status
comes first, because the engine only knows pods that have a node or wait for one. Everything else is the engine's
verdict.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from baton.engine.verdicts import Cause, Verdict
from baton.model import core
from baton.model.ids import GroupKey, Key, PodKey
from baton.model.names import PodPhase

if TYPE_CHECKING:
    from baton.engine.engine import Engine
    from baton.scheduler.feed.feed import Feed

_BEING_STARTED = ("", "ContainerCreating", "PodInitializing")
"""Reasons of a waiting container that will start."""


def explain(feed: "Feed", engine: "Engine", key: str, now_s: float) -> Verdict:
    """The verdict on a pod or a PodGroup, from a feed and the engine that has its events."""
    pod = feed.pods.get(Key(key))
    if pod is not None and (feed.words.is_ours(pod) or feed.groups.get(Key(key)) is None):
        verdict = settled(pod, feed.words.scheduler_names)
        if verdict is not None:
            return verdict
    return engine.explain(PodKey(key), now_s)


def settled(pod: core.Pod, scheduler_names: Collection[str] | None = None) -> Verdict | None:
    """The verdict on a pod that no scheduler has to place, or that another scheduler has; None for one that waits.

    Without names, a pod of any scheduler waits.
    """
    cause, detail = _state(pod)
    if cause is None and scheduler_names is not None and pod.spec.scheduler_name not in scheduler_names:
        cause = Cause.OTHER_SCHEDULER
        detail = f"belongs to the scheduler {pod.spec.scheduler_name!r}, which is not Baton"
    if cause is None:
        return None
    return Verdict(group=pod.group or GroupKey(f"pod:{pod.key}"), cause=cause, pod=pod.key, detail=detail)


def _state(pod: core.Pod) -> tuple[Cause | None, str]:
    """What the pod's own status says."""
    status, node = pod.status, pod.spec.node_name
    if status.phase == PodPhase.SUCCEEDED:
        return Cause.SUCCEEDED, "has succeeded"
    if status.phase == PodPhase.FAILED:
        told = ", ".join(filter(None, (status.reason, status.message)))
        return Cause.FAILED, f"has failed: {told}" if told else "has failed"
    if pod.metadata.deletion_timestamp:
        return Cause.DELETING, "is being deleted"
    if not node:
        return None, ""
    stuck = _stuck_containers(status)
    if stuck:
        return Cause.CANNOT_START, f"is on {node}, but its containers cannot start: {stuck}"
    if status.phase == PodPhase.RUNNING:
        return Cause.RUNNING, f"runs on {node}"
    return Cause.STARTING, f"starts on {node}"


def _stuck_containers(status: core.PodStatus) -> str:
    found = []
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _BEING_STARTED:
            found.append(f"{container.name} {waiting.reason} {waiting.message}".strip())
    return "; ".join(found)
