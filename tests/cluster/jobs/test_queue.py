"""Queues on a real API server: made at start, opened and closed by commands, as trees, through deaths of a program."""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from testbed.bed import Bed
from tests.cluster.jobs.conftest import ControllerProcess, create, events, path

pytestmark = pytest.mark.cluster


class Queues:
    """Queues that end with the test; names are made unique because queues have no namespace."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.suffix = secrets.token_hex(3)
        self.made: list[str] = []

    def make(self, name: str, **spec: Any) -> str:
        full = f"{name}-{self.suffix}"
        create(self.bed, "queues", {"metadata": {"name": full}, "spec": {"weight": 1, **spec}})
        self.made.append(full)
        self.until(full, "Open")
        return full

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.bed.api.get(path("queues", name=name))
        return found

    def state(self, name: str) -> str:
        return str(self.get(name).get("status", {}).get("state"))

    def until(self, name: str, state: str) -> None:
        self.bed.wait_for(lambda: self.state(name) == state, f"queue {name} to be {state}")

    def order(self, name: str, action: str) -> None:
        """A Command as vcctl sends it."""
        queue = self.get(name)
        target = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "name": name,
            "uid": queue["metadata"]["uid"],
            "controller": True,
        }
        body = {"metadata": {"generateName": f"{name}-{action.lower()}-"}, "action": action, "target": target}
        create(self.bed, "commands", body, "default")

    def until_orders_done(self) -> None:
        def done() -> bool:
            items = self.bed.api.get(path("commands", "default"))["items"]
            return not [item for item in items if item["target"]["name"] in self.made]

        self.bed.wait_for(done, "the commands to be consumed")

    def group(self, namespace: str, name: str, queue: str, phase: str) -> None:
        body = {"metadata": {"name": name}, "spec": {"queue": queue, "minMember": 1}, "status": {"phase": phase}}
        create(self.bed, "podgroups", body, namespace)

    def counts(self, name: str) -> Mapping[str, int]:
        status = self.get(name).get("status", {})
        return {word: status.get(word, 0) for word in ("pending", "inqueue", "running", "unknown", "completed")}


@pytest.fixture
def queues(crd_bed: Bed, controller: ControllerProcess) -> Iterator[Queues]:
    mine = Queues(crd_bed)
    yield mine
    for name in reversed(mine.made):
        crd_bed.api.delete(path("queues", name=name))


def test_root_and_default_are_there_and_come_back(queues: Queues) -> None:
    queues.until("root", "Open")
    queues.until("default", "Open")
    assert queues.get("default")["spec"]["parent"] == "root"
    before = queues.get("default")["metadata"]["uid"]
    queues.bed.api.delete(path("queues", name="default"))
    queues.bed.wait_for(
        lambda: queues.get("default")["metadata"]["uid"] != before, "the default queue to be made again"
    )
    queues.until("default", "Open")


def test_commands_close_and_open_a_queue_and_are_consumed(queues: Queues) -> None:
    name = queues.make("plain")
    queues.bed.wait_for(lambda: queues.get(name)["spec"].get("parent") == "root", "the queue to be put under the root")
    queues.order(name, "CloseQueue")
    queues.until(name, "Closed")
    queues.order(name, "OpenQueue")
    queues.until(name, "Open")
    queues.until_orders_done()
    queues.bed.wait_for(
        lambda: {"CloseQueue", "OpenQueue"} <= {event["reason"] for event in events(queues.bed, "default", name)},
        "the events",
    )


def test_a_queue_with_groups_is_closing_until_they_are_gone_and_counts_them(queues: Queues, namespace: str) -> None:
    name = queues.make("busy")
    queues.group(namespace, "one", name, "Running")
    queues.group(namespace, "two", name, "Inqueue")
    queues.group(namespace, "three", name, "Inqueue")
    wanted = {"pending": 0, "inqueue": 2, "running": 1, "unknown": 0, "completed": 0}
    queues.bed.wait_for(lambda: queues.counts(name) == wanted, f"the counts {wanted}")
    queues.order(name, "CloseQueue")
    queues.until(name, "Closing")
    for group in ("one", "two", "three"):
        queues.bed.api.delete(path("podgroups", namespace, group))
    queues.until(name, "Closed")
    queues.bed.wait_for(lambda: not any(queues.counts(name).values()), "the counts to be zero again")


def test_a_state_that_somebody_writes_stays(queues: Queues) -> None:
    name = queues.make("written")
    queues.bed.api.patch(path("queues", name=name, subresource="status"), {"status": {"state": "Closed"}})
    queues.order(queues.make("later"), "CloseQueue")
    queues.until_orders_done()
    assert queues.state(name) == "Closed"


def test_a_tree_is_closed_and_opened_from_its_top(queues: Queues) -> None:
    top = queues.make("top")
    left, right = queues.make("left", parent=top), queues.make("right", parent=top)
    leaf = queues.make("leaf", parent=left)
    queues.order(right, "CloseQueue")
    queues.until(right, "Closed")
    queues.order(top, "CloseQueue")
    for name in (top, left, leaf):
        queues.until(name, "Closed")
    queues.order(leaf, "OpenQueue")
    queues.until_orders_done()
    assert queues.state(leaf) == "Closed"
    queues.bed.wait_for(
        lambda: any("open the parent first" in event["message"] for event in events(queues.bed, "default", leaf)),
        "the refusal to be explained",
    )
    queues.order(top, "OpenQueue")
    for name in (top, left, leaf):
        queues.until(name, "Open")
    assert queues.state(right) == "Closed"


def test_a_tree_is_closed_by_the_next_replica_when_the_first_is_killed(
    queues: Queues, controller: ControllerProcess, controllers: Any
) -> None:
    top = queues.make("mortal")
    below = [queues.make(f"below{number}", parent=top) for number in range(5)]
    second = controllers(2)
    assert not second.leads
    controller.process.kill()
    queues.order(top, "CloseQueue")
    second.until_leading()
    for name in (top, *below):
        queues.until(name, "Closed")
    controllers(1)
    second.process.kill()
    controller.until_leading()
    queues.order(top, "OpenQueue")
    for name in (top, *below):
        queues.until(name, "Open")
    queues.until_orders_done()
