"""A store together with this program's own writes."""

import msgspec
import pytest

from baton.controllers import expectations as module
from baton.controllers.expectations import FreshStore
from baton.kube.store import Store
from baton.model.ids import Key
from baton.model.meta import Metadata


class Thing(msgspec.Struct, frozen=True):
    metadata: Metadata
    of: str = "a"


def thing(version: int, uid: str = "u1", name: str = "x", of: str = "a") -> Thing:
    return Thing(Metadata(name=name, namespace="n", uid=uid, resource_version=str(version)), of)


def members_of(item: Thing) -> tuple[str, ...]:
    return (item.of,)


KEY = Key("n/x")


def a_pair() -> tuple[Store[Thing], FreshStore[Thing]]:
    store: Store[Thing] = Store({"of": members_of})
    return store, FreshStore(store, members_of)


def test_a_write_is_visible_before_the_store_has_it() -> None:
    store, echoes = a_pair()
    echoes.wrote(thing(5))
    assert echoes.get(KEY) == thing(5)
    assert echoes.members("of", "a") == [thing(5)]
    assert store.get(KEY) is None


def test_an_own_write_is_distinguished_from_a_foreign_one() -> None:
    _, echoes = a_pair()
    assert not echoes.is_own(thing(5))
    echoes.wrote(thing(5))
    assert echoes.is_own(thing(5))
    assert not echoes.is_own(thing(6))


def test_the_store_wins_as_soon_as_its_version_is_as_new() -> None:
    store, echoes = a_pair()
    store.put(thing(3))
    echoes.wrote(thing(5))
    store.put(thing(4))
    assert echoes.get(KEY) == thing(5)
    store.put(thing(6))
    assert echoes.get(KEY) == thing(6)
    assert echoes.members("of", "a") == [thing(6)]


def test_nine_is_older_than_ten() -> None:
    store, echoes = a_pair()
    store.put(thing(9))
    echoes.wrote(thing(10))
    assert echoes.get(KEY) == thing(10)


def test_a_deleted_object_does_not_come_back() -> None:
    store, echoes = a_pair()
    echoes.wrote(thing(5))
    store.put(thing(5))
    echoes.wrote(thing(6))
    store.remove(KEY)
    assert echoes.get(KEY) is None
    assert echoes.members("of", "a") == []


def test_a_later_object_of_the_same_name_is_kept() -> None:
    store, echoes = a_pair()
    store.put(thing(5, "old"))
    echoes.wrote(thing(9, "new"))
    store.remove(KEY)
    assert echoes.get(KEY) == thing(9, "new")


def test_a_deletion_counts_until_the_object_is_gone() -> None:
    store, echoes = a_pair()
    store.put(thing(5))
    echoes.deleted(thing(5))
    assert echoes.is_deleted(thing(5))
    assert not echoes.is_deleted(thing(7, "another"))
    store.remove(KEY)
    assert not echoes.is_deleted(thing(5))


def test_groups_are_kept_apart() -> None:
    store, echoes = a_pair()
    echoes.wrote(thing(5, of="a"))
    echoes.wrote(thing(6, name="y", uid="u2", of="b"))
    assert [item.metadata.name for item in echoes.members("of", "b")] == ["y"]
    store.put(thing(7, name="z", uid="u3", of="b"))
    assert [item.metadata.name for item in echoes.members("of", "b")] == ["z", "y"]


@pytest.mark.parametrize("shown", [True, False], ids=["changed", "made"])
def test_an_answer_after_the_end_of_its_object_is_ignored(shown: bool) -> None:
    """Answers and the watch use two connections, and either may be read first."""
    store, echoes = a_pair()
    store.put(thing(5))
    if shown:
        echoes.wrote(thing(5))
    store.remove(KEY)
    echoes.wrote(thing(6))
    assert echoes.get(KEY) is None
    assert echoes.members("of", "a") == []


def test_an_object_missing_from_an_old_list_lives_on() -> None:
    store, echoes = a_pair()
    store.put(thing(5))
    store.replace([])
    store.put(thing(5))
    echoes.wrote(thing(6))
    assert echoes.get(KEY) == thing(6)


def test_an_object_that_is_never_shown_is_given_up_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was removed while the watch was cut, and no event will report that."""
    store, echoes = a_pair()
    assert echoes.unseen_s("a") is None
    echoes.wrote(thing(5))
    assert module.LIMIT_S - 5 < (echoes.unseen_s("a") or 0.0) <= module.LIMIT_S
    monkeypatch.setattr(module, "LIMIT_S", 0.0)
    assert echoes.members("of", "a") == []
    assert echoes.unseen_s("a") is None
    monkeypatch.undo()
    assert echoes.get(KEY) is None
    echoes.wrote(thing(7))
    store.put(thing(7))
    assert echoes.unseen_s("a") is None


def test_a_deletion_answered_after_the_end_was_shown_leaves_nothing_behind() -> None:
    """A uid never returns, so a remembered one would stay in memory."""
    store, echoes = a_pair()
    store.put(thing(5))
    store.remove(KEY)
    echoes.deleted(thing(5))
    assert not echoes._deleted
