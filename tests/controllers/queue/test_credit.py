"""Spending the credit of a queue: each PodGroup that the scheduler does not know yet counts once."""

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
    """Credits with their two stores."""

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


def test_credit_is_spent_once(desk: Desk) -> None:
    desk.say("10", "2500m")
    assert desk.spend("a", "1")
    assert desk.spend("b", "1500m")
    assert not desk.spend("c", "1m")


def test_nothing_is_admitted_without_credit(desk: Desk) -> None:
    assert not desk.spend("a", "1")
    desk.queues.put(queue(None))
    assert not desk.spend("a", "1")
    desk.say("", "8")
    assert not desk.spend("a", "1")


def test_resources_without_credit_are_not_lent(desk: Desk) -> None:
    desk.say("10", "8")
    wanted = PodGroupSpec(min_resources={"cpu": "1", "example.com/gpu": "1"})
    assert not desk.credits.spend(Key("n/a"), wanted)
    assert not desk.spend("b", None)


def test_a_queue_that_is_not_open_lends_nothing(desk: Desk) -> None:
    desk.say("10", "8", state="Closing")
    assert not desk.spend("a", "1")


def test_queues_have_separate_accounts(desk: Desk) -> None:
    desk.say("10", "1")
    desk.say("10", "1", name="other")
    assert desk.spend("a", "1")
    assert desk.spend("b", "1", queue="other")
    desk.queues.remove(Key("other"))
    assert not desk.spend("c", "1", queue="other")


def test_credit_of_a_group_that_was_not_created_is_returned(desk: Desk) -> None:
    desk.say("10", "1")
    assert desk.spend("a", "1")
    desk.credits.not_made(Key("n/a"), "")
    assert desk.spend("b", "1")


def test_credit_of_a_group_created_without_an_answer_is_not_returned(desk: Desk) -> None:
    """The watch may show a group before its request fails, by a lost answer or because the group already exists."""
    desk.say("10", "1")
    assert desk.spend("a", "1")
    desk.groups.put(group("a", 11, "1"))
    desk.credits.not_made(Key("n/a"), "")
    assert not desk.spend("b", "1")
    desk.groups.remove(Key("n/a"))
    assert desk.spend("b", "1")


def test_a_newer_credit_includes_the_groups_that_it_knows(desk: Desk) -> None:
    desk.say("10", "3")
    for name, version in (("a", 11), ("b", 12)):
        assert desk.spend(name, "1")
        desk.credits.made(group(name, version, "1"))
    assert desk.spend("on-its-way", "1")
    desk.say("11", "2")  # it includes neither b nor the group that is being created
    assert not desk.spend("c", "1")
    desk.say("12", "2")
    assert desk.spend("c", "1")
    assert not desk.spend("d", "1")


def test_the_watch_event_of_an_own_group_is_not_counted_twice(desk: Desk) -> None:
    desk.say("10", "2")
    assert desk.spend("a", "1")
    desk.credits.made(group("a", 11, "1"))
    desk.groups.put(group("a", 11, "1"))
    desk.groups.put(group("a", 15, "1"))
    assert desk.spend("b", "1")


def test_a_late_watch_event_of_a_counted_group_has_no_effect(desk: Desk) -> None:
    desk.say("10", "2")
    assert desk.spend("a", "1")
    desk.say("11", "2")
    desk.credits.made(group("a", 11, "1"))
    assert desk.spend("b", "1")
    assert desk.spend("c", "1")


def test_foreign_groups_count_and_deleted_ones_do_not(desk: Desk) -> None:
    desk.say("10", "1")
    desk.groups.put(group("theirs", 11, "1"))
    assert not desk.spend("a", "1")
    desk.groups.remove(Key("n/theirs"))
    assert desk.spend("a", "1")


def test_after_a_restart_the_first_lists_tell_the_remaining_credit(desk: Desk) -> None:
    desk.groups.replace([group("old", 9, "1"), group("new", 11, "1")])
    desk.say("10", "2")
    assert desk.spend("a", "1")
    assert not desk.spend("b", "1")


def test_invalid_amounts_lend_and_count_nothing(desk: Desk) -> None:
    desk.groups.put(group("odd", 11, "many"))
    desk.say("10", "lots")
    assert not desk.spend("a", "1")
    desk.say("10", "1")
    assert desk.spend("a", "1")
