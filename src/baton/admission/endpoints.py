"""The webhooks by their paths: which checks apply to which kind and operation."""

import asyncio
import pathlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog

from baton.admission.cluster import Cluster, strictness
from baton.admission.findings import Field, Findings
from baton.admission.patches import Patches, patched
from baton.admission.reviews import CREATE, DELETE, UPDATE, Request, Verdict
from baton.admission.rules.cronjobs import check_cron_job
from baton.admission.rules.gpus import default_shares
from baton.admission.rules.hypernodes import check_hyper_node
from baton.admission.rules.job_updates import check_job_update
from baton.admission.rules.jobflows import check_job_flow, check_job_template
from baton.admission.rules.jobs import check_job, default_job
from baton.admission.rules.podgroups import check_pod_group, check_queue_choice, default_pod_group
from baton.admission.rules.pods import check_pod
from baton.admission.rules.queues import (
    MAX_DEPTH,
    check_place,
    check_queue,
    check_queue_deletion,
    default_queue,
    queue_changed,
)
from baton.admission.rules.resource_groups import ResourceGroup, default_pod
from baton.engine.state.resources import SLOTS
from baton.model.names import DEFAULT_QUEUE, DEFAULT_SCHEDULER, SCHEDULER_NAMES

_LOG = structlog.get_logger("baton.admission")

Endpoint = Callable[[Request], Awaitable[Verdict]]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an administrator."""

    scheduler_name: str = DEFAULT_SCHEDULER
    """The scheduler name for jobs that set none."""
    scheduler_names: tuple[str, ...] = SCHEDULER_NAMES
    """Pods with these scheduler names are checked."""
    slot_resources: tuple[str, ...] = (SLOTS,)
    """Names of time-shared GPU slots."""
    max_queue_depth: int = MAX_DEPTH
    """The greatest depth of the queue tree, not counting root."""
    resource_groups_file: pathlib.Path | None = None
    template_limit_s: float = 5.0
    """The time limit for the API server to check the templates of one job: half of its own limit for our answer. It
    may be busy with the very jobs that wait for us."""


class Webhooks:
    """All endpoints over one cluster."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self._cluster = cluster
        self._policy = policy
        self.resource_groups: tuple[ResourceGroup, ...] = ()
        """Replaced when their file changes."""

    def endpoints(self) -> Mapping[str, Endpoint]:
        """All endpoints by path. Paths that change objects end in /mutate."""
        return {
            "/jobs/mutate": self.mutate_job,
            "/jobs/validate": self.validate_job,
            "/pods/mutate": self.mutate_pod,
            "/pods/validate": self.validate_pod,
            "/podgroups/mutate": self.mutate_pod_group,
            "/podgroups/validate": self.validate_pod_group,
            "/queues/mutate": self.mutate_queue,
            "/queues/validate": self.validate_queue,
            "/cronjobs/validate": self.validate_cron_job,
            "/jobflows/validate": self.validate_job_flow,
            "/jobtemplates/validate": self.validate_job_template,
            "/hypernodes/validate": self.validate_hyper_node,
        }

    async def mutate_job(self, request: Request) -> Verdict:
        findings, patches = Findings(), Patches()
        if request.operation in (CREATE, UPDATE) and not request.leaving:
            if isinstance(request.new.get("spec"), dict):
                patches = default_job(request.new["spec"], self._policy.scheduler_name, "spec")
            job = patched(request.new, patches)
            if request.operation == CREATE:
                check_job(job, findings, self._policy.slot_resources)
            else:
                check_job_update(request.old, job, findings)
        return Verdict(findings, patches)

    async def validate_job(self, request: Request) -> Verdict:
        findings = Findings()
        if request.operation == UPDATE:
            if not request.leaving:
                check_job_update(request.old, request.new, findings)
        elif request.operation == CREATE:
            check_job(request.new, findings, self._policy.slot_resources)
            spec = Field("", request.new)["spec"]
            await self._check_queue(spec["queue"], findings, "job")
            if not findings.refusals:
                await self._check_templates(spec["tasks"].items(findings), request, findings)
        return Verdict(findings, Patches())

    async def _check_templates(self, tasks: list[Field], request: Request, findings: Findings) -> None:
        """Have the API server check the pods of a new job. After the limit, mistakes show when pods are created."""
        strict = strictness(request.options)
        try:
            async with asyncio.timeout(self._policy.template_limit_s):
                for task in tasks:
                    await self._cluster.check_template(task["template"], request.namespace, strict, findings)
        except TimeoutError:
            _LOG.warning("pod templates not checked in time", namespace=request.namespace, job=request.subject)

    async def mutate_pod(self, request: Request) -> Verdict:
        patches = Patches()
        if request.operation == CREATE:
            patches = default_pod(request.new, request.namespace, self.resource_groups)
            default_shares(Field("", request.new)["spec"], patches, "spec")
        return Verdict(Findings(), patches)

    async def validate_pod(self, request: Request) -> Verdict:
        findings = Findings()
        if request.operation != DELETE and not request.leaving:
            check_pod(request.new, findings, self._policy.scheduler_names, self._policy.slot_resources)
        return Verdict(findings, Patches())

    async def mutate_pod_group(self, request: Request) -> Verdict:
        findings, patches = Findings(), Patches()
        if request.operation == CREATE:
            check_pod_group(request.new, findings)
            queue = Field("", request.new)["spec"]["queue"].value
            if not findings.refusals and queue in (None, "", DEFAULT_QUEUE):
                annotations = await self._cluster.namespace_annotations(request.namespace)
                patches = default_pod_group(request.new, annotations)
        return Verdict(findings, patches)

    async def validate_pod_group(self, request: Request) -> Verdict:
        findings = Findings()
        if request.operation == CREATE:
            check_pod_group(request.new, findings)
            await self._check_queue(Field("", request.new)["spec"]["queue"], findings, "PodGroup")
        return Verdict(findings, Patches())

    async def mutate_queue(self, request: Request) -> Verdict:
        findings, patches = Findings(), Patches()
        if request.operation == CREATE:
            patches = default_queue(request.new)
            check_queue(patched(request.new, patches), findings)
        return Verdict(findings, patches)

    async def validate_queue(self, request: Request) -> Verdict:
        findings = Findings()
        if request.operation == DELETE:
            # A deletion asks the API server at once: it would orphan a child that the watch has not shown yet.
            check_queue_deletion(request.subject, await self._cluster.tree(fresh=True), findings)
            return Verdict(findings, Patches())
        for fresh in (False, True):
            findings = Findings()
            tree = await self._cluster.tree(fresh=fresh)
            if not request.leaving and queue_changed(request.old, request.new):
                check_queue(request.new, findings)
                check_place(request.new, tree, findings, self._policy.max_queue_depth, request.old)
            if not findings.refusals:
                break
        return Verdict(findings, Patches())

    async def validate_cron_job(self, request: Request) -> Verdict:
        return _check_changed(request, check_cron_job)

    async def validate_job_flow(self, request: Request) -> Verdict:
        return _check_changed(request, check_job_flow)

    async def validate_job_template(self, request: Request) -> Verdict:
        return _check_changed(request, check_job_template)

    async def validate_hyper_node(self, request: Request) -> Verdict:
        return _check_changed(request, check_hyper_node)

    async def _check_queue(self, field: Field, findings: Findings, what: str) -> None:
        """Check a queue in the store. Only the API server's answer leads to a refusal."""
        name = str(field.value or DEFAULT_QUEUE)
        for fresh in (False, True):
            found = Findings()
            queue = await self._cluster.queue(name, fresh=fresh)
            tree = await self._cluster.tree(fresh=fresh)
            children = [child.metadata.name for child in tree.children(name)]
            check_queue_choice(field, queue, children, found, what=what)
            if not found.refusals:
                return
        findings.refusals += found.refusals


def _check_changed(request: Request, check: Callable[[Mapping[str, Any], Findings], None]) -> Verdict:
    """Check a new object, or a change: only mistakes that the change adds count."""
    findings, known = Findings(), Findings()
    if not request.leaving and request.new.get("spec") != request.old.get("spec"):
        check(request.new, findings)
        if request.operation == UPDATE:
            check(request.old, known)
        findings.forgive(known)
    return Verdict(findings, Patches())
