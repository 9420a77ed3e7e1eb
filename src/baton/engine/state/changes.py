"""Kinds of change, counted, so that an answer can be kept until something it depends on has changed."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from baton.engine import events


class Change(IntEnum):
    """What an answer of a plugin may depend on. With time, or the plugin's own memory, it depends on more."""

    NODES = 0
    """Nodes, with their resources, cards and load."""
    PODS = 1
    """Pods, what they hold, and the jobs of pods without a PodGroup."""
    GROUPS = 2
    """PodGroups and their phases."""
    QUEUES = 3
    QUOTAS = 4
    BUDGETS = 5
    NAMESPACES = 6
    HYPER_NODES = 7

    __hash__ = int.__hash__


Stamp = tuple[int, ...]

_NODES = (Change.NODES, Change.PODS)
"""The pods of a node that comes or goes hold something else."""
_OF_EVENT: Mapping[type[Any], tuple[Change, ...]] = {
    events.NodeChanged: _NODES,
    events.NodeRemoved: _NODES,
    events.PodChanged: (Change.PODS,),
    events.PodRemoved: (Change.PODS,),
    events.GroupChanged: (Change.GROUPS,),
    events.GroupRemoved: (Change.GROUPS,),
    events.QueueChanged: (Change.QUEUES,),
    events.QueueRemoved: (Change.QUEUES,),
    events.QuotaChanged: (Change.QUOTAS,),
    events.QuotaRemoved: (Change.QUOTAS,),
    events.BudgetChanged: (Change.BUDGETS,),
    events.BudgetRemoved: (Change.BUDGETS,),
    events.NamespaceChanged: (Change.NAMESPACES,),
    events.NamespaceRemoved: (Change.NAMESPACES,),
    events.HyperNodeChanged: (Change.HYPER_NODES,),
    events.HyperNodeRemoved: (Change.HYPER_NODES,),
    events.BindFailed: (Change.PODS,),
    events.EvictFailed: (Change.PODS,),
}


class Changes:
    """How many changes of each kind there were, by events and by decisions."""

    def __init__(self) -> None:
        self._counts = [0] * len(Change)

    def count(self, change: Change) -> None:
        self._counts[change] += 1

    def count_event(self, event: events.Event) -> None:
        for change in _OF_EVENT[type(event)]:
            self._counts[change] += 1

    def stamp(self, of: Iterable[Change]) -> Stamp:
        """Equal as long as nothing of these kinds has changed."""
        counts = self._counts
        return tuple([counts[change] for change in of])
