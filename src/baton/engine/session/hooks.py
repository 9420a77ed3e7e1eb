"""The extension points of a plugin, as typed values that each stand for a method of `Plugin`.

Code that calls plugins refers to a hook by its value, so mypy checks arguments and results and finds misspelt hooks.
"""

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from baton.engine.session.plugin import Plugin

P = ParamSpec("P")
R = TypeVar("R")


class Hook(Generic[P, R]):
    """A method of `Plugin` that plugins may override."""

    __slots__ = ("_method", "name")

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self._method = method
        self.name = method.__name__

    def taken_by(self, plugin: Plugin[Any]) -> bool:
        """Whether the plugin implements the hook, that is, overrides the method."""
        return getattr(type(plugin), self.name) is not self._method

    def of(self, plugin: Plugin[Any]) -> Callable[P, R]:
        """The plugin's implementation."""
        return cast("Callable[P, R]", getattr(plugin, self.name))

    def __repr__(self) -> str:
        return f"<hook {self.name}>"


QUEUE_KEY = Hook(Plugin.queue_key)
JOB_KEY = Hook(Plugin.job_key)
TASK_KEY = Hook(Plugin.task_key)
FILTERS = Hook(Plugin.filters)
SCORES = Hook(Plugin.scores)
WORLD_FILTERS = Hook(Plugin.world_filters)
WORLD_SCORES = Hook(Plugin.world_scores)
CARD_SCORES = Hook(Plugin.card_scores)
DOMAIN_SCORES = Hook(Plugin.domain_scores)
JOB_VALID = Hook(Plugin.job_valid)
JOB_READY = Hook(Plugin.job_ready)
JOB_PIPELINED = Hook(Plugin.job_pipelined)
JOB_ENQUEUEABLE = Hook(Plugin.job_enqueueable)
JOB_ENQUEUED = Hook(Plugin.job_enqueued)
JOB_STARVING = Hook(Plugin.job_starving)
CREDIT = Hook(Plugin.credit)
OVERUSED = Hook(Plugin.overused)
ALLOCATABLE = Hook(Plugin.allocatable)
PREEMPTIVE = Hook(Plugin.preemptive)
PREEMPTABLE = Hook(Plugin.preemptable)
RECLAIMABLE = Hook(Plugin.reclaimable)
VICTIMS = Hook(Plugin.victims)
MAY_START = Hook(Plugin.may_start)
SEES_WORLD = Hook(Plugin.sees_world)
JOB_STARTED = Hook(Plugin.job_started)
JOB_BLOCKED = Hook(Plugin.job_blocked)
MINDS_BLOCKED = Hook(Plugin.minds_blocked)

FLAGS: dict[str, tuple[Hook[..., Any], ...]] = {
    "enableJobOrder": (JOB_KEY,),
    "enableJobReady": (JOB_READY,),
    "enableJobPipelined": (JOB_PIPELINED,),
    "enableTaskOrder": (TASK_KEY,),
    "enablePreemptable": (PREEMPTABLE,),
    "enableReclaimable": (RECLAIMABLE,),
    "enablePreemptive": (PREEMPTIVE,),
    "enableQueueOrder": (QUEUE_KEY,),
    "enablePredicate": (FILTERS, WORLD_FILTERS),
    "enableBestNode": (),
    "enableNodeOrder": (SCORES, WORLD_SCORES, CARD_SCORES),
    "enableTargetJob": (MAY_START,),
    "enableReservedNodes": (),
    "enableJobEnqueued": (JOB_ENQUEUEABLE,),
    "enableJobStarving": (JOB_STARVING,),
    "enabledClusterOrder": (),
    "enabledVictim": (VICTIMS,),
    "enabledOverused": (OVERUSED,),
    "enabledAllocatable": (ALLOCATABLE,),
    "enabledHyperNodeOrder": (DOMAIN_SCORES,),
    "enabledSubJobReady": (),
    "enabledSubJobPipelined": (),
    "enabledSubJobOrder": (),
    "enabledHyperNodeGradient": (),
}
"""A plugin's flags in the configuration, and the hooks that each one disables; Volcano has the flags without hooks."""
