"""Deletes finished jobs when their `ttlSecondsAfterFinished` has passed."""

import datetime

import structlog

from baton.controllers.controller import Surroundings, Wake
from baton.kube.errors import ConflictError, NotFoundError
from baton.kube.informers import Scope
from baton.kube.store import Delta, Store
from baton.model import times
from baton.model.ids import Key
from baton.model.names import FINAL_PHASES
from baton.model.volcano import JOBS, Job

_LOG = structlog.get_logger("baton.controllers")

_LONGEST_PAUSE_S = 300.0
"""The clock may be changed in the meantime, so a job is looked at at least this often."""


def left_s(job: Job, now: datetime.datetime) -> float | None:
    """How long the job is still kept: zero or less when its time is over, None when no limit applies yet."""
    ttl_s = job.spec.ttl_seconds_after_finished
    if ttl_s is None or job.status.state.phase not in FINAL_PHASES or job.metadata.deletion_timestamp:
        return None
    ended_s = times.seconds(job.status.state.last_transition_time)
    return None if ended_s is None else ended_s + ttl_s - now.timestamp()


class TtlController:
    """Keys are those of Jobs."""

    name = "ttl"

    def __init__(self, surroundings: Surroundings) -> None:
        self._client = surroundings.client
        self._now = surroundings.now
        self._jobs: Store[Job]

    def watch(self, scope: Scope, wake: Wake) -> None:
        self._jobs = scope.store(JOBS)

        def job_changed(delta: Delta[Job]) -> None:
            if delta.new is not None and left_s(delta.new, self._now()) is not None:
                wake(delta.key)

        self._jobs.subscribe(job_changed)

    async def sync(self, key: Key) -> float | None:
        job = self._jobs.get(key)
        left = left_s(job, self._now()) if job is not None else None
        if job is None or left is None:
            return None
        if left > 0:
            return min(left, _LONGEST_PAUSE_S)
        metadata = job.metadata
        # The version is part of the condition: a job whose time to live was raised in the meantime is not deleted.
        known = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        options = {"preconditions": known, "propagationPolicy": "Foreground"}
        try:
            await self._client.delete(JOBS, metadata.name, metadata.namespace, options=options)
        except (NotFoundError, ConflictError):
            return None  # gone, or changed: the watch will report the change
        _LOG.info("finished job deleted", job=key, ttl_s=job.spec.ttl_seconds_after_finished)
        return None
