"""Applies objects to a cluster by server-side apply, one by one, and waits until custom resources are served.

Applying is idempotent and uses one field manager, so that fields which others set (a webhook's certificate authority,
an autoscaler's replicas) stay theirs and a second run changes nothing. A dry run sends the same requests with
`dryRun=All`: the API server validates every object and stores none.
"""

import asyncio
import enum
import importlib.resources
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import yaml

from baton.errors import UnavailableError
from baton.kube.client import APPLY_PATCH, Client
from baton.kube.errors import NotFoundError
from baton.model.meta import Metadata
from baton.model.resource import Resource

FIELD_MANAGER = "baton-install"

_ESTABLISHED_LIMIT_S = 60.0
_POLL_S = 0.1


class Outcome(enum.StrEnum):
    """The effect of applying an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


class Applied(NamedTuple):
    """One object and the effect of applying it."""

    kind: str
    name: str
    namespace: str
    outcome: Outcome


class _Condition(msgspec.Struct):
    type: str
    status: str
    message: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Stored(msgspec.Struct):
    """The fields of a stored object that are read back."""

    metadata: Metadata
    status: _Status = msgspec.field(default_factory=_Status)


_PLURALS = {
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): ("customresourcedefinitions", False),
    ("v1", "Namespace"): ("namespaces", False),
    ("v1", "ServiceAccount"): ("serviceaccounts", True),
    ("v1", "ConfigMap"): ("configmaps", True),
    ("v1", "Service"): ("services", True),
    ("apps/v1", "Deployment"): ("deployments", True),
    ("apps/v1", "DaemonSet"): ("daemonsets", True),
    ("policy/v1", "PodDisruptionBudget"): ("poddisruptionbudgets", True),
    ("scheduling.k8s.io/v1", "PriorityClass"): ("priorityclasses", False),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): ("clusterroles", False),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): ("clusterrolebindings", False),
    ("rbac.authorization.k8s.io/v1", "Role"): ("roles", True),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): ("rolebindings", True),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"): ("mutatingwebhookconfigurations", False),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"): ("validatingwebhookconfigurations", False),
}
"""The kinds of objects in an installation, with their paths in the API."""


def resource_of(manifest: Mapping[str, Any]) -> Resource[_Stored]:
    """The resource of an object of the installation."""
    api_version, kind = manifest["apiVersion"], manifest["kind"]
    plural, namespaced = _PLURALS[api_version, kind]
    group, _, version = api_version.rpartition("/")
    return Resource(group, version, plural, _Stored, namespaced)


async def apply(
    client: Client, manifests: Iterable[Mapping[str, Any]], *, dry_run: bool = False
) -> AsyncIterator[Applied]:
    """Apply objects in the given order; yields each as soon as the server has accepted it."""
    for manifest in manifests:
        resource = resource_of(manifest)
        name, namespace = manifest["metadata"]["name"], manifest["metadata"].get("namespace", "")
        path = resource.path(namespace, name)
        try:
            before = _content(await client.request("GET", path))
        except NotFoundError:
            before = None
        parameters = {"fieldManager": FIELD_MANAGER, "force": "true", "dryRun": "All" if dry_run else ""}
        try:
            answer = await client.request("PATCH", path, parameters=parameters, body=manifest, content_type=APPLY_PATCH)
            after = _content(answer)
        except NotFoundError:
            # A dry run stores no namespace, so objects in a new namespace cannot be tried.
            if not dry_run or before is not None:
                raise
            after = None
        outcome = Outcome.CREATED if before is None else Outcome.UNCHANGED if before == after else Outcome.CHANGED
        yield Applied(manifest["kind"], name, namespace, outcome)


def _content(answer: bytes) -> dict[str, Any]:
    """An object without the server's counters, which cannot be compared: a dry run does not raise them."""
    stored: dict[str, Any] = msgspec.json.decode(answer)
    for key in ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"):
        stored["metadata"].pop(key, None)
    stored.pop("status", None)
    return stored


def manifests() -> list[dict[str, Any]]:
    """Everything except the custom resource definitions, in the order of application."""
    folder = importlib.resources.files("baton.install") / "manifests"
    documents: list[dict[str, Any]] = []
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        documents += yaml.safe_load_all((folder / name).read_text())
    return documents


async def wait_established(
    client: Client, manifests: Iterable[Mapping[str, Any]], limit_s: float = _ESTABLISHED_LIMIT_S
) -> None:
    """Wait until the API server serves every custom resource among the objects."""
    for manifest in manifests:
        if manifest["kind"] != "CustomResourceDefinition":
            continue
        name = manifest["metadata"]["name"]
        said = "it has no conditions"
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    stored = await client.get(resource_of(manifest), name)
                    conditions = {condition.type: condition for condition in stored.status.conditions}
                    if "Established" in conditions and conditions["Established"].status == "True":
                        break
                    bad = [each.message for each in conditions.values() if each.status == "False" and each.message]
                    said = "; ".join(bad) or said
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise UnavailableError(f"the custom resource {name} is not served after {limit_s:.0f} s: {said}") from None
