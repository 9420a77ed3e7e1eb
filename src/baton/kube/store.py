"""The known objects of one kind: by key, and by any index that a reader declares.

Only the reflector writes. A reader sees each object in the last version from the server; objects are frozen and
replaced whole, so a reference stays consistent. Subscribers get deltas in the order of the watch; a subscriber that
fails at one object misses that delta and gets all others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from baton.model.ids import Key


class Metadata(Protocol):
    """The metadata fields that identify objects and their versions."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class Named(Protocol):
    """Anything with Kubernetes metadata."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=Named)


class Delta(NamedTuple, Generic[T]):
    """One change: `old` is None for an addition, `new` is None for a removal."""

    key: Key
    old: T | None
    new: T | None


Index = Callable[[T], Iterable[str]]
Subscriber = Callable[[Delta[T]], None]


def key_of(item: Named) -> Key:
    metadata = item.metadata
    return Key(f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name)


def version_of(item: Named) -> int:
    """Which of two objects of one kind is newer: Kubernetes lets their versions be compared as numbers."""
    text = item.metadata.resource_version
    return int(text) if text.isdigit() else 0


class Store(Generic[T]):
    """Objects by key and by index."""

    def __init__(self, indexes: Mapping[str, Index[T]] | None = None) -> None:
        self._items: dict[Key, T] = {}
        self._indexes = dict(indexes or {})
        self._entries: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._indexes}
        self._subscribers: list[Subscriber[T]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def get(self, key: Key) -> T | None:
        return self._items.get(key)

    def by_index(self, index: str, value: str) -> list[T]:
        """The objects whose index contains the value, in the order of their arrival."""
        return [self._items[key] for key in self._entries[index].get(value, ())]

    def add_index(self, name: str, index: Index[T]) -> None:
        """Index all present and future objects; an existing index of that name stays."""
        if name in self._indexes:
            return
        self._indexes[name] = index
        entries = self._entries[name] = {}
        for key, item in self._items.items():
            for value in index(item):
                entries.setdefault(value, {})[key] = None

    def subscribe(self, subscriber: Subscriber[T]) -> None:
        """Call `subscriber` for all present objects, as additions, and then for every change."""
        self._subscribers.append(subscriber)
        for key, item in self._items.items():
            _tell(subscriber, Delta(key, None, item))

    def put(self, item: T) -> None:
        """Add or replace an object; a version that is already present causes no delta."""
        key = key_of(item)
        old = self._items.get(key)
        if old is not None and old.metadata.resource_version == item.metadata.resource_version:
            return
        if old is not None and old.metadata.uid != item.metadata.uid:
            # Deleted and created again between two lists: readers must see the removal of the first object.
            self.remove(key)
            old = None
        self._items[key] = item
        self._reindex(key, old, item)
        self._tell(Delta(key, old, item))

    def remove(self, key: Key) -> None:
        old = self._items.pop(key, None)
        if old is not None:
            self._reindex(key, old, None)
            self._tell(Delta(key, old, None))

    def replace(self, items: Iterable[T]) -> None:
        """Make the store equal to a fresh list: remove other objects, and send all deltas."""
        fresh = {key_of(item): item for item in items}
        for key in [key for key in self._items if key not in fresh]:
            self.remove(key)
        for item in fresh.values():
            self.put(item)

    def _reindex(self, key: Key, old: T | None, new: T | None) -> None:
        for name, index in self._indexes.items():
            entries = self._entries[name]
            before = set(index(old)) if old is not None else set()
            after = set(index(new)) if new is not None else set()
            for value in before - after:
                entries[value].pop(key)
                if not entries[value]:
                    del entries[value]
            for value in after - before:
                entries.setdefault(value, {})[key] = None

    def _tell(self, delta: Delta[T]) -> None:
        for subscriber in self._subscribers:
            _tell(subscriber, delta)


def _tell(subscriber: Subscriber[T], delta: Delta[T]) -> None:
    try:
        subscriber(delta)
    except Exception:  # one odd object must not block all others after every start
        # As in `decoding`: a rare log line must not slow down the start of a command.
        import structlog

        structlog.get_logger("baton.kube").exception(
            "internal error; the object is skipped", kind=type(delta.new or delta.old).__name__, key=delta.key
        )
