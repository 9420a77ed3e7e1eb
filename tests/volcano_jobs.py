"""Volcano Jobs for tests: the manifest that a user applies, and the object that the programs read."""

from collections.abc import Sequence
from typing import Any

import msgspec

from baton.model.volcano import Job

Object = dict[str, Any]


def container(**fields: Any) -> Object:
    return {"name": "main", "image": "busybox", **fields}


def task(name: str = "worker", replicas: int = 2, *, containers: Sequence[Object] = (), **fields: Any) -> Object:
    template = {"spec": {"containers": list(containers) or [container()]}}
    return {"name": name, "replicas": replicas, "template": template, **fields}


def manifest(*tasks: Object, name: str = "train", **spec: Any) -> Object:
    """A job as a user writes it; fields of the spec have the API's names."""
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"tasks": list(tasks) or [task()], **spec},
    }


def job(
    *tasks: Object,
    name: str = "train",
    phase: str = "",
    state: Object | None = None,
    status: Object | None = None,
    metadata: Object | None = None,
    **spec: Any,
) -> Job:
    """A job as the programs read it: in a phase, with more of its state, its status and its metadata."""
    body = manifest(*tasks, name=name, **spec)
    body["metadata"] |= {"namespace": "team", "uid": f"uid-{name}", **(metadata or {})}
    body["status"] = {"state": {"phase": phase, **(state or {})}, **(status or {})}
    return msgspec.convert(body, Job)
