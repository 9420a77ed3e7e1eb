"""The states of queues by commands and parents: single rules, then whole trees with random commands and crashes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.controllers.queue.states import SHUT, Verdict, judge
from baton.model.meta import Metadata
from baton.model.names import CLOSED_BY_PARENT, BusAction
from baton.model.volcano import Command, Queue, QueueSpec, QueueStatus

CLOSE = Command(Metadata(), action=BusAction.CLOSE_QUEUE)
OPEN = Command(Metadata(), action=BusAction.OPEN_QUEUE)


def queue(name: str = "team", state: str = "Open", *, parent: str = "root", by_parent: bool = False) -> Queue:
    annotations = {CLOSED_BY_PARENT: "true"} if by_parent else {}
    return Queue(Metadata(name=name, annotations=annotations), QueueSpec(parent=parent), QueueStatus(state=state))


ROOT = queue("root", parent="")


@pytest.mark.parametrize(
    ("before", "commands", "groups", "after"),
    [
        ("", (), 0, "Open"),
        ("Open", (CLOSE,), 0, "Closed"),
        ("Open", (CLOSE,), 3, "Closing"),
        ("Closing", (), 3, "Closing"),
        ("Closing", (), 0, "Closed"),
        ("Closed", (), 2, "Closed"),
        ("Closed", (OPEN,), 0, "Open"),
        ("Closing", (OPEN,), 2, "Open"),
        ("Open", (CLOSE, OPEN), 0, "Open"),
        ("Open", (OPEN, CLOSE), 0, "Closed"),
        ("Sideways", (), 0, "Unknown"),
        ("Unknown", (), 0, "Unknown"),
        ("Unknown", (OPEN,), 0, "Open"),
        ("Unknown", (CLOSE,), 1, "Closing"),
    ],
)
def test_the_state_follows_commands_and_groups(
    before: str, commands: tuple[Command, ...], groups: int, after: str
) -> None:
    assert judge(queue(state=before), ROOT, groups, commands).state == after


def test_a_child_is_closed_with_its_parent_and_opened_with_it() -> None:
    parent = queue("parent", "Closed")
    closed = judge(queue(), parent, 0)
    assert (closed.state, closed.closed_by_parent) == ("Closed", True)
    opened = judge(queue(state="Closed", by_parent=True), queue("parent"), 0)
    assert (opened.state, opened.closed_by_parent) == ("Open", False)


def test_a_child_that_was_closed_by_command_stays_closed_when_its_parent_opens() -> None:
    assert judge(queue(state="Closed"), queue("parent"), 0) == Verdict("Closed", closed_by_parent=False)


def test_an_open_queue_loses_the_mark_of_being_closed_with_its_parent() -> None:
    """A program that died after opening the queue left the mark; a later manual closing must not be undone."""
    assert judge(queue(by_parent=True), queue("parent"), 0) == Verdict("Open", closed_by_parent=False)


def test_a_command_keeps_a_child_closed_that_was_closed_with_its_parent() -> None:
    verdict = judge(queue(state="Closed", by_parent=True), queue("parent", "Closed"), 0, [CLOSE])
    assert (verdict.state, verdict.closed_by_parent) == ("Closed", False)


def test_a_child_cannot_be_opened_below_a_closed_parent_and_the_event_tells_why() -> None:
    verdict = judge(queue(state="Closed", by_parent=True), queue("parent", "Closing"), 0, [OPEN])
    assert (verdict.state, verdict.closed_by_parent) == ("Closed", True)
    (event,) = verdict.events
    assert event.warning
    assert event.message == "cannot be opened: its parent parent is Closing; open the parent first"


def test_the_root_cannot_be_closed() -> None:
    verdict = judge(ROOT, None, 0, [CLOSE])
    assert verdict.state == "Open"
    assert verdict.events[0].warning


def test_a_command_that_does_not_apply_to_queues_is_reported() -> None:
    verdict = judge(queue(), ROOT, 0, [Command(Metadata(), action="AbortJob")])
    assert verdict.state == "Open"
    expected = "the command 'AbortJob' does not apply to queues, expected OpenQueue or CloseQueue"
    assert verdict.events[0].message == expected


class Tree:
    """Queues that are synced one by one, as in the controller, until nothing changes."""

    def __init__(self, parents: list[int]) -> None:
        self.queues = {"root": ROOT}
        for number, parent in enumerate(parents):
            over = f"q{parent % number}" if number and parent else "root"
            self.queues[f"q{number}"] = queue(f"q{number}", parent=over)

    def parent(self, name: str) -> Queue | None:
        return self.queues.get(self.queues[name].spec.parent)

    def look(self, name: str, *commands: Command, dies_between: bool = False) -> bool:
        """One sync; `dies_between` makes only the first of its two writes."""
        before = self.queues[name]
        verdict = judge(before, self.parent(name), 0, commands)
        status = msgspec.structs.replace(before.status, state=verdict.state)
        mark = {CLOSED_BY_PARENT: str(verdict.closed_by_parent).lower()}
        metadata = msgspec.structs.replace(before.metadata, annotations=mark)
        if dies_between and verdict.closed_by_parent:
            status = before.status
        elif dies_between:
            metadata = before.metadata
        self.queues[name] = msgspec.structs.replace(before, metadata=metadata, status=status)
        return judge(before, self.parent(name), 0) != Verdict(before.status.state, _marked(before))

    def settle(self) -> None:
        for _ in range(len(self.queues) + 1):
            changed = [name for name in self.queues if self.look(name)]
            if not changed:
                return
        raise AssertionError("the tree does not come to rest")


def _marked(one: Queue) -> bool:
    return one.metadata.annotations.get(CLOSED_BY_PARENT) == "true"


trees = st.lists(st.integers(0, 5), min_size=1, max_size=7).map(Tree)
orders = st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.booleans()), max_size=12)


@given(trees, orders)
def test_a_tree_comes_to_rest_with_no_open_queue_under_a_closed_one(
    tree: Tree, steps: list[tuple[int, bool, bool]]
) -> None:
    for number, close, dies in steps:
        name = f"q{number % (len(tree.queues) - 1)}"
        tree.look(name, CLOSE if close else OPEN, dies_between=dies)
        tree.settle()
        for one in tree.queues.values():
            parent = tree.parent(one.metadata.name)
            assert not (parent and parent.status.state in SHUT and one.status.state == "Open")


@given(trees, st.data())
def test_closing_and_opening_a_parent_leaves_the_tree_as_it_was(tree: Tree, data: st.DataObject) -> None:
    names = [name for name in tree.queues if name != "root"]
    for name in data.draw(st.lists(st.sampled_from(names), unique=True)):
        tree.look(name, CLOSE)
        tree.settle()
    before = {name: one.status.state for name, one in tree.queues.items()}
    top = data.draw(st.sampled_from([name for name in names if tree.queues[name].spec.parent == "root"]))
    if before[top] in SHUT:
        return
    tree.look(top, CLOSE)
    tree.settle()
    assert tree.queues[top].status.state == "Closed"
    tree.look(top, OPEN)
    tree.settle()
    assert {name: one.status.state for name, one in tree.queues.items()} == before
