"""Pods as plain mappings, as they are sent to the API server, and small changes to them."""

from collections.abc import Iterable
from typing import Any

Body = dict[str, Any]


def pod_name(job: str, task: str, index: int) -> str:
    return f"{job}-{task}-{index}"


def add_volume(spec: Body, volume: Body) -> None:
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]


def add_mount(containers: Iterable[Body], mount: Body) -> None:
    for container in containers:
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
