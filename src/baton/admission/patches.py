"""JSON patches: the answer of a mutating webhook."""

import copy
from collections.abc import Mapping
from typing import Any


class Patches:
    """Operations in the order in which they apply. The parents of a field that is set must exist."""

    def __init__(self) -> None:
        self.operations: list[dict[str, Any]] = []

    def set(self, *keys: str | int, value: Any) -> None:
        """Add a field or replace it."""
        path = "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in keys)
        self.operations.append({"op": "add", "path": path, "value": value})


def patched(value: Mapping[str, Any], patches: Patches) -> dict[str, Any]:
    """A copy of an object with the patches applied."""
    result: dict[str, Any] = copy.deepcopy(dict(value))
    for operation in patches.operations:
        *parents, last = (
            key.replace("~1", "/").replace("~0", "~") for key in operation["path"].removeprefix("/").split("/")
        )
        place: Any = result
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[int(last) if isinstance(place, list) else last] = copy.deepcopy(operation["value"])
    return result
