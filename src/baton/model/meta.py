"""Kubernetes objects, typed: only the fields that Baton reads.

They are frozen and not tracked by the garbage collector, because a whole cluster of them lives as long as a program.
"""

from typing import NamedTuple

import msgspec

from baton.model.resource import Resource


class OwnerReference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of every object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    def controller(self, kind: str = "", api_version: str = "") -> OwnerReference | None:
        """The controlling owner of the object; with a kind, only if the owner is of that kind."""
        owner = next((owner for owner in self.owner_references if owner.controller), None)
        if owner is not None and kind and (owner.kind, owner.api_version) != (kind, api_version):
            return None
        return owner

    def reference(self, kind: str, api_version: str) -> "ObjectReference":
        """The object as events name it."""
        return ObjectReference(kind, self.namespace, self.name, self.uid, api_version)


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The holder of a lease, and its times."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """coordination.k8s.io/v1 Lease."""

    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The object of an event."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""


class ObjectEvent(NamedTuple):
    """An event to record about the object that is being decided on: pure rules return it, a controller records it."""

    reason: str
    message: str
    warning: bool = False


class Event(msgspec.Struct, frozen=True, rename="camel"):
    """v1 Event, as kubectl describe shows it."""

    metadata: Metadata
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int = 0


LEASES: Resource[Lease] = Resource("coordination.k8s.io", "v1", "leases", Lease)
EVENTS: Resource[Event] = Resource("", "v1", "events", Event)
