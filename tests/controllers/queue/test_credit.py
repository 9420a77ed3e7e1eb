"""Spending a queue's credit: what is newer than the scheduler knows counts against it, once."""

import itertools
from typing import Any

import msgspec
import pytest

from baton.controllers.queue.credit import QueueCredits
from baton.kube.store import Store
from baton.model.ids import Key
from baton.model.volcano import PodGroup, PodGroupSpec, Queue

VERSIONS = itertools.count(1)


def queue(credit: dict[str, Any] | None, *, name: str = "default", state: str = "Open") -> Queue:
    status = {"state": state, **({"credit": credit} if credit is not None else {})}
    return msgspec.convert(
        {"metadata": {"name": name, "resourceVersion": str(next(VERSIONS))}, "status": status}, Queue
    )


def spec(cpu: str | None, *, queue: str = "") -> PodGroupSpec:
    return PodGroupSpec(queue=queue, min_resources=None if cpu is None else {"cpu": cpu, "requests.cpu": cpu})


def group(name: str, version: int, cpu: str, *, queue: str = "") -> PodGroup:
    metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version)}
    wanted = {"queue": queue, "minResources": {"cpu": cpu, "pods": "1", "count/pods": "1"}}
    return msgspec.convert({"metadata": metadata, "spec": wanted}, PodGroup)


class Desk:
    """Credits with the two stores that they read."""

    def __init__(self) -> None:
        self.queues: Store[Queue] = Store()
        self.groups: Store[PodGroup] = Store()
        self.credits = QueueCredits(self.queues, self.groups)

    def say(self, as_of: str, cpu: str, **more: Any) -> None:
        self.queues.put(queue({"asOf": as_of, "amounts": {"cpu": cpu, "pods": "100"}}, **more))

    def spend(self, name: str, cpu: str | None, *, queue: str = "") -> bool:
        return self.credits.spend(Key(f"n/{name}"), spec(cpu, queue=queue))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_it_is_spent_once(desk: Desk) -> None:
    desk.say("10", "2500m")
    assert desk.spend("a", "1")
    assert desk.spend("b", "1500m")
    assert not desk.spend("c", "1m")


def test_nothing_is_let_in_without_it(desk: Desk) -> None:
    assert not desk.spend("a", "1")
    desk.queues.put(queue(None))
    assert not desk.spend("a", "1")
    desk.say("", "8")
    assert not desk.spend("a", "1")


def test_what_is_not_mentioned_is_not_lent(desk: Desk) -> None:
    desk.say("10", "8")
    wanted = PodGroupSpec(min_resources={"cpu": "1", "example.com/gpu": "1"})
    assert not desk.credits.spend(Key("n/a"), wanted)
    assert not desk.spend("b", None)


def test_a_queue_that_is_not_open_lends_nothing(desk: Desk) -> None:
    desk.say("10", "8", state="Closing")
    assert not desk.spend("a", "1")


def test_queues_have_accounts_of_their_own(desk: Desk) -> None:
    desk.say("10", "1")
    desk.say("10", "1", name="other")
    assert desk.spend("a", "1")
    assert desk.spend("b", "1", queue="other")
    desk.queues.remove(Key("other"))
    assert not desk.spend("c", "1", queue="other")


def test_what_was_not_made_after_all_is_given_back(desk: Desk) -> None:
    desk.say("10", "1")
    assert desk.spend("a", "1")
    desk.credits.not_made(Key("n/a"), "")
    assert desk.spend("b", "1")


def test_what_was_made_though_the_answer_was_lost_is_not_given_back(desk: Desk) -> None:
    """The watch may show a group before its request fails, for want of an answer or because it is there already."""
    desk.say("10", "1")
    assert desk.spend("a", "1")
    desk.groups.put(group("a", 11, "1"))
    desk.credits.not_made(Key("n/a"), "")
    assert not desk.spend("b", "1")
    desk.groups.remove(Key("n/a"))
    assert desk.spend("b", "1")


def test_a_newer_credit_has_counted_what_it_knows(desk: Desk) -> None:
    desk.say("10", "3")
    for name, version in (("a", 11), ("b", 12)):
        assert desk.spend(name, "1")
        desk.credits.made(group(name, version, "1"))
    assert desk.spend("on-its-way", "1")
    desk.say("11", "2")  # b and the one that is on its way are not in it
    assert not desk.spend("c", "1")
    desk.say("12", "2")
    assert desk.spend("c", "1")
    assert not desk.spend("d", "1")


def test_the_echo_of_an_own_group_is_not_counted_twice(desk: Desk) -> None:
    desk.say("10", "2")
    assert desk.spend("a", "1")
    desk.credits.made(group("a", 11, "1"))
    desk.groups.put(group("a", 11, "1"))
    desk.groups.put(group("a", 15, "1"))
    assert desk.spend("b", "1")


def test_a_late_echo_of_what_is_counted_already_counts_for_nothing(desk: Desk) -> None:
    desk.say("10", "2")
    assert desk.spend("a", "1")
    desk.say("11", "2")
    desk.credits.made(group("a", 11, "1"))
    assert desk.spend("b", "1")
    assert desk.spend("c", "1")


def test_groups_of_others_count_too_and_a_deleted_one_no_more(desk: Desk) -> None:
    desk.say("10", "1")
    desk.groups.put(group("theirs", 11, "1"))
    assert not desk.spend("a", "1")
    desk.groups.remove(Key("n/theirs"))
    assert desk.spend("a", "1")


def test_after_a_restart_the_first_lists_say_what_is_left(desk: Desk) -> None:
    desk.groups.replace([group("old", 9, "1"), group("new", 11, "1")])
    desk.say("10", "2")
    assert desk.spend("a", "1")
    assert not desk.spend("b", "1")


def test_what_cannot_be_read_lends_and_counts_nothing(desk: Desk) -> None:
    desk.groups.put(group("odd", 11, "many"))
    desk.say("10", "lots")
    assert not desk.spend("a", "1")
    desk.say("10", "1")
    assert desk.spend("a", "1")
