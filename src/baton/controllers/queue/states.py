"""What becomes of a queue: pure rules from what is there to what has to change.

A queue is Open, Closing (closed, with PodGroups left) or Closed. A Command opens or closes it. A queue under a closed
one is closed with it and opened with it again, unless it had been closed by a command of its own: the annotation
`volcano.sh/closed-by-parent` remembers which of the two it was. A state that somebody wrote into the status stays.

The rules look at one queue and its parent only. A whole tree follows because a change of the parent's state makes the
children be looked at; nothing has to be remembered between two looks, so a program that dies in the middle of closing a
tree goes on where it was.
"""

from collections.abc import Sequence
from typing import NamedTuple

from baton.controllers.object_events import Said
from baton.model.names import CLOSED_BY_PARENT, ROOT_QUEUE, BusAction, QueueState
from baton.model.volcano import Command, Queue

SHUT = frozenset({QueueState.CLOSED, QueueState.CLOSING})
_STANDING = frozenset(QueueState)


class Verdict(NamedTuple):
    """What the queue should be; compare with what it is."""

    state: str
    closed_by_parent: bool
    said: tuple[Said, ...] = ()


def judge(queue: Queue, parent: Queue | None, groups: int, commands: Sequence[Command] = ()) -> Verdict:
    """The state that the queue should have, after these commands in this order and under this parent.

    `parent` is None for the root, and when there is no such queue; `groups` is how many PodGroups are in the queue.
    """
    name = queue.metadata.name
    state = queue.status.state or QueueState.OPEN
    if state not in _STANDING:
        state = QueueState.UNKNOWN
    by_parent = queue.metadata.annotations.get(CLOSED_BY_PARENT) == "true"
    under_shut = parent is not None and parent.status.state in SHUT
    shut = QueueState.CLOSED if groups == 0 else QueueState.CLOSING
    said: list[Said] = []
    for command in commands:
        if command.action == BusAction.CLOSE_QUEUE:
            if name == ROOT_QUEUE:
                said.append(Said(command.action, "the root queue cannot be closed; close its children", warning=True))
                continue
            by_parent = False
            if state not in SHUT:
                state = shut
                said.append(Said(command.action, f"closed by a command; {groups} PodGroups are left in the queue"))
        elif command.action == BusAction.OPEN_QUEUE:
            if under_shut and parent is not None:
                words = f"cannot be opened: its parent {parent.metadata.name} is {parent.status.state}; open that first"
                said.append(Said(command.action, words, warning=True))
                continue
            by_parent = False
            if state != QueueState.OPEN:
                state = QueueState.OPEN
                said.append(Said(command.action, "opened by a command"))
        else:
            expected = f"{BusAction.OPEN_QUEUE} or {BusAction.CLOSE_QUEUE}"
            said.append(
                Said("UnknownAction", f"the command {command.action!r} is not one for a queue: {expected}", True)
            )
    if under_shut and parent is not None and state not in SHUT:
        state, by_parent = shut, True
        said.append(Said(BusAction.CLOSE_QUEUE, f"closed because its parent {parent.metadata.name} is closed"))
    elif by_parent and not under_shut and state in SHUT:
        state, by_parent = QueueState.OPEN, False
        said.append(Said(BusAction.OPEN_QUEUE, "opened because its parent is open again"))
    if state == QueueState.CLOSING and groups == 0:
        state = QueueState.CLOSED
    return Verdict(state, by_parent and state in SHUT, tuple(said))
