"""Literal jobs and pods for tests of the phase machine."""

from typing import Any

import msgspec

from baton.controllers.job.lifecycle import PodView
from baton.controllers.job.phases import Order, Plan, World, decide
from baton.model.names import JOB_VERSION, JobPhase
from baton.model.volcano import Job, PodGroup
from tests.volcano_jobs import job

NOW_S = 1_800_000_000.0


def a_job(
    phase: str = "Running", *, status: dict[str, Any] | None = None, reason: str = "RestartJob", **spec: Any
) -> Job:
    """A job of three workers that all must run."""
    tasks = spec.pop("tasks", [{"name": "worker", "replicas": 3, "template": {}}])
    metadata = {"namespace": "ml", "uid": "u1", "creationTimestamp": "2027-01-15T08:00:00Z"}
    return job(
        *tasks,
        phase=phase,
        state={"reason": reason} if phase else None,
        status=status,
        metadata=metadata,
        **{"maxRetry": 3, **spec},
    )


def a_pod(index: int = 0, phase: str = "Running", *, task: str = "worker", **more: Any) -> PodView:
    name = f"train-{task}-{index}"
    return PodView(
        name=name, task=task, index=index, phase=phase, **{"uid": f"{name}-uid", "ready": phase == "Running", **more}
    )


def pods_in(*phases: str, task: str = "worker", version: int = 0) -> list[PodView]:
    return [a_pod(index, phase, task=task, version=version) for index, phase in enumerate(phases)]


def a_group(phase: str = "Inqueue", version: int | None = 0) -> PodGroup:
    annotations = {} if version is None else {JOB_VERSION: str(version)}
    return msgspec.convert(
        {"metadata": {"name": "train-u1", "annotations": annotations}, "status": {"phase": phase}}, PodGroup
    )


def step(job: Job, pods: list[PodView] | None = None, **more: Any) -> Plan:
    """One decision. By default the group is admitted."""
    more.setdefault("group", a_group(version=job.status.version))
    return decide(World(job=job, pods=pods or [], now_s=NOW_S, **more))


def command(action: str) -> Order:
    return Order(action, "do-it", "c1")


def phase_after(plan: Plan) -> JobPhase:
    return JobPhase(plan.status.state.phase)


def on(event: str, action: str, **more: Any) -> dict[str, Any]:
    return {"event": event, "action": action, **more}
