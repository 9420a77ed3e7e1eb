"""The state of a queue: pure rules from the present state to the next one.

A queue is Open, Closing (closed, with PodGroups left) or Closed. A Command opens or closes it. A queue below a closed
one is closed and opened with it, unless a command closed the queue itself: the annotation `volcano.sh/closed-by-parent`
tells the two cases apart. A state that a user wrote into the status stays.

The rules use one queue and its parent only. A whole tree follows, because a change of the parent's state triggers a
sync of its children. Nothing is remembered between two syncs, so after a restart in the middle of closing a tree, the
program goes on where it was.
"""

from collections.abc import Sequence
from typing import NamedTuple

from baton.model.meta import ObjectEvent
from baton.model.names import CLOSED_BY_PARENT, ROOT_QUEUE, BusAction, QueueState
from baton.model.volcano import Command, Queue

SHUT = frozenset({QueueState.CLOSED, QueueState.CLOSING})
_STANDING = frozenset(QueueState)


class Verdict(NamedTuple):
    """The wanted state of the queue."""

    state: str
    closed_by_parent: bool
    events: tuple[ObjectEvent, ...] = ()


def judge(queue: Queue, parent: Queue | None, groups: int, commands: Sequence[Command] = ()) -> Verdict:
    """The wanted state of the queue, after these commands in this order and below this parent.

    `parent` is None for the root, and when the named queue does not exist. `groups` is the number of PodGroups in the
    queue.
    """
    name = queue.metadata.name
    state = queue.status.state or QueueState.OPEN
    if state not in _STANDING:
        state = QueueState.UNKNOWN
    by_parent = queue.metadata.annotations.get(CLOSED_BY_PARENT) == "true"
    under_shut = parent is not None and parent.status.state in SHUT
    shut = QueueState.CLOSED if groups == 0 else QueueState.CLOSING
    events: list[ObjectEvent] = []
    for command in commands:
        if command.action == BusAction.CLOSE_QUEUE:
            if name == ROOT_QUEUE:
                events.append(
                    ObjectEvent(command.action, "the root queue cannot be closed; close its children", warning=True)
                )
                continue
            by_parent = False
            if state not in SHUT:
                state = shut
                events.append(
                    ObjectEvent(command.action, f"closed by a command; the queue still has {groups} PodGroups")
                )
        elif command.action == BusAction.OPEN_QUEUE:
            if under_shut and parent is not None:
                reason = f"its parent {parent.metadata.name} is {parent.status.state}"
                words = f"cannot be opened: {reason}; open the parent first"
                events.append(ObjectEvent(command.action, words, warning=True))
                continue
            by_parent = False
            if state != QueueState.OPEN:
                state = QueueState.OPEN
                events.append(ObjectEvent(command.action, "opened by a command"))
        else:
            expected = f"{BusAction.OPEN_QUEUE} or {BusAction.CLOSE_QUEUE}"
            events.append(
                ObjectEvent(
                    "UnknownAction",
                    f"the command {command.action!r} does not apply to queues, expected {expected}",
                    True,
                )
            )
    if under_shut and parent is not None and state not in SHUT:
        state, by_parent = shut, True
        events.append(ObjectEvent(BusAction.CLOSE_QUEUE, f"closed because its parent {parent.metadata.name} is closed"))
    elif by_parent and not under_shut and state in SHUT:
        state, by_parent = QueueState.OPEN, False
        events.append(ObjectEvent(BusAction.OPEN_QUEUE, "opened because its parent is open again"))
    if state == QueueState.CLOSING and groups == 0:
        state = QueueState.CLOSED
    return Verdict(state, by_parent and state in SHUT, tuple(events))
