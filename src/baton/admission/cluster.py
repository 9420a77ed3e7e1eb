"""The cluster as the checks see it: queues, namespaces, and the API server's validation of a pod template.

Queues and namespaces are watched, so an answer costs no request. But a store may lag behind, and a user who creates a
queue and a job in one file must not be told that the queue is missing. So the API server itself is asked before
anything is refused, and before a queue may be deleted.

The API server checks pod templates, because it has the last word on pods: it receives a PodTemplate that is not stored
(`dryRun=All`). Templates that passed are remembered, because thousands of jobs share one.
"""

import hashlib
from collections import OrderedDict
from typing import Any

import msgspec
import structlog

from baton.admission.findings import Field, Findings, Rule
from baton.admission.rules.queues import Tree
from baton.kube.client import Client
from baton.kube.errors import ApiError, InvalidError, NotFoundError, UnreachableError
from baton.kube.informers import Informers
from baton.model.core import NAMESPACES, Namespace
from baton.model.ids import Key
from baton.model.volcano import QUEUES, Queue

_LOG = structlog.get_logger("baton.admission")

_REMEMBERED = 4096
_BAD_REQUEST = 400
_PROBE = "baton-admission-check"

TEMPLATE = Rule("template", "{field} is refused by the API server: {reason}")


class Cluster:
    """The cluster as the webhooks see it. `informers` must run."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._scope = informers.scope()
        self._queues = self._scope.store(QUEUES)
        self._namespaces = self._scope.store(NAMESPACES)
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    async def synced(self) -> None:
        """Wait for the first lists."""
        await self._scope.synced()

    async def queue(self, name: str, *, fresh: bool = False) -> Queue | None:
        """A queue by name; `fresh` asks the API server."""
        if not fresh:
            return self._queues.get(Key(name))
        try:
            return await self._client.get(QUEUES, name)
        except NotFoundError:
            return None

    async def tree(self, *, fresh: bool = False) -> Tree:
        """All queues."""
        return Tree(await self._client.list_all(QUEUES) if fresh else self._queues)

    async def namespace_annotations(self, name: str) -> dict[str, str]:
        """A namespace's annotations."""
        found: Namespace | None = self._namespaces.get(Key(name))
        if found is None:
            try:
                found = await self._client.get(NAMESPACES, name)
            except NotFoundError:
                return {}
        return found.metadata.annotations

    async def check_template(self, template: Field, namespace: str, strict: bool, findings: Findings) -> None:
        """Have the API server check a pod template. If it cannot be reached, a mistake shows when pods are created."""
        if not isinstance(template.value, dict):
            return
        key = hashlib.blake2b(msgspec.json.encode([template.value, strict]), digest_size=16).digest()
        if key in self._passed:
            self._passed.move_to_end(key)
            return
        try:
            await self._client.request(
                "POST",
                f"/api/v1/namespaces/{namespace}/podtemplates",
                parameters={"dryRun": "All", "fieldValidation": "Strict" if strict else "Ignore"},
                body={"metadata": {"name": _PROBE}, "template": template.value},
            )
        except (ApiError, UnreachableError) as error:
            if not isinstance(error, InvalidError) and getattr(error, "status", 0) != _BAD_REQUEST:
                _LOG.warning("pod template not checked", namespace=namespace, error=str(error))
                return
            findings.add(TEMPLATE, Field(template.path, None), reason=_reason(error, template.path))
            return
        self._passed[key] = None
        if len(self._passed) > _REMEMBERED:
            self._passed.popitem(last=False)


def _reason(error: ApiError | UnreachableError, path: str) -> str:
    """The message of the API server, with the paths in the object that the user wrote."""
    message = str(getattr(error, "message", error))
    message = message.removeprefix(f'PodTemplate "{_PROBE}" is invalid: ')
    message = message.removeprefix('PodTemplate in version "v1" cannot be handled as a PodTemplate: ')
    for before in (" ", '"', "["):
        message = message.replace(f"{before}template.", f"{before}{path}.")
    return f"{path}{message.removeprefix('template')}" if message.startswith("template.") else message


def strictness(options: dict[str, Any] | None) -> bool:
    """Whether the client asks for unknown fields to be refused, as kubectl does."""
    return (options or {}).get("fieldValidation") == "Strict"
