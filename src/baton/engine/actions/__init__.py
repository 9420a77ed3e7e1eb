"""What a cycle does, in the order the configuration lists it."""

from collections.abc import Callable, Mapping

from baton.engine.actions.allocate import allocate
from baton.engine.actions.backfill import backfill
from baton.engine.actions.enqueue import enqueue
from baton.engine.actions.gangevict import gangpreempt, gangreclaim
from baton.engine.actions.preempt import preempt
from baton.engine.actions.reclaim import reclaim
from baton.engine.actions.shuffle import shuffle
from baton.engine.session.session import Session

ACTIONS: Mapping[str, Callable[[Session], None]] = {
    "enqueue": enqueue,
    "allocate": allocate,
    "backfill": backfill,
    "preempt": preempt,
    "reclaim": reclaim,
    "gangpreempt": gangpreempt,
    "gangreclaim": gangreclaim,
    "shuffle": shuffle,
}
