"""Pods and nodes as the API server sends them."""

from typing import Any

import msgspec

from baton.model import core


def pod(spec: dict[str, Any] | None = None, **metadata: Any) -> core.Pod:
    body = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", **metadata},
        "spec": {"schedulerName": "volcano", "containers": [{"name": "main"}], **(spec or {})},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=core.Pod)


def limited(name: str = "main", **limits: Any) -> dict[str, Any]:
    named = {key.replace("__", "/").replace("_", "-"): value for key, value in limits.items()}
    return {"name": name, "resources": {"limits": {f"volcano.sh/{key}": value for key, value in named.items()}}}


def node(allocatable: dict[str, Any], annotations: dict[str, str] | None = None) -> core.Node:
    body = {"metadata": {"name": "n", "annotations": annotations or {}}, "status": {"allocatable": allocatable}}
    return msgspec.json.decode(msgspec.json.encode(body), type=core.Node)
