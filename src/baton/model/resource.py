"""Kinds of objects: their place in the Kubernetes API and their type in Baton."""

from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct | dict[str, Any])


class Resource(NamedTuple, Generic[T]):
    """A kind of object: its place in the API and its type."""

    group: str
    version: str
    plural: str
    kind: type[T]
    """A struct with the fields that Baton uses; `dict` keeps every field."""
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, or of one object, or of its subresource."""
        parts = ["/api", self.version] if not self.group else ["/apis", self.group, self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)
