"""What users and controllers read: the status of PodGroups, conditions and nominations of pods, events.

Writes are level-triggered: a key is marked, and a worker compares the engine's current state with the API server's and
writes only the difference. Two changes are written at once: the admission of a group, because the job controller waits
for it, and the loss of pods, because job policies react to it. Other changes are collected for a moment. In a burst of
bindings, where each write would delay a pod, they are collected for longer, so that a group that was admitted, bound
and started meanwhile is written once. A message whose numbers change every second is not rewritten while its cause
stays, and a gang whose pods are still being created gets no message about missing pods. A pod whose PodGroup is missing
gets an event but no condition, because no node that a cluster autoscaler could add would help it.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from baton.engine.engine import Engine
from baton.engine.plan import Plan
from baton.engine.session.phases import phase_of
from baton.engine.state.jobs import Job, Status
from baton.engine.verdicts import Cause, Verdict
from baton.kube.client import STRATEGIC_PATCH, Client
from baton.kube.errors import NotFoundError
from baton.kube.queue import WorkQueue
from baton.kube.recorder import Recorder
from baton.kube.store import Delta
from baton.model import core, volcano
from baton.model.ids import GroupKey, Key, NodeName, PodKey
from baton.model.meta import ObjectReference
from baton.model.names import PodGroupPhase
from baton.model.times import stamp
from baton.scheduler.feed.feed import Feed
from baton.scheduler.metrics import Metrics
from baton.scheduler.settings import Settings

_WORKERS = 8
_GROUP_WORKERS = 32
"""As many as bind pods: in a stream of jobs, each admission is written before the job's pods are created, and a stage
with fewer requests in flight than the others becomes the bottleneck."""
_BURST_PAUSE_S = 30.0
"""How long a burst of bindings delays writing the counts of a group and its change from admitted to running."""
_BURST_NEWS = 1
"""How many groups are written per check in a burst after that delay, with four checks in `status_pause_s`: each write
costs a busy server one binding."""
_NEWS = 32
"""How many groups are queued per check outside a burst, less the ones still queued: the end of a burst may only be a
stall of the server, and thousands of changes may have accumulated."""
_SETTLED_S = 1.0
"""A gang that is missing pods is reported after this time without a new pod."""
_GROUP_PAUSE_S = 5.0
"""A pod without its PodGroup gets an event after waiting this long."""
_AT_ONCE = (PodGroupPhase.INQUEUE, PodGroupPhase.UNKNOWN, PodGroupPhase.PENDING)
UNSCHEDULABLE, SCHEDULED = "Unschedulable", "Scheduled"
READY_REASON = "tasks in gang are ready to be scheduled"


class _Told(msgspec.Struct):
    """The last message about a pod or a group, and its time."""

    cause: str
    message: str
    at_s: float


class Statuses:
    """Writers of everything but bindings and evictions."""

    def __init__(
        self, client: Client, feed: Feed, engine: Engine, recorder: Recorder, settings: Settings, metrics: Metrics
    ) -> None:
        self._client = client
        self._feed = feed
        self._engine = engine
        self._recorder = recorder
        self._settings = settings
        self._metrics = metrics
        self._groups: WorkQueue[GroupKey] = WorkQueue()
        self._pods: WorkQueue[PodKey] = WorkQueue()
        self._verdicts: dict[GroupKey, Verdict] = {}
        self._told_groups: dict[GroupKey, _Told] = {}
        self._told_pods: dict[PodKey, _Told] = {}
        self._nominated: dict[PodKey, NodeName] = {}
        """Waiting pods whose status names a nominated node, or will."""
        self._incomplete: dict[GroupKey, tuple[int, float]] = {}
        """Gangs that are missing pods: how many pods they have, and since when."""
        self._alone: dict[PodKey, tuple[float, bool]] = {}
        """Pods that wait for a missing PodGroup: since when, and whether they got their event."""
        self._moved: dict[GroupKey, float] = {}
        """Groups to be written later, and since when, the earliest first."""
        self._cycle = 0
        self.in_burst: Callable[[], bool] = lambda: False
        """Whether pods are being bound in great numbers."""
        feed.groups_moved = self._group_moved
        feed.pods.subscribe(self._pod_changed)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._groups.run(self._write_group, workers=_GROUP_WORKERS))
                group.create_task(self._pods.run(self._write_pod, workers=_WORKERS))
                group.create_task(self._moved_for_ever())
        finally:
            for queue in (self._groups, self._pods):
                queue.close()

    def take(self, plan: Plan, *, explained: bool) -> None:
        """Collect from a plan what users and controllers should know."""
        self._cycle += 1
        for change in plan.phases:
            if change.phase in _AT_ONCE and not (
                change.phase is PodGroupPhase.INQUEUE and self._is_whole(change.group)
            ):
                self._groups.add(change.group)
            else:
                self._group_moved(change.group)
        for nomination in plan.nominations:
            if self._nominated.get(nomination.pod) != nomination.node:
                self._nominated[nomination.pod] = nomination.node
                self._pods.add(nomination.pod)
        for binding in plan.bindings:
            self._nominated.pop(binding.pod, None)
            self._told_pods.pop(binding.pod, None)
        for pod in [pod for pod in self._nominated if self._is_over(pod)]:
            del self._nominated[pod]
            self._pods.add(pod)
        if explained:
            self._take_verdicts(plan.verdicts)

    def _is_over(self, pod: PodKey) -> bool:
        """Whether the pod's reservation is over; while its status names a node, cluster autoscalers add none for it."""
        task = self._engine.state.tasks.get(pod)
        return task is None or task.nominated is None

    def _pod_changed(self, delta: Delta[core.Pod]) -> None:
        """Forget the messages of a removed pod, and take over nominations of an earlier leader."""
        key, pod = PodKey(delta.key), delta.new
        if pod is None:
            self._told_pods.pop(key, None)
            self._nominated.pop(key, None)
            self._alone.pop(key, None)
            return
        at = pod.status.nominated_node_name
        if at and delta.old is None and not pod.spec.node_name and self._feed.words.is_ours(pod):
            self._nominated[key] = NodeName(at)

    def _is_whole(self, key: GroupKey) -> bool:
        """Whether the gang already has its pods, so that no controller waits for its admission to create them."""
        job = self._engine.state.jobs.get(key)
        return job is not None and len(job.tasks) >= job.min_member > 0

    def verdict(self, key: GroupKey) -> Verdict | None:
        """The last verdict, for a job that still waits."""
        return self._verdicts.get(key)

    def waiting(self) -> Mapping[GroupKey, Verdict]:
        return self._verdicts

    def _take_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        fresh = {verdict.group: verdict for verdict in verdicts}
        for key in self._verdicts.keys() - fresh.keys():
            if self._told_groups.pop(key, None) is not None:
                self._groups.add(key)
        self._verdicts = fresh
        self._incomplete = {key: known for key, known in self._incomplete.items() if key in fresh}
        now = time.monotonic()
        for key, verdict in fresh.items():
            self._metrics.unschedulable(verdict.cause.value)
            if verdict.cause is Cause.PIPELINED:
                continue
            job = self._engine.state.jobs.get(key)
            if job is None or (verdict.cause is Cause.NOT_VALID and not self._is_settled(job, now)):
                continue
            message = verdict.paragraph()
            if not job.implicit and self._is_news(self._told_groups, key, verdict.cause, message, now):
                self._groups.add(key)
                self._tell_group(key, job, message)
            for pod in job.pending:
                if self._is_news(self._told_pods, pod, verdict.cause, message, now):
                    self._pods.add(pod)

    def _is_settled(self, job: Job, now: float) -> bool:
        """Whether an incomplete gang has stopped growing."""
        pods, since = self._incomplete.get(job.key, (-1, now))
        if pods != len(job.tasks):
            since = now
        self._incomplete[job.key] = (len(job.tasks), since)
        return now >= since + _SETTLED_S

    def _is_news(self, told: dict[Any, _Told], key: Any, cause: Cause, message: str, now: float) -> bool:
        known = told.get(key)
        pause_s = self._settings.reason_pause_s
        if (
            known is not None
            and known.cause == cause.value
            and (known.message == message or now < known.at_s + pause_s)
        ):
            return False
        told[key] = _Told(cause.value, message, now)
        return True

    def _tell_group(self, key: GroupKey, job: Job, message: str) -> None:
        group = self._feed.groups.get(Key(key))
        if group is not None:
            about = ObjectReference(
                kind=volcano.POD_GROUP_KIND,
                namespace=group.metadata.namespace,
                name=group.metadata.name,
                uid=group.metadata.uid,
                api_version=volcano.SCHEDULING,
            )
            self._recorder.record(about, UNSCHEDULABLE, _gang_text(job, message), warning=True)

    def _group_moved(self, key: GroupKey) -> None:
        self._moved.setdefault(key, time.monotonic())

    async def _moved_for_ever(self) -> None:
        pause_s = self._settings.status_pause_s
        while True:
            await asyncio.sleep(pause_s / 4)
            self._tell_alone(time.monotonic())
            burst = self.in_burst()
            due = time.monotonic() - (_BURST_PAUSE_S if burst else pause_s)
            number = _BURST_NEWS if burst else max(0, _NEWS - len(self._groups))
            for key, since in list(itertools.islice(self._moved.items(), number)):
                if since > due:
                    break
                del self._moved[key]
                self._groups.add(key)

    def _tell_alone(self, now: float) -> None:
        """Report pods that wait for a missing PodGroup; they are in no verdict of a plan."""
        waiting = self._feed.without_group
        if not waiting and not self._alone:
            return
        self._alone = {key: self._alone.get(key, (now, False)) for key in waiting}
        for key, (since, told) in self._alone.items():
            pod = self._feed.pods.get(Key(key))
            if told or now < since + _GROUP_PAUSE_S or pod is None or pod.spec.node_name or pod.spec.scheduling_gates:
                continue
            self._alone[key] = (since, True)
            hold = self._feed.waits_for_group(pod)
            if hold is not None:
                self._recorder.record(_about(pod), "FailedScheduling", hold.detail, warning=True)

    async def _write_group(self, key: GroupKey) -> None:
        group = self._feed.groups.get(Key(key))
        job = self._engine.state.jobs.get(key)
        if group is None or job is None or job.implicit:
            self._told_groups.pop(key, None)
            return
        status = group.status
        phase = phase_of(job)
        wanted: dict[str, Any] = {
            "phase": phase.value,
            "running": job.counts[Status.RUNNING],
            "succeeded": job.counts[Status.SUCCEEDED],
            "failed": job.counts[Status.FAILED],
        }
        change = {name: value for name, value in wanted.items() if getattr(status, name) != value}
        conditions = self._conditions(key, job, phase, status.conditions)
        if conditions is not None:
            change["conditions"] = conditions
        if not change:
            return
        try:
            await self._client.patch(
                volcano.POD_GROUPS,
                group.metadata.name,
                {"status": change},
                group.metadata.namespace,
                patient=phase not in _AT_ONCE,
            )
        except NotFoundError:
            return

    def _conditions(
        self, key: GroupKey, job: Job, phase: PodGroupPhase, present: tuple[volcano.PodGroupCondition, ...]
    ) -> list[volcano.PodGroupCondition] | None:
        """The whole list of conditions if it changes, otherwise None."""
        told = self._told_groups.get(key)
        if told is not None:
            kind, reason, message = UNSCHEDULABLE, "NotEnoughResources", _gang_text(job, told.message)
            if told.cause == Cause.NOT_VALID.value:
                reason = "NotEnoughTasks"
        elif phase in (PodGroupPhase.RUNNING, PodGroupPhase.COMPLETED):
            kind, reason, message = SCHEDULED, READY_REASON, ""
        else:
            return None
        known = next((item for item in present if item.type == kind), None)
        newest = bool(present) and present[-1].type == kind
        if known is not None and (known.reason, known.message) == (reason, message) and newest:
            return None
        made = volcano.PodGroupCondition(
            type=kind,
            status="True",
            transition_id=str(self._cycle),
            last_transition_time=stamp(time.time()),
            reason=reason,
            message=message,
        )
        return [*(item for item in present if item.type != kind), made]

    async def _write_pod(self, key: PodKey) -> None:
        pod = self._feed.pods.get(Key(key))
        if pod is None or pod.spec.node_name:
            self._told_pods.pop(key, None)
            self._nominated.pop(key, None)
            return
        change: dict[str, Any] = {}
        told = self._told_pods.get(key)
        if told is not None:
            known = next((item for item in pod.status.conditions if item.type == "PodScheduled"), None)
            if known is None or (known.status, known.reason, known.message) != ("False", UNSCHEDULABLE, told.message):
                condition = {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": UNSCHEDULABLE,
                    "message": told.message,
                }
                if known is None or known.status != "False":
                    condition["lastTransitionTime"] = stamp(time.time())
                change["conditions"] = [condition]
                self._recorder.record(_about(pod), "FailedScheduling", told.message, warning=True)
        nominated = self._nominated.get(key, NodeName(""))
        if pod.status.nominated_node_name != nominated:
            change["nominatedNodeName"] = nominated or None
        if not change:
            return
        try:
            await self._client.patch(
                core.PODS,
                pod.metadata.name,
                {"metadata": {"uid": pod.metadata.uid}, "status": change},
                pod.metadata.namespace,
                subresource="status",
                content_type=STRATEGIC_PATCH,
            )
        except NotFoundError:
            return


def _gang_text(job: Job, message: str) -> str:
    waiting = len(job.pending) + sum(1 for _ in job.gated())
    if job.phase is PodGroupPhase.UNKNOWN:
        waiting = max(waiting, job.min_member - job.ready_count())
    return f"{waiting}/{len(job.tasks)} tasks in gang unschedulable: {message}"


def _about(pod: core.Pod) -> ObjectReference:
    metadata = pod.metadata
    return ObjectReference(
        kind="Pod", namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, api_version="v1"
    )
