"""What a controller is, and what it is given.

A controller is told of changes by key and makes the world fit the object of that key. It is *level-triggered*: `sync`
looks at what is there now, never at what has changed, so that a change that nobody saw (the program was dead, the watch
was cut) is made up for by the next look. Whatever it does must be safe to do twice: names are derived, deletions carry
a uid, and the stores may be older than what the controller itself has just written.
"""

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from baton.kube.client import Client
from baton.kube.informers import Scope
from baton.kube.recorder import Recorder
from baton.kube.store import Key
from baton.observe.metrics import Metrics

SCHEDULER_NAMES = ("baton", "volcano")

Wake = Callable[[Key], None]
"""Have this key synced soon."""


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class Surroundings:
    """What all controllers of the program share."""

    client: Client
    recorder: Recorder
    metrics: Metrics = field(default_factory=Metrics)
    """Where a controller declares its own metrics."""
    scheduler_names: tuple[str, ...] = SCHEDULER_NAMES
    """Pods with one of these in `schedulerName` are ours."""
    now: Callable[[], datetime.datetime] = utc_now


class Controller(Protocol):
    """One kind of object kept true. A new one is made each time that the program begins to lead."""

    @property
    def name(self) -> str:
        """The name in logs, metrics and `--controllers`."""

    def watch(self, scope: Scope, wake: Wake) -> None:
        """Ask for the stores and subscribe to them; a change becomes a `wake` of the key that it concerns.

        Called once, before anything is listed: the first lists come as additions. Keys are the controller's own
        affair, they need not be those of the store.
        """

    async def sync(self, key: Key) -> float | None:
        """Make the world fit; returns after how many seconds to look again though nothing may have changed.

        A key is synced by one worker at a time. An exception means: again, after a pause that grows.
        """


MakeController = Callable[[Surroundings], Controller]
