"""JobFlows: creates the jobs of a graph in its order. JobTemplates: lists the jobs that were created from them."""

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from prometheus_client import Gauge

from baton.controllers.controller import Surroundings, Wake
from baton.controllers.expectations import FreshStore
from baton.controllers.flow import probes, rules
from baton.errors import BatonError
from baton.kube.client import JSON_PATCH
from baton.kube.errors import ApiError, ConflictError, NotFoundError
from baton.kube.informers import Scope
from baton.kube.store import Delta, Store
from baton.model.core import PODS, Pod
from baton.model.ids import Key
from baton.model.meta import OwnerReference
from baton.model.names import JOB_NAME, TASK_SPEC, FlowPhase
from baton.model.volcano import FLOW, JOB_FLOW_KIND, JOB_FLOWS, JOB_TEMPLATES, JOBS, Job, JobFlow, JobTemplate

_LOG = structlog.get_logger("baton.controllers")


class JobFlowController:
    """Keys are those of JobFlows."""

    name = "jobflow"

    def __init__(self, surroundings: Surroundings) -> None:
        self._client = surroundings.client
        self._recorder = surroundings.recorder
        # Volcano's names, which have no suffix for counters.
        self._ended: Mapping[str, Gauge] = {
            phase: surroundings.metrics.gauge(
                f"volcano_jobflow_{phase.lower()}_phase_count",
                f"JobFlows that became {phase} while this replica led.",
                "jobflow_namespace",
            )
            for phase in (FlowPhase.SUCCEED, FlowPhase.FAILED)
        }
        self._flows: Store[JobFlow]
        self._newest: FreshStore[JobFlow]
        """Flows with our own writes: the watch may show the end of a job before the status that remembers it."""
        self._templates: Store[JobTemplate]
        self._jobs: FreshStore[Job]
        self._pods: Store[Pod]
        self._looked_at: set[Key] = set()

    def watch(self, scope: Scope, wake: Wake) -> None:
        self._flows = scope.store(JOB_FLOWS, {"template": _template_index})
        self._newest = FreshStore(self._flows)
        self._templates = scope.store(JOB_TEMPLATES)
        self._pods = scope.store(PODS, {"task of job": _task_index})
        jobs = scope.store(JOBS, {"flow": _flow_index})
        self._jobs = FreshStore(jobs, _flow_index)

        def job_changed(delta: Delta[Job]) -> None:
            for job in (delta.old, delta.new):
                if job is not None and (owner := _owner(job)) is not None:
                    wake(Key(f"{job.metadata.namespace}/{owner.name}"))

        def template_changed(delta: Delta[JobTemplate]) -> None:
            if delta.old is None:
                for flow in self._flows.by_index("template", delta.key):
                    wake(Key(f"{flow.metadata.namespace}/{flow.metadata.name}"))

        jobs.subscribe(job_changed)
        self._templates.subscribe(template_changed)
        self._flows.subscribe(lambda delta: wake(delta.key))

    async def sync(self, key: Key) -> float | None:
        flow = self._newest.get(key)
        if flow is None:
            self._looked_at.discard(key)
            return None
        members = self._jobs.members("flow", flow.metadata.uid)
        jobs = {job.metadata.name: job for job in members if not self._jobs.is_deleted(job)}
        asked = [(check, self._addresses(flow, check)) for check in rules.checks(flow, jobs)]
        answered = await probes.holding(asked)
        decision = rules.decide(flow, jobs, self._templates_of(flow), answered, new=key not in self._looked_at)
        self._looked_at.add(key)
        self._recorder.record_all(flow.metadata.reference(JOB_FLOW_KIND, FLOW), decision.events)
        # The status must remember the finished jobs before they are deleted.
        if decision.status != flow.status:
            await self._write(flow, decision)
        for job in decision.delete:
            await self._delete(flow, job)
        await self._make_all(flow, decision.make)
        unseen_s = self._jobs.unseen_s(flow.metadata.uid)
        return min((wait_s for wait_s in (decision.again_s, unseen_s) if wait_s is not None), default=None)

    def _templates_of(self, flow: JobFlow) -> dict[str, JobTemplate]:
        found = {
            step.name: self._templates.get(Key(f"{flow.metadata.namespace}/{step.name}")) for step in flow.spec.flows
        }
        return {name: template for name, template in found.items() if template is not None}

    def _addresses(self, flow: JobFlow, check: rules.Check) -> list[str]:
        pods = self._pods.by_index("task of job", f"{flow.metadata.namespace}/{check.job}/{check.task}")
        return [pod.status.pod_ip for pod in pods]

    async def _make_all(self, flow: JobFlow, bodies: Sequence[rules.JobBody]) -> None:
        """Create jobs. One that cannot be created does not hold back the others."""
        failures: list[BatonError] = []
        for body in bodies:
            try:
                await self._make(flow, body)
            except BatonError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _make(self, flow: JobFlow, body: rules.JobBody) -> None:
        name = body["metadata"]["name"]
        try:
            job = await self._client.create(JOBS, body, flow.metadata.namespace)
        except ConflictError:
            # It is this flow's and the watch has not shown it yet, or it is foreign and the step cannot run.
            job = await self._client.get(JOBS, name, flow.metadata.namespace)
            if _flow_index(job) != [flow.metadata.uid]:
                self._emit(
                    flow, "ForeignJob", f"a job {name} exists that does not belong to this flow; delete or rename it"
                )
                raise
        except ApiError as error:
            self._emit(flow, "FailedCreate", f"the job {name} cannot be created: {error}")
            raise
        else:
            _LOG.info("job of a flow created", job=f"{flow.metadata.namespace}/{name}")
            self._recorder.record(flow.metadata.reference(JOB_FLOW_KIND, FLOW), "Created", f"created the job {name}")
        self._jobs.wrote(job)

    async def _delete(self, flow: JobFlow, job: Job) -> None:
        metadata = job.metadata
        options = {"preconditions": {"uid": metadata.uid}, "propagationPolicy": "Background"}
        try:
            await self._client.delete(JOBS, metadata.name, metadata.namespace, options=options)
        except (NotFoundError, ConflictError):
            return
        self._jobs.deleted(job)
        self._recorder.record(
            flow.metadata.reference(JOB_FLOW_KIND, FLOW),
            "Deleted",
            f"deleted the job {metadata.name}, which the flow does not retain",
        )

    async def _write(self, flow: JobFlow, decision: rules.Decision) -> None:
        metadata, phase = flow.metadata, decision.status.state.phase
        # The whole status: a merge patch would keep the counts of phases that no pod is in any more. And only for this
        # uid: a new flow of the same name would take the steps of this one as done.
        change: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
            {"op": "add", "path": "/status", "value": decision.status},
        ]
        written = await self._client.patch(
            JOB_FLOWS, metadata.name, change, metadata.namespace, subresource="status", content_type=JSON_PATCH
        )
        self._newest.wrote(written)
        if phase != flow.status.state.phase and phase in self._ended:
            self._ended[phase].labels(metadata.namespace).inc()

    def _emit(self, flow: JobFlow, reason: str, message: str) -> None:
        self._recorder.record(flow.metadata.reference(JOB_FLOW_KIND, FLOW), reason, message, warning=True)


class JobTemplateController:
    """Keeps a list of the jobs created from a template in its status. Keys are those of JobTemplates."""

    name = "jobtemplate"

    def __init__(self, surroundings: Surroundings) -> None:
        self._client = surroundings.client
        self._templates: Store[JobTemplate]
        self._jobs: Store[Job]

    def watch(self, scope: Scope, wake: Wake) -> None:
        self._templates = scope.store(JOB_TEMPLATES)
        self._jobs = scope.store(JOBS, {"template": _made_from_index})

        def job_changed(delta: Delta[Job]) -> None:
            for job in (delta.old, delta.new):
                for key in _made_from_index(job) if job is not None else ():
                    wake(Key(key))

        self._jobs.subscribe(job_changed)
        self._templates.subscribe(lambda delta: wake(delta.key))

    async def sync(self, key: Key) -> float | None:
        template = self._templates.get(key)
        if template is None:
            return None
        names = sorted(job.metadata.name for job in self._jobs.by_index("template", key))
        if names != (template.status.get("jobDependsOnList") or []):
            metadata = template.metadata
            change = {"status": {"jobDependsOnList": names or None}}
            await self._client.patch(JOB_TEMPLATES, metadata.name, change, metadata.namespace, subresource="status")
        return None


def _owner(job: Job) -> OwnerReference | None:
    return job.metadata.controller(JOB_FLOW_KIND, FLOW)


def _flow_index(job: Job) -> list[str]:
    owner = _owner(job)
    return [owner.uid] if owner is not None else []


def _template_index(flow: JobFlow) -> list[str]:
    return [f"{flow.metadata.namespace}/{step.name}" for step in flow.spec.flows]


def _made_from_index(job: Job) -> list[str]:
    namespace, dot, name = job.metadata.annotations.get(rules.CREATED_BY_TEMPLATE, "").partition(".")
    return [f"{namespace}/{name}"] if dot and namespace == job.metadata.namespace else []


def _task_index(pod: Pod) -> list[str]:
    labels = pod.metadata.labels
    job, task = labels.get(JOB_NAME), labels.get(TASK_SPEC) or pod.metadata.annotations.get(TASK_SPEC)
    return [f"{pod.metadata.namespace}/{job}/{task}"] if job and task else []
