"""Keeps a store equal to the API server's state: list, then watch, until cancelled.

A list is paged. A watch continues from the list's version; bookmarks advance the version in quiet times, so that a
watch resumes where its connection was cut. After a 410 (the server no longer has our version) the reflector lists
again. Any other failure causes a pause that grows with each failure in a row, with jitter, so that a thousand clients
of a restarted server do not return at once. A watch that ends immediately and a version that expires right after its
list count as failures too.

One silent watch is a dead connection. After two in a row the reflector lists again, because a server that was restored
from a backup waits silently until it reaches our version. An error never empties the store: old knowledge, whose age
`heard_at` tells, is better than none.
"""

import asyncio
import random
import time
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from baton.kube.client import Client
from baton.kube.errors import ApiError, GoneError, NotFoundError, SilentError, ThrottledError, UnreachableError
from baton.kube.queue import doubled
from baton.kube.store import Store, key_of
from baton.model.resource import Resource

_LOG = structlog.get_logger("baton.kube")

_PAGE = 1000
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 15.0
_SHORTEST_WATCH_S = 1.0
"""A watch that ends sooner without an event has failed: servers end watches after minutes."""
_ABSENT_PAUSE_S = 5.0
"""How often the reflector checks for a resource that is not installed."""

K = TypeVar("K", bound=Any)


class Reflector(Generic[K]):
    """One kind of object in one namespace or all, kept up to date in `store` while `run()` runs."""

    def __init__(
        self,
        client: Client,
        resource: Resource[K],
        store: Store[K],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        silence_s: float = 90.0,
        optional: bool = False,
    ) -> None:
        """With `optional`, a resource that the server does not know counts as one without objects."""
        self.resource = resource
        self.store = store
        self.synced = asyncio.Event()
        """Set once the first list is in the store."""
        self.heard_at: float | None = None
        """When the server last sent anything, on the monotonic clock."""
        self._client = client
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._silence_s = silence_s
        self._optional = optional
        self._version = ""
        self._failures = 0
        self._forgotten = False
        """Whether the server has sent nothing since our version last expired."""
        self._silent = False
        """Whether the last watch received nothing, not even a bookmark, before its deadline."""

    @property
    def version(self) -> str:
        """The newest version in the store; empty before the first list."""
        return self._version

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                self._failures = 0
            except GoneError as error:
                self._version = ""
                if self._forgotten:
                    await self._interrupted(error)
                self._forgotten = True
            except NotFoundError as error:
                if not self._optional:
                    await self._interrupted(error)
                    continue
                self.store.replace(())
                self._version = ""
                self.synced.set()
                await asyncio.sleep(_ABSENT_PAUSE_S)
            except SilentError as error:
                if self._silent:
                    self._version = ""
                self._silent = True
                await self._interrupted(error)
            except (ApiError, UnreachableError, msgspec.DecodeError) as error:
                await self._interrupted(error)

    async def _interrupted(self, error: Exception) -> None:
        self._failures += 1
        pause_s = self._pause_s(error)
        _LOG.warning("watch interrupted", resource=self.resource.plural, error=str(error), pause_s=round(pause_s, 2))
        await asyncio.sleep(pause_s)

    async def _list(self) -> None:
        items: list[K] = []
        token = ""
        while True:
            page = await self._client.list_page(
                self.resource,
                self._namespace,
                limit=_PAGE,
                continue_token=token,
                label_selector=self._label_selector,
                field_selector=self._field_selector,
            )
            items += page.items
            token = page.continue_token
            if not token:
                break
        self.store.replace(items)
        self._version = page.resource_version
        self._heard()
        self.synced.set()

    async def _watch(self) -> None:
        stream = self._client.watch(
            self.resource,
            self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            silence_s=self._silence_s,
        )
        began = time.monotonic()
        told = False
        async for batch in stream:
            told = True
            self._heard()
            self._failures = 0
            self._forgotten = self._silent = False
            for event in batch:
                self._version = event.resource_version
                if event.object is None:
                    continue
                if event.type == "DELETED":
                    self.store.remove(key_of(event.object))
                else:
                    self.store.put(event.object)
        if not told and time.monotonic() < began + _SHORTEST_WATCH_S:
            raise UnreachableError(f"the watch of {self.resource.plural} ended as soon as it began")

    def _heard(self) -> None:
        self.heard_at = time.monotonic()

    def _pause_s(self, error: Exception) -> float:
        if isinstance(error, ThrottledError) and error.retry_after_s is not None:
            return error.retry_after_s * random.uniform(1.0, 1.2)
        ceiling = doubled(_FIRST_PAUSE_S, self._failures, _LONGEST_PAUSE_S)
        return random.uniform(ceiling / 2, ceiling)
