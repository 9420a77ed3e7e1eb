"""One invalid object among many is left out and logged; the others are decoded."""

import msgspec
import pytest
import structlog.testing

from baton.kube.decoding import WatchEvent, decode_page, event_decoder
from baton.kube.errors import GoneError
from baton.model.meta import Metadata


class Thing(msgspec.Struct, frozen=True):
    metadata: Metadata
    size: int = 0


def thing(name: str, size: object = 1) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "n", "resourceVersion": "7"}, "size": size}


def line(kind: str, what: dict[str, object]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": what})


def test_a_list_leaves_out_unreadable_objects() -> None:
    listed = {"metadata": {"resourceVersion": "9"}, "items": [thing("a"), thing("odd", "large"), thing("b")]}
    with structlog.testing.capture_logs() as said:
        page = decode_page(msgspec.json.encode(listed), Thing)
    assert [item.metadata.name for item in page.items] == ["a", "b"]
    assert page.resource_version == "9"
    assert [(each["kind"], each["namespace"], each["name"]) for each in said] == [("Thing", "n", "odd")]
    assert "size" in said[0]["error"]


@pytest.mark.parametrize("items", [[], None])
def test_a_list_of_nothing(items: list[object] | None) -> None:
    assert decode_page(msgspec.json.encode({"metadata": {}, "items": items}), Thing).items == []


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
def test_a_watch_continues_after_an_unreadable_object(kind: str) -> None:
    decode = event_decoder(Thing)
    with structlog.testing.capture_logs() as said:
        assert decode(line(kind, thing("odd", "large"))) == WatchEvent(kind, "7", None)
    assert [each["name"] for each in said] == ["odd"]
    assert decode(line(kind, thing("a"))).object == Thing(Metadata(name="a", namespace="n", resource_version="7"), 1)


def test_the_removal_of_an_unreadable_object_needs_a_new_list() -> None:
    with pytest.raises(GoneError):
        event_decoder(Thing)(line("DELETED", thing("odd", "large")))
