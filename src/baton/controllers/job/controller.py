"""Reconciles Volcano's Jobs: observes, asks the phase machine, and has its plan carried out.

The status is written at once when the phase changes. Counts that change within a phase are written a little later,
because the pods of a gang start one after the other and only the last count matters. Under load (a *crowd* of jobs)
PodGroups and pods come first: good news (pending, running, counts) waits longer and goes through a few slots only, so a
job that runs by then costs one write instead of three. No polling is involved: a job whose news waits is synced when
something happens to it, when its waiting time is over, or when a slot is free and it is next. Writes that end a job or
begin its next life never wait.

Commands turn at-least-once into exactly-once: the controller carries a command out, stores its signature in the status
with the new phase, and only then deletes the Command. If a process dies in between, the next one recognises the
signature.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator

import msgspec
import structlog

from baton.controllers.controller import Surroundings, Wake
from baton.controllers.expectations import FreshStore
from baton.controllers.job.census import phase_of
from baton.controllers.job.executor import ClaimMissingError, JobExecutor
from baton.controllers.job.lifecycle import PodView
from baton.controllers.job.phases import GroupTarget, Order, Plan, World, decide, group_is_open
from baton.controllers.job.pods import TemplateError, check_template, group_name, view
from baton.controllers.job.tracking import REFUSED, Memory, is_of, job_keys_of, lost_while_away, target_keys
from baton.controllers.queue.credit import QueueCredits
from baton.errors import BatonError
from baton.job_plugins import Plugin, plugins_of
from baton.kube.errors import ConflictError, ForbiddenError, NotFoundError, ThrottledError, UnreachableError
from baton.kube.informers import Scope
from baton.kube.store import Delta, Store, key_of, version_of
from baton.model.core import PODS, PRIORITY_CLASSES, Pod, PriorityClass
from baton.model.ids import Key
from baton.model.names import JobEvent, JobPhase, PodPhase
from baton.model.times import seconds
from baton.model.volcano import (
    BATCH,
    COMMANDS,
    JOB_KIND,
    JOBS,
    POD_GROUPS,
    QUEUES,
    Command,
    Job,
    JobStatus,
    PodGroup,
    PodGroupCondition,
)

_LOG = structlog.get_logger("baton.controllers")

COALESCE_S = 0.2
"""How old a count may get before it is written."""
CROWD = 48
"""More jobs than this without a status, or waiting for a sync, are a crowd."""
CROWDED_S = 30.0
"""How long a crowd may delay the writing of good news."""
STATUS_PLACES = 8
"""Concurrent status writes in a crowd, out of the 48 requests in all."""
_CLAIM_AGAIN_S = 5.0
_MILLISECONDS = (10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)


class JobController:
    """The controller of `batch.volcano.sh/v1alpha1` Jobs."""

    name = "job"

    def __init__(self, surroundings: Surroundings) -> None:
        self._client = surroundings.client
        self._recorder = surroundings.recorder
        self._now = surroundings.now
        self._memories: dict[Key, Memory] = {}
        self._waiting: dict[Key, None] = {}
        self._new: dict[Key, None] = {}
        """Jobs without a status: in a stream of jobs, their number tells how far the API server is behind."""
        self._later: dict[Key, float] = {}
        """Jobs whose good news waits for the crowd to go, and until when. The longest waiting job is first."""
        self._called: set[Key] = set()
        """The jobs among them that are next and about to be synced."""
        self._writing = 0
        metrics = surroundings.metrics
        self._entered = metrics.counter("baton_job_phases", "Jobs that entered a phase.", "phase")
        self._made = metrics.counter(
            "baton_job_groups_made",
            "PodGroups of jobs, admitted by the credit of their queue or left to the scheduler.",
            "admitted_by",
        )
        self._latency = metrics.histogram(
            "volcano_controller_job_to_pod_creation_latency_milliseconds",
            "From the creation of a job to the creation of its first pods.",
            buckets=_MILLISECONDS,
        )

    def watch(self, scope: Scope, wake: Wake) -> None:
        self._wake = wake

        def woken(key: Key) -> None:
            self._waiting[key] = None
            wake(key)

        jobs = scope.store(JOBS)
        pods = scope.store(PODS, {"job": job_keys_of})
        groups = scope.store(POD_GROUPS)
        queues = scope.store(QUEUES)
        self._commands: Store[Command] = scope.store(COMMANDS, {"job": target_keys})
        self._classes: Store[PriorityClass] = scope.store(PRIORITY_CLASSES)

        def pod_changed(delta: Delta[Pod]) -> None:
            item = delta.new or delta.old
            assert item is not None
            if delta.new is not None and self._pods.is_own(delta.new):
                return
            if delta.old is not None and delta.new is not None and not _is_news(delta.old, delta.new):
                return
            for name in job_keys_of(item):
                key = Key(name)
                if delta.new is None:
                    self._remember_end(key, item)
                woken(key)

        def group_changed(delta: Delta[PodGroup]) -> None:
            item = delta.new or delta.old
            assert item is not None
            if delta.new is not None and self._groups.is_own(delta.new):
                return
            for name in job_keys_of(item):
                woken(Key(name))

        def command_changed(delta: Delta[Command]) -> None:
            if delta.new is not None:
                for name in target_keys(delta.new):
                    woken(Key(name))

        # Subscribed before the fresh stores: those forget their deletions once they see that the object is gone.
        pods.subscribe(pod_changed)
        jobs.subscribe(lambda delta: woken(delta.key))
        groups.subscribe(group_changed)
        self._commands.subscribe(command_changed)
        self._jobs = FreshStore(jobs)
        self._pods = FreshStore(pods, job_keys_of)
        self._groups = FreshStore(groups, job_keys_of)
        self._executor = JobExecutor(self._client, self._jobs, self._pods, self._groups, QueueCredits(queues, groups))

    async def sync(self, key: Key) -> float | None:
        self._waiting.pop(key, None)
        self._called.discard(key)
        try:
            return await self._reconcile(key)
        finally:
            self._call_next()

    async def _reconcile(self, key: Key) -> float | None:
        job = self._jobs.get(key)
        if job is None or job.metadata.deletion_timestamp:
            self._memories.pop(key, None)
            self._new.pop(key, None)
            self._later.pop(key, None)
            return await self._dismiss(key, self._commands.by_index("job", key), seen=job is not None)
        pods = {pod.metadata.name: pod for pod in self._pods.members("job", key) if is_of(pod.metadata, job)}
        memory = self._recall(key, job, pods.values())
        if not job.status.state.phase:
            self._new[key] = None
        try:
            again_s = await self._step(job, pods, memory)
            return _earliest(again_s, self._pods.unseen_s(key), self._groups.unseen_s(key))
        except ConflictError:
            # Another client changed the job first, and the watch is about to show how.
            memory.due_s = None
            return COALESCE_S
        except ForbiddenError as error:
            if not error.namespace_ends:
                raise
            return None  # the namespace is terminating, and the job with it

    async def _step(self, job: Job, pods: dict[str, Pod], memory: Memory) -> float | None:
        now_s = self._now().timestamp()
        views = [self._view(pod) for pod in pods.values()]
        group = self._groups.get(Key(f"{job.metadata.namespace}/{group_name(job)}"))
        command = self._next_command(job, memory)
        begun = bool(job.status.state.phase)
        world = World(
            job=job,
            pods=views,
            group=group,
            gone=self._gone(job, memory, views),
            order=_order(command, job) if command is not None else None,
            updated=memory.updated,
            seen_s=memory.seen_s,
            now_s=now_s,
        )
        plan = decide(world)
        if plan.reaction is not None:
            job = await self._store_intention(job, plan, memory)
        elif begun and world.order is None:
            self._watch_causes(world, plan, memory)
        if command is not None and (begun or world.order is None):
            await self._close(job, command, plan, memory)
        if plan.delete and group is not None and plan.group is GroupTarget.PRESENT:
            # The group asks for fewer pods before they go; otherwise the scheduler takes them as lost.
            group = await self._keep_group(job, group)
        await self._executor.remove_pods([pods[pod.name] for pod in plan.delete], [pods[name] for name in plan.mark])
        status, missing, created = plan.status, False, False
        try:
            if plan.group is GroupTarget.PRESENT:
                with self._reporting(job, REFUSED):
                    for task in job.spec.tasks:
                        check_template(task)
            job, status = await self._prepare(job, plan)
            created = await self._keep_group_and_pods(
                msgspec.structs.replace(world, job=job, group=group), plan, memory
            )
        except ClaimMissingError:
            missing = True
        except TemplateError as error:
            memory.refused(error)
        finally:
            # The phase and the counts are true, even if something was refused.
            status = _with_refusal(status, memory)
            again_s = await self._record(job, status, memory, asked=world.order is not None)
        self._report_pending(job, group, memory)
        return _earliest(
            again_s,
            plan.wait_s,
            0.0 if command is not None and begun else None,
            COALESCE_S if created and job.status.state.phase else None,
            _CLAIM_AGAIN_S if missing else None,
            max(COALESCE_S, memory.refusal.left_s) if memory.refusal is not None else None,
        )

    async def _store_intention(self, job: Job, plan: Plan, memory: Memory) -> Job:
        """Write the plan into the status before any of it is carried out."""
        job = await self._store(job, plan.status, memory)
        self._recorder.record_all(job.metadata.reference(JOB_KIND, BATCH), plan.events)
        memory.forget_causes()
        memory.hurry()
        return job

    async def _prepare(self, job: Job, plan: Plan) -> tuple[Job, JobStatus]:
        """Create what the job needs besides its pods. Returns the job, and the status that records it."""
        status = plan.status
        plugins = plugins_of(job.spec)
        if plan.plugin_objects is True and (plugins or job.spec.volumes):
            with self._reporting(job, "PVCError"):
                job, claims = await self._executor.keep_claims(job)
            with self._reporting(job, "PluginError"):
                job, records = await self._executor.keep_plugin_objects(job, plugins)
            return job, msgspec.structs.replace(status, controlled_resources={**records, **claims})
        if plan.plugin_objects is False and any(name.startswith("plugin-") for name in status.controlled_resources):
            records = await self._executor.remove_plugin_objects(job, plugins)
            return job, msgspec.structs.replace(status, controlled_resources=records)
        return job, status

    async def _keep_group_and_pods(self, world: World, plan: Plan, memory: Memory) -> bool:
        """Keep the PodGroup and create pods. Returns whether there may be new pods, which the status has to count."""
        job, group, create = world.job, world.group, plan.create
        if plan.group is GroupTarget.PRESENT:
            kept = await self._keep_group(job, group)
            if group is None and kept is not None:
                admitted = group_is_open(job, kept)
                self._made.labels("credit" if admitted else "scheduler").inc()
                if admitted:
                    create = decide(msgspec.structs.replace(world, group=kept)).create
        elif plan.group is GroupTarget.ABSENT and group is not None:
            await self._executor.remove_group(group)
        if not create:
            memory.refusal = None
            return False
        wary = memory.refusal is not None
        if memory.refusal is not None and memory.refusal.left_s > 0:
            return False
        # A pod carries the version and the retries of the status that requested it.
        asking = msgspec.structs.replace(job, status=plan.status)
        plugins: list[Plugin] = plugins_of(job.spec)
        try:
            with self._reporting(job, REFUSED):
                made = await self._executor.create_pods(asking, plugins, create, wary=wary)
        except (ConflictError, ThrottledError, UnreachableError):
            raise
        except BatonError as error:
            if isinstance(error, ForbiddenError) and error.namespace_ends:
                raise
            memory.refused(error)
            _LOG.warning("pods refused", job=str(key_of(job)), error=str(error))
            return True  # some may have been created
        memory.refusal = None
        began_s = seconds(job.metadata.creation_timestamp)
        if made and began_s is not None:
            self._latency.observe(max(0.0, self._now().timestamp() - began_s) * 1000)
        return made

    async def _keep_group(self, job: Job, group: PodGroup | None) -> PodGroup | None:
        classes = {item.metadata.name: item.value for item in self._classes}
        with self._reporting(job, "PodGroupError"):
            return await self._executor.keep_group(job, group, classes)

    async def _record(self, job: Job, status: JobStatus, memory: Memory, *, asked: bool) -> float | None:
        """Write the status now or later, and return the delay. Policies and commands act only on a job that has a
        status, so if there is a command (`asked`) or the end of a pod, a first status is written now."""
        key = key_of(job)
        if status == job.status:
            memory.due_s = None
            self._later.pop(key, None)
            return None
        begun = bool(job.status.state.phase)
        moved = begun and status.state.phase != job.status.state.phase
        crowd = self._is_crowd()
        eventful = asked or bool(memory.gone) or status.succeeded + status.failed + status.terminating > 0
        # Objects that are not recorded would be created again in every sync.
        furnished = status.controlled_resources != job.status.controlled_resources
        moves_now = moved and not (crowd and status.state.phase == JobPhase.RUNNING)
        urgent = moves_now or furnished or (eventful and not begun)
        now_s = time.monotonic()
        patience_s = CROWDED_S if crowd else COALESCE_S if begun else 0.0
        memory.due_s = now_s + patience_s if memory.due_s is None else min(memory.due_s, now_s + patience_s)
        early = now_s < memory.due_s
        if not urgent and (early or (crowd and self._writing >= STATUS_PLACES)):
            if crowd:
                self._later.setdefault(key, memory.due_s)
            return memory.due_s - now_s if early else None
        await self._store(job, status, memory, patient=crowd and not urgent)
        return 0.0 if moved or not begun else None

    def _is_crowd(self) -> bool:
        return len(self._waiting) + len(self._new) > CROWD

    def _call_next(self) -> None:
        """Give free slots to the jobs that have waited longest, once their time is over or the crowd is gone."""
        while self._later and self._writing + len(self._called) < STATUS_PLACES:
            key, due_s = next(iter(self._later.items()))
            now_s = time.monotonic()
            if self._is_crowd() and now_s < due_s:
                return
            del self._later[key]
            memory = self._memories.get(key)
            if memory is not None:
                memory.due_s = now_s
                self._called.add(key)
                self._wake(key)

    async def _store(self, job: Job, status: JobStatus, memory: Memory, *, patient: bool = False) -> Job:
        self._writing += 1
        try:
            written = await self._executor.write_status(job, status, patient=patient)
        finally:
            self._writing -= 1
        memory.due_s = None
        self._new.pop(key_of(job), None)
        self._later.pop(key_of(job), None)
        if written.status.state.phase != job.status.state.phase:
            self._entered.labels(written.status.state.phase).inc()
            _LOG.info(
                "job entered phase",
                job=str(key_of(job)),
                phase=written.status.state.phase,
                reason=status.state.reason,
                message=status.state.message,
            )
        return written

    def _next_command(self, job: Job, memory: Memory) -> Command | None:
        waiting = [item for item in self._commands.by_index("job", key_of(job)) if item.metadata.uid not in memory.done]
        return min(waiting, key=lambda item: (item.metadata.creation_timestamp, version_of(item)), default=None)

    async def _close(self, job: Job, command: Command, plan: Plan, memory: Memory) -> None:
        """Delete a command that was handled and report its effect. A deletion that fails is repeated: the next process
        would carry out a command that was left behind."""
        with self._reporting(job, "CommandError"):
            await self._consume(command)
        memory.done.add(command.metadata.uid)
        order = _order(command, job)
        earlier = order is not None and order.signature == job.status.state.message
        obeyed = plan.reaction is not None and plan.reaction.cause.event == JobEvent.COMMAND_ISSUED
        phase = phase_of(job)
        effect = "carried out" if obeyed or earlier else f"no effect on a job in phase {phase}"
        self._emit(job, "CommandIssued", f"command {command.action} ({command.metadata.name}): {effect}")

    async def _dismiss(self, key: Key, commands: list[Command], *, seen: bool) -> float | None:
        """Delete the commands of a job that is gone. If the job was merely not `seen` yet, wait for it."""
        if commands and not seen:
            namespace, _, name = key.partition("/")
            with contextlib.suppress(NotFoundError):
                await self._client.get(JOBS, name, namespace)
                return COALESCE_S
        for command in commands:
            await self._consume(command)
        return None

    async def _consume(self, command: Command) -> None:
        metadata = command.metadata
        only = {"preconditions": {"uid": metadata.uid}}
        with contextlib.suppress(NotFoundError, ConflictError):  # gone, or replaced by another one of that name
            await self._client.delete(COMMANDS, metadata.name, metadata.namespace, options=only)

    def _recall(self, key: Key, job: Job, pods: Iterable[Pod]) -> Memory:
        """What is remembered of the job, including whether its spec has changed since."""
        shape = (job.spec.min_available, job.spec.priority_class_name, *(task.replicas for task in job.spec.tasks))
        memory = self._memories.get(key)
        if memory is None or memory.uid != job.metadata.uid:
            memory = self._memories[key] = Memory(job.metadata.uid, shape)
            for pod in lost_while_away(job, [view(pod) for pod in pods]):
                memory.gone[pod.name] = pod
        if memory.shape != shape:
            memory.updated = True
            memory.hurry()
        memory.shape = shape
        return memory

    def _view(self, pod: Pod) -> PodView:
        seen = view(pod)
        if self._pods.is_deleted(pod):
            seen = msgspec.structs.replace(seen, terminating=True, marked=True)
        return seen

    def _remember_end(self, key: Key, pod: Pod) -> None:
        """A pod is gone. The next sync of the job decides whether that matters."""
        memory = self._memories.get(key)
        ours = any(owner.uid == memory.uid for owner in pod.metadata.owner_references) if memory is not None else False
        if memory is not None and ours and not self._pods.is_deleted(pod):
            memory.gone[pod.metadata.name] = view(pod)

    def _gone(self, job: Job, memory: Memory, pods: list[PodView]) -> list[tuple[str, str]]:
        """Pods of this life that the controller did not delete and that have no running replacement."""
        replaced = {pod.name for pod in pods if pod.phase != PodPhase.PENDING}
        replicas = {task.name: task.replicas for task in job.spec.tasks}
        for name, pod in list(memory.gone.items()):
            past = pod.version != job.status.version or pod.marked or pod.index >= replicas.get(pod.task, 0)
            if past or name in replaced:
                del memory.gone[name]
        return [(pod.task, pod.name) for pod in memory.gone.values()]

    def _watch_causes(self, world: World, plan: Plan, memory: Memory) -> None:
        """While the timeout of a policy runs, remember since when its cause is known; otherwise forget."""
        if plan.wait_s is None:
            memory.forget_causes()
            return
        for cause in plan.waiting:
            memory.seen_s.setdefault(cause.key, world.now_s)

    def _report_pending(self, job: Job, group: PodGroup | None, memory: Memory) -> None:
        condition = _latest(group) if group is not None else None
        if condition is None or condition.type == "Scheduled" or phase_of(job).final:
            return
        words = f"PodGroup {job.metadata.namespace}:{job.metadata.name} {condition.type.lower()}, "
        words += f"reason: {condition.message}"
        if words != memory.reported:
            memory.reported = words
            self._emit(job, "PodGroupPending", words, warning=True)

    @contextlib.contextmanager
    def _reporting(self, job: Job, reason: str) -> Iterator[None]:
        """Report a refusal of the API server as an event."""
        try:
            yield
        except UnreachableError:
            raise  # the job is not the cause
        except BatonError as error:
            self._emit(job, reason, str(error), warning=True)
            raise

    def _emit(self, job: Job, reason: str, message: str, *, warning: bool = False) -> None:
        self._recorder.record(job.metadata.reference(JOB_KIND, BATCH), reason, message, warning=warning)


def _order(command: Command, job: Job) -> Order | None:
    """The order in a command; None if it was meant for an earlier job of that name."""
    meant = command.target.uid if command.target is not None else ""
    if meant not in ("", job.metadata.uid):
        return None
    return Order(command.action, command.metadata.name, command.metadata.uid)


def _with_refusal(status: JobStatus, memory: Memory) -> JobStatus:
    """The status with the reason for refused pods, as long as the job waits for them."""
    state = status.state
    if memory.refusal is not None and state.phase in (JobPhase.PENDING, JobPhase.RUNNING):
        state = msgspec.structs.replace(state, reason=REFUSED, message=memory.refusal.words)
    elif state.reason == REFUSED:
        state = msgspec.structs.replace(state, reason="", message="")
    return msgspec.structs.replace(status, state=state)


def _is_news(old: Pod, new: Pod) -> bool:
    """Whether the change of a pod can matter to its job. Its assignment to a node, for example, does not."""
    return view(old) != view(new) or old.metadata.owner_references != new.metadata.owner_references


def _latest(group: PodGroup) -> PodGroupCondition | None:
    true = [condition for condition in group.status.conditions if condition.status == "True"]
    return max(true, key=lambda condition: condition.last_transition_time or "", default=None)


def _earliest(*times_s: float | None) -> float | None:
    return min((time_s for time_s in times_s if time_s is not None), default=None)
