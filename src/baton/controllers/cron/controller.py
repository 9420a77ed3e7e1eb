"""CronJobs: creates the jobs that are due and deletes old ones."""

import datetime

import structlog

from baton.controllers.controller import Surroundings, Wake
from baton.controllers.cron import rules
from baton.controllers.expectations import FreshStore
from baton.kube.errors import ApiError, ConflictError, NotFoundError
from baton.kube.informers import Scope
from baton.kube.store import Delta, Store
from baton.model.ids import Key
from baton.model.meta import OwnerReference
from baton.model.volcano import BATCH, CRON_JOB_KIND, CRON_JOBS, JOBS, CronJob, CronJobStatus, Job

_LOG = structlog.get_logger("baton.controllers")


class CronJobController:
    """Keys are those of CronJobs."""

    name = "cronjob"

    def __init__(self, surroundings: Surroundings) -> None:
        self._client = surroundings.client
        self._recorder = surroundings.recorder
        self._now = surroundings.now
        self._crons: Store[CronJob]
        self._jobs: FreshStore[Job]

    def watch(self, scope: Scope, wake: Wake) -> None:
        self._crons = scope.store(CRON_JOBS)
        jobs = scope.store(JOBS, {"cron": _cron_index})
        self._jobs = FreshStore(jobs, _cron_index)

        def job_changed(delta: Delta[Job]) -> None:
            for job in (delta.old, delta.new):
                if job is not None and (owner := _owner(job)) is not None:
                    wake(Key(f"{job.metadata.namespace}/{owner.name}"))

        jobs.subscribe(job_changed)
        self._crons.subscribe(lambda delta: wake(delta.key))

    async def sync(self, key: Key) -> float | None:
        cron = self._crons.get(key)
        if cron is None:
            return None
        jobs = [job for job in self._jobs.members("cron", cron.metadata.uid) if not self._jobs.is_deleted(job)]
        decision = rules.decide(cron, jobs, self._now())
        self._recorder.record_all(cron.metadata.reference(CRON_JOB_KIND, BATCH), decision.events)
        for job in decision.delete:
            await self._delete(cron, job)
        status = decision.status
        if decision.start is not None:
            job_started = await self._start(cron, decision.start)
            status = rules.started(status, job_started, decision.start)
        if status != cron.status:
            await self._write(cron, status)
        return decision.again_s

    async def _start(self, cron: CronJob, due: datetime.datetime) -> Job:
        body = rules.job_body(cron, due)
        try:
            job = await self._client.create(JOBS, body, cron.metadata.namespace)
        except ConflictError:
            # It exists already: created by this program before it was restarted, or a foreign job with the same name.
            job = await self._client.get(JOBS, body["metadata"]["name"], cron.metadata.namespace)
            if _cron_index(job) != [cron.metadata.uid]:
                words = f"a job {job.metadata.name} exists that does not belong to this CronJob; this run is skipped"
                self._emit(cron, "ForeignJob", words, warning=True)
        except ApiError as error:
            self._emit(
                cron, "FailedCreate", f"the job {body['metadata']['name']} cannot be created: {error}", warning=True
            )
            raise
        else:
            _LOG.info("job started on time", job=f"{job.metadata.namespace}/{job.metadata.name}")
            self._emit(cron, "SuccessfulCreate", f"created the job {job.metadata.name}")
        self._jobs.wrote(job)
        return job

    async def _delete(self, cron: CronJob, job: Job) -> None:
        metadata = job.metadata
        options = {"preconditions": {"uid": metadata.uid}, "propagationPolicy": "Background"}
        try:
            await self._client.delete(JOBS, metadata.name, metadata.namespace, options=options)
        except (NotFoundError, ConflictError):
            return
        self._jobs.deleted(job)
        self._emit(cron, "SuccessfulDelete", f"deleted the job {metadata.name}")

    async def _write(self, cron: CronJob, status: CronJobStatus) -> None:
        change = {
            "active": status.active or None,
            "lastScheduleTime": status.last_schedule_time,
            "lastSuccessfulTime": status.last_successful_time,
        }
        metadata = cron.metadata
        await self._client.patch(CRON_JOBS, metadata.name, {"status": change}, metadata.namespace, subresource="status")

    def _emit(self, cron: CronJob, reason: str, message: str, *, warning: bool = False) -> None:
        self._recorder.record(cron.metadata.reference(CRON_JOB_KIND, BATCH), reason, message, warning=warning)


def _owner(job: Job) -> OwnerReference | None:
    return job.metadata.controller(CRON_JOB_KIND, BATCH)


def _cron_index(job: Job) -> list[str]:
    owner = _owner(job)
    return [owner.uid] if owner is not None else []
