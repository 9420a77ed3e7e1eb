"""Stores that several parts of one program share: one list and one watch per kind of object for all readers.

Each part has a `Scope`, which remembers the kinds that the part reads. A part waits only for those, so a kind whose CRD
is not installed does not stop the other parts.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from baton.kube.client import Client
from baton.kube.reflector import Reflector
from baton.kube.store import Index, Store
from baton.model.resource import Resource

K = TypeVar("K", bound=Any)


class Informers:
    """The stores of one program, kept up to date while `run()` runs; request all of them before."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reflectors: dict[str, Reflector[Any]] = {}

    def scope(self) -> "Scope":
        """A scope for one part of the program."""
        return Scope(self)

    async def run(self) -> None:
        """List and watch all requested kinds until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, reflector in self._reflectors.items():
                group.create_task(reflector.run(), name=f"watch {name}")

    def waiting(self) -> list[str]:
        """The kinds whose first list has not arrived yet."""
        return [name for name, reflector in self._reflectors.items() if not reflector.synced.is_set()]

    def reflector(self, resource: Resource[K]) -> Reflector[K]:
        """The one reflector of a kind."""
        name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        found = self._reflectors.get(name)
        if found is None:
            found = self._reflectors[name] = Reflector(self._client, resource, Store[K]())
        elif found.resource.kind is not resource.kind:
            raise ValueError(f"{name} is read as {found.resource.kind.__name__} and as {resource.kind.__name__}")
        return found


class Scope:
    """The stores that one part of the program reads."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._asked: list[Reflector[Any]] = []

    def store(self, resource: Resource[K], indexes: Mapping[str, Index[K]] | None = None) -> Store[K]:
        """The shared store of a kind; the first part that names an index creates it."""
        reflector = self._informers.reflector(resource)
        self._asked.append(reflector)
        for name, index in (indexes or {}).items():
            reflector.store.add_index(name, index)
        return reflector.store

    async def synced(self) -> None:
        """Wait until the first list of every kind of this scope has arrived."""
        for reflector in self._asked:
            await reflector.synced.wait()
