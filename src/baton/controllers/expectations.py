"""A store that already shows this program's own writes.

A watch lags behind: right after a pod was created, the store does not show it, and a controller that trusts the store
creates it again. So the API server's answer to a write stands in for the store until the store has that version or a
newer one. An object that was deleted counts as terminating until it is gone.

Answers and the watch use two connections, so an answer may arrive after the watch has shown the end of its object. It
is then ignored; otherwise the object would stay here for a while.
"""

import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from baton.kube.store import Delta, Named, Store, key_of, version_of
from baton.model.ids import Key

T = TypeVar("T", bound=Named)

LIMIT_S = 60.0
"""An object that was created and removed between two lists is never shown at all. After this time it is given up."""


class _Write(NamedTuple, Generic[T]):
    item: T
    at_s: float


class FreshStore(Generic[T]):
    """A store together with this program's own writes."""

    def __init__(self, store: Store[T], group: Callable[[T], Iterable[str]] | None = None) -> None:
        self._store = store
        self._group = group or _alone
        self._written: dict[Key, _Write[T]] = {}
        self._members: dict[str, dict[Key, None]] = {}
        self._deleted: set[str] = set()
        self._ended: dict[str, float] = {}
        """Uids of objects that ended recently, and when, the oldest first."""
        store.subscribe(self._store_changed)

    def wrote(self, item: T) -> None:
        """The API server answered a write with this object."""
        if item.metadata.uid in self._ended:
            return
        key = key_of(item)
        self._written[key] = _Write(item, time.monotonic())
        for name in self._group(item):
            self._members.setdefault(name, {})[key] = None

    def deleted(self, item: T) -> None:
        """The API server accepted a deletion."""
        if item.metadata.uid not in self._ended:
            self._deleted.add(item.metadata.uid)

    def is_deleted(self, item: T) -> bool:
        """Whether this program deleted it. It may still be there, terminating."""
        return item.metadata.uid in self._deleted

    def is_own(self, item: T) -> bool:
        """Whether the item is exactly what this program wrote, and so holds no news."""
        own = self._written.get(key_of(item))
        return own is not None and own.item.metadata.resource_version == item.metadata.resource_version

    def get(self, key: Key) -> T | None:
        """The newest known version."""
        known, own = self._store.get(key), self._written.get(key)
        if own is None or self._superseded(own, known):
            return known
        return own.item

    def unseen_s(self, name: str) -> float | None:
        """For how long a write in the group may stay that the store has not shown; None when there is no such write.
        The caller has to look again after that time: if the object is gone, no event will report it."""
        writes = [self._written[key] for key in self._members.get(name, ()) if key in self._written]
        unseen = [write.at_s for write in writes if self._store.get(key_of(write.item)) is None]
        return max(0.0, min(unseen) + LIMIT_S - time.monotonic()) if unseen else None

    def members(self, index: str, name: str) -> list[T]:
        """The newest version of all items under a name of an index, including items that the store still lacks."""
        found = {key_of(item): item for item in self._store.by_index(index, name)}
        for key in list(self._members.get(name, ())):
            own = self._written.get(key)
            if own is None:
                self._forget(key, name)
            elif not self._superseded(own, found.get(key)):
                found[key] = own.item
            elif key not in found:
                self._drop(key, own.item)
        return list(found.values())

    def _superseded(self, own: _Write[T], known: T | None) -> bool:
        if known is None:
            return time.monotonic() - own.at_s >= LIMIT_S
        return version_of(known) >= version_of(own.item)

    def _store_changed(self, delta: Delta[T]) -> None:
        own = self._written.get(delta.key)
        if delta.new is None:
            assert delta.old is not None
            self._deleted.discard(delta.old.metadata.uid)
            self._remember_end_of(delta.old.metadata.uid)
            if own is not None and own.item.metadata.uid == delta.old.metadata.uid:
                self._drop(delta.key, own.item)
            return
        self._ended.pop(delta.new.metadata.uid, None)  # a list older than the watch had omitted it
        if own is not None and version_of(delta.new) >= version_of(own.item):
            self._drop(delta.key, own.item)

    def _remember_end_of(self, uid: str) -> None:
        now_s = time.monotonic()
        self._ended[uid] = now_s
        while (oldest := next(iter(self._ended))) and now_s - self._ended[oldest] > LIMIT_S:
            del self._ended[oldest]

    def _drop(self, key: Key, item: T) -> None:
        del self._written[key]
        for name in self._group(item):
            self._forget(key, name)

    def _forget(self, key: Key, name: str) -> None:
        members = self._members.get(name)
        if members is not None:
            members.pop(key, None)
            if not members:
                del self._members[name]


def _alone(item: Named) -> Iterable[str]:  # noqa: ARG001  # the form of a group function
    return ()
