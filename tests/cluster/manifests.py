"""Objects that the cluster tests create."""

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.images import BUSYBOX


def pod(
    name: str,
    command: Sequence[str] = ("sleep", "3600"),
    *,
    image: str = BUSYBOX,
    limits: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod of one container that ends at once when told to."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            **spec,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "resources": {"limits": dict(limits or {})},
                }
            ],
        },
    }
