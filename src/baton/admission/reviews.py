"""AdmissionReviews: what the API server asks, and what it is answered."""

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
        """The object as it is to be."""
        return self.object or {}

    @property
    def old(self) -> dict[str, Any]:
        """The object as it was."""
        return self.old_object or {}

    @property
    def subject(self) -> str:
        """The object's name; when all of a kind are deleted at once, only the object itself tells it."""
        metadata = (self.new or self.old).get("metadata")
        return self.name or (str(metadata.get("name") or "") if isinstance(metadata, dict) else "")

    @property
    def leaving(self) -> bool:
        """Whether the object is being deleted: then nobody may be kept from removing its finalizers."""
        metadata = self.new.get("metadata")
        return isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    request: Request
    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"


class Verdict(msgspec.Struct, frozen=True):
    """What is wrong, and what is to be changed if nothing is."""

    findings: Findings
    patches: Patches

    @property
    def allowed(self) -> bool:
        return not self.findings.refusals


def read(body: bytes) -> Request:
    """The request of a review; a ValueError says what is wrong with it."""
    return msgspec.json.decode(body, type=_Review).request


def answer(request: Request, verdict: Verdict) -> bytes:
    """The review with its response. A refusal is 422, as the API server's own of an object that makes no sense."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        response["status"] = {"code": 422, "reason": "Invalid", "message": verdict.findings.message()}
    elif verdict.patches.operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(verdict.patches.operations)).decode()
    if verdict.findings.warnings:
        response["warnings"] = [warning[:_LONGEST_WARNING] for warning in verdict.findings.warnings]
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
