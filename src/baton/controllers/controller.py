"""The interface of a controller, and what all controllers share.

A controller receives the keys of changed objects and makes the world match the object of each key. It is
*level-triggered*: `sync` looks at the present state and never at the change, so the next sync makes up for a change
that was missed because the program was dead or the watch was cut. All its actions must be safe to repeat: names are
derived, deletions carry a uid, and the stores may be older than the controller's own last write.
"""

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from baton.kube.client import Client
from baton.kube.informers import Scope
from baton.kube.recorder import Recorder
from baton.model.ids import Key
from baton.model.names import SCHEDULER_NAMES
from baton.observe.metrics import Metrics

Wake = Callable[[Key], None]
"""Queue this key for a sync."""


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class Surroundings:
    """What all controllers of the program share in one term."""

    client: Client
    recorder: Recorder
    metrics: Metrics = field(default_factory=Metrics)
    """Where a controller declares its own metrics."""
    scheduler_names: tuple[str, ...] = SCHEDULER_NAMES
    """The controllers manage pods with one of these in `schedulerName`."""
    now: Callable[[], datetime.datetime] = utc_now


class Controller(Protocol):
    """Reconciles one kind of object. The program creates a new one for each term that it leads."""

    @property
    def name(self) -> str:
        """The name in logs, metrics and `--controllers`."""

    def watch(self, scope: Scope, wake: Wake) -> None:
        """Request stores and subscribe to them. A change wakes the key that it concerns.

        Called once, before anything is listed: the first lists arrive as additions. The controller chooses its keys;
        they need not be those of the store.
        """

    async def sync(self, key: Key) -> float | None:
        """Reconcile, and return the number of seconds after which to sync again even if nothing changes.

        One worker at a time syncs a key. After an exception the sync is repeated, with growing pauses.
        """


MakeController = Callable[[Surroundings], Controller]
