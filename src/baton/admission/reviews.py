"""AdmissionReviews: the questions of the API server and their answers."""

import base64
from typing import Any

import msgspec

from baton.admission.findings import Findings
from baton.admission.patches import Patches

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
_LONGEST_WARNING = 250
"""The API server cuts warnings that are longer than 256 bytes."""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """One question: may this object become that one?"""

    uid: str
    operation: str
    name: str = ""
    namespace: str = ""
    sub_resource: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    options: dict[str, Any] | None = None

    @property
    def new(self) -> dict[str, Any]:
        """The new object."""
        return self.object or {}

    @property
    def old(self) -> dict[str, Any]:
        """The old object."""
        return self.old_object or {}

    @property
    def subject(self) -> str:
        """The name of the object. When all objects of a kind are deleted at once, only the object contains it."""
        metadata = (self.new or self.old).get("metadata")
        return self.name or (str(metadata.get("name") or "") if isinstance(metadata, dict) else "")

    @property
    def leaving(self) -> bool:
        """Whether the object is being deleted: the removal of its finalizers must then be allowed."""
        metadata = self.new.get("metadata")
        return isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    request: Request
    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"


class Verdict(msgspec.Struct, frozen=True):
    """The findings, and the patches to apply if there are none."""

    findings: Findings
    patches: Patches

    @property
    def allowed(self) -> bool:
        return not self.findings.refusals


def read(body: bytes) -> Request:
    """The request in a review, or a ValueError that describes the mistake in it."""
    return msgspec.json.decode(body, type=_Review).request


def answer(request: Request, verdict: Verdict) -> bytes:
    """The review with its response. A refusal has code 422, like the API server's own for an invalid object."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        response["status"] = {"code": 422, "reason": "Invalid", "message": verdict.findings.message()}
    elif verdict.patches.operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(verdict.patches.operations)).decode()
    if verdict.findings.warnings:
        response["warnings"] = [warning[:_LONGEST_WARNING] for warning in verdict.findings.warnings]
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
