"""The actions of a cycle; the configuration lists them in the order in which they run."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from baton.engine.actions.allocate import allocate
from baton.engine.actions.backfill import backfill
from baton.engine.actions.enqueue import enqueue
from baton.engine.actions.gangevict import gangpreempt, gangreclaim
from baton.engine.actions.preempt import preempt
from baton.engine.actions.reclaim import reclaim
from baton.engine.actions.shuffle import shuffle
from baton.engine.session.session import Session


class Action(NamedTuple):
    """One step of a cycle."""

    run: Callable[[Session], None]
    evicts: bool = False
    """The action may evict pods to make room."""
    works_when_idle: bool = False
    """The action has work even when no job waits."""


ACTIONS: Mapping[str, Action] = {
    "enqueue": Action(enqueue),
    "allocate": Action(allocate),
    "backfill": Action(backfill),
    "preempt": Action(preempt, evicts=True),
    "reclaim": Action(reclaim, evicts=True),
    "gangpreempt": Action(gangpreempt, evicts=True),
    "gangreclaim": Action(gangreclaim, evicts=True),
    "shuffle": Action(shuffle, evicts=True, works_when_idle=True),
}
