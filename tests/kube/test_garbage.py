"""The collector skips the objects of the first lists, and collects them once they are dropped."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from baton.kube import garbage


class Ring:
    """Refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.enable()


def test_nothing_is_looked_through_while_the_lists_come_in() -> None:
    with garbage.filling():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_was_listed_is_passed_over_until_the_term_ends() -> None:
    with garbage.filling():
        listed = Ring()
    alive = weakref.ref(listed)
    del listed
    gc.collect()
    assert alive() is not None
    garbage.thaw()
    gc.collect()
    assert alive() is None


def test_lists_that_fail_leave_the_collector_as_it_was() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(OSError, match="no answer"), garbage.filling():
        raise OSError("no answer")
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
