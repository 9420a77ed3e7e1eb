"""The store: what readers see, and that an index never disagrees with the objects."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from baton.kube.store import Delta, Store
from baton.model.ids import Key
from baton.model.meta import Metadata


class Thing(msgspec.Struct, frozen=True):
    metadata: Metadata
    node: str = ""


def thing(name: str, version: int, *, node: str = "", uid: str = "u") -> Thing:
    return Thing(Metadata(name=name, namespace="ns", uid=uid, resource_version=str(version)), node)


def store() -> Store[Thing]:
    return Store({"node": lambda item: [item.node] if item.node else []})


def test_the_same_version_is_no_news() -> None:
    things, told = store(), list[Delta[Thing]]()
    things.subscribe(told.append)
    things.put(thing("a", 1))
    things.put(thing("a", 1))
    assert [(delta.key, delta.old) for delta in told] == [("ns/a", None)]


def test_a_recreated_object_first_removes_the_old_one() -> None:
    things, told = store(), list[Delta[Thing]]()
    things.put(thing("a", 1, uid="first"))
    things.subscribe(told.append)
    things.put(thing("a", 2, uid="second"))
    uids = [(d.old and d.old.metadata.uid, d.new and d.new.metadata.uid) for d in told]
    assert uids == [(None, "first"), ("first", None), (None, "second")]


def test_a_fresh_list_removes_missing_objects() -> None:
    things = store()
    things.put(thing("a", 1, node="n1"))
    things.put(thing("b", 2, node="n1"))
    things.replace([thing("b", 3, node="n2")])
    assert [item.metadata.name for item in things] == ["b"]
    assert things.by_index("node", "n1") == []
    assert things.get(Key("ns/a")) is None


def test_who_fails_at_an_object_hears_of_all_others() -> None:
    """Whatever one object of thousands has in it, a scheduler goes on with the rest."""
    things, told = store(), list[str]()

    def picky(delta: Delta[Thing]) -> None:
        told.append(delta.key)
        if delta.key == "ns/b":
            raise ValueError("not this one")

    things.put(thing("a", 1))
    things.put(thing("b", 2))
    with capture_logs() as logs:
        things.subscribe(picky)
        things.subscribe(lambda delta: told.append(f"{delta.key} too"))
        things.replace([thing("b", 3), thing("c", 4)])
    assert told == ["ns/a", "ns/b", "ns/a too", "ns/b too", "ns/a", "ns/a too", "ns/b", "ns/b too", "ns/c", "ns/c too"]
    assert [(log["kind"], log["key"]) for log in logs] == [("Thing", "ns/b")] * 2


names = st.sampled_from("abcd")
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), names, st.sampled_from(["", "n1", "n2"]), st.sampled_from(["u", "v"])),
        st.tuples(st.just("remove"), names, st.just(""), st.just("")),
        st.tuples(st.just("list"), names, st.sampled_from(["", "n1"]), st.just("w")),
    )
)


@given(changes)
def test_indexes_and_subscribers_always_agree_with_the_objects(steps: list[tuple[str, str, str, str]]) -> None:
    things = store()
    mirror: dict[Key, Thing] = {}

    def follow(delta: Delta[Thing]) -> None:
        assert mirror.get(delta.key) == delta.old
        if delta.new is None:
            del mirror[delta.key]
        else:
            mirror[delta.key] = delta.new

    things.subscribe(follow)
    for version, (what, name, node, uid) in enumerate(steps):
        if version == len(steps) // 2:
            things.add_index("late", lambda item: [item.node] if item.node else [])
        if what == "put":
            things.put(thing(name, version, node=node, uid=uid))
        elif what == "remove":
            things.remove(Key(f"ns/{name}"))
        else:
            things.replace([thing(name, version, node=node, uid=uid)])
    assert {key: things.get(key) for key in mirror} == mirror
    assert len(things) == len(mirror)
    for node in ("n1", "n2"):
        assert sorted(t.metadata.name for t in things.by_index("node", node)) == sorted(
            t.metadata.name for t in mirror.values() if t.node == node
        )
        if steps:
            assert things.by_index("late", node) == things.by_index("node", node)
