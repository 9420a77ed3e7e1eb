"""Lists and watch events as typed objects; an object that does not fit its type is left out and logged.

An API server stores every object that passed the schema of its time, so one invalid object must not hide the thousands
beside it. Decoding is one pass over all objects; only if that fails are they decoded one by one.
"""

from collections.abc import Callable
from typing import Generic

import msgspec

from baton.kube import errors
from baton.kube.errors import GoneError
from baton.model.resource import T

_BOOKMARK, _ERROR = b'{"type":"BOOKMARK"', b'{"type":"ERROR"'


class Page(msgspec.Struct, Generic[T]):
    """One page of a list."""

    items: list[T]
    resource_version: str
    continue_token: str


class WatchEvent(msgspec.Struct, Generic[T]):
    """One line of a watch; `object` is None for a bookmark, and for an object that cannot be read."""

    type: str
    resource_version: str
    object: T | None


class _ListMeta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_token: str = msgspec.field(name="continue", default="")


class _RawList(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: msgspec.Raw = msgspec.Raw(b"[]")


class _Envelope(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Known(msgspec.Struct):
    """The fields of any object."""

    class Meta(msgspec.Struct):
        name: str = ""
        namespace: str = ""
        resource_version: str = msgspec.field(name="resourceVersion", default="")

    metadata: Meta = msgspec.field(default_factory=Meta)


def decode_page(body: bytes, kind: type[T]) -> Page[T]:
    """The answer to a list."""
    raw = msgspec.json.decode(body, type=_RawList)
    try:
        items: list[T] | None = msgspec.json.decode(raw.items, type=list[kind] | None)  # type: ignore[valid-type]  # a type that is known at run time
    except msgspec.ValidationError:
        items = [
            item for one in msgspec.json.decode(raw.items, type=list[msgspec.Raw]) for item in _readable(one, kind)
        ]
    return Page(items or [], raw.metadata.resource_version, raw.metadata.continue_token)


def _readable(one: msgspec.Raw, kind: type[T]) -> list[T]:
    try:
        return [msgspec.json.decode(one, type=kind)]
    except msgspec.ValidationError as error:
        _left_out(one, kind, error)
        return []


def _left_out(one: msgspec.Raw, kind: type[T], error: msgspec.ValidationError) -> _Known:
    # structlog imports rich and pygments, which would double the start time of a command for a rare log line.
    import structlog

    known = msgspec.json.decode(one, type=_Known)
    structlog.get_logger("baton.kube").error(
        "object left out",
        kind=kind.__name__,
        namespace=known.metadata.namespace,
        name=known.metadata.name,
        error=str(error),
    )
    return known


def event_decoder(kind: type[T]) -> Callable[[bytes], WatchEvent[T]]:
    """A decoder for one line. Objects take one pass; bookmarks and errors carry an object of another shape."""
    whole = msgspec.json.Decoder(msgspec.defstruct("TypedEvent", [("type", str), ("object", kind)])).decode

    def decode(line: bytes) -> WatchEvent[T]:
        if line.startswith((_BOOKMARK, _ERROR)):
            return special(line)
        try:
            event = whole(line)
        except msgspec.ValidationError as error:
            return unreadable(line, error)
        return WatchEvent(event.type, event.object.metadata.resource_version, event.object)  # type: ignore[attr-defined]  # every kind has metadata

    def special(line: bytes) -> WatchEvent[T]:
        envelope = msgspec.json.decode(line, type=_Envelope)
        if envelope.type == "ERROR":
            raise errors.from_answer(500, bytes(envelope.object))
        return WatchEvent(
            envelope.type, msgspec.json.decode(envelope.object, type=_Known).metadata.resource_version, None
        )

    def unreadable(line: bytes, error: msgspec.ValidationError) -> WatchEvent[T]:
        envelope = msgspec.json.decode(line, type=_Envelope)
        known = _left_out(envelope.object, kind, error)
        if envelope.type == "DELETED":  # an earlier version of it may be in the store; only a new list can tell
            raise GoneError(410, "Expired", f"{kind.__name__} {known.metadata.name} was deleted and cannot be read")
        return WatchEvent(envelope.type, known.metadata.resource_version, None)

    return decode
