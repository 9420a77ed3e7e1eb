"""Jobs that plugins keep out, remembered from cycle to cycle until something that could let them in has changed.

A plugin declares which changes can end its rejection (`Plugin.rejections_end_with`). In a cycle that follows other
events, or none, a job that it rejected is not asked about again. Thousands of jobs may wait for admission, and a cycle
runs at least every second while they do.
"""

from baton.engine.state.changes import Change, Stamp
from baton.engine.state.cluster import ClusterState
from baton.engine.state.jobs import Job
from baton.model.ids import GroupKey

Ends = tuple[Change, ...]
_KEPT_BESIDES = 1024
"""Entries of jobs that no longer wait, before they are dropped."""


class Rejections:
    """Who was rejected, and as of when. The engine keeps it from cycle to cycle."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._kept: dict[GroupKey, tuple[Ends, Stamp]] = {}

    def stands(self, job: Job) -> bool:
        """Whether the job would certainly be rejected again."""
        kept = self._kept.get(job.key)
        if kept is None or self._state.is_undecided():
            return False
        ends, stamp = kept
        return stamp == self._state.changes.stamp(ends)

    def note(self, job: Job, ends: Ends | None) -> None:
        """The job was rejected, until a change in `ends`; None: possibly only until the next moment."""
        if ends is None:
            self._kept.pop(job.key, None)
            return
        if len(self._kept) > 2 * len(self._state.active) + _KEPT_BESIDES:
            self._kept = {key: kept for key, kept in self._kept.items() if key in self._state.active}
        self._kept[job.key] = (ends, self._state.changes.stamp(ends))
