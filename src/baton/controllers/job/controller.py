"""Keeps Volcano's Jobs true: sees what is there, asks the phase machine, has its plan carried out.

Status is written at once when the phase changes. Counts that change within a phase are written a little later, because
the pods of a gang start one after the other and only the last count is of interest. In a crowd of jobs PodGroups and
pods come first: good news (pending, running, counts) waits longer and goes through a few places only, so that a job
that runs by then has cost one write instead of three. Nobody asks again and again whether it is time: a job whose news
wait is looked at when something happens to it, when its patience is over, or when a place is free and its turn has
come. What ends a job, or begins its next life, never waits.

Commands are at-least-once made exactly-once: an order is carried out, its signature is stored in the status with the
new phase, and only then is the Command deleted. A process that dies in between is followed by one that recognises it.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator

import msgspec
import structlog

from baton.controllers.controller import Surroundings, Wake
from baton.controllers.expectations import Echoes
from baton.controllers.job.census import phase_of
from baton.controllers.job.executor import ClaimMissingError, JobHands
from baton.controllers.job.lifecycle import PodView
from baton.controllers.job.phases import GroupWish, Order, Plan, World, decide, group_is_open
from baton.controllers.job.pods import TemplateError, check_template, group_name, view
from baton.controllers.job.tracking import REFUSED, Memory, is_of, job_keys_of, lost_while_away, target_keys
from baton.controllers.object_events import record
from baton.controllers.queue.credit import QueueCredits
from baton.errors import BatonError
from baton.job_plugins import Plugin, plugins_of
from baton.kube.errors import ConflictError, ForbiddenError, NotFoundError, ThrottledError, UnreachableError
from baton.kube.informers import Scope
from baton.kube.store import Delta, Key, Store, key_of, version_of
from baton.model.core import PODS, PRIORITY_CLASSES, Pod, PriorityClass
from baton.model.names import JobEvent, JobPhase
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
"""How long a count may be old before it is written."""
CROWD = 48
"""So many jobs that have no status yet, or wait to be looked at, are a crowd."""
CROWDED_S = 30.0
"""How long a crowd may keep good news from being written."""
STATUS_PLACES = 8
"""Status writes under way at once in a crowd, of the 48 requests that there may be."""
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
        """Jobs without a status: in a stream they are as many as the API server is behind."""
        self._later: dict[Key, float] = {}
        """Jobs whose good news wait for the crowd to go, and until when, the longest waiting first."""
        self._called: set[Key] = set()
        """Those of them whose turn has come and that are about to be looked at."""
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

        # Before the echoes are told: they forget what they deleted when they hear that it is gone.
        pods.subscribe(pod_changed)
        jobs.subscribe(lambda delta: woken(delta.key))
        groups.subscribe(group_changed)
        self._commands.subscribe(command_changed)
        self._jobs = Echoes(jobs)
        self._pods = Echoes(pods, job_keys_of)
        self._groups = Echoes(groups, job_keys_of)
        self._hands = JobHands(self._client, self._jobs, self._pods, self._groups, QueueCredits(queues, groups))

    async def sync(self, key: Key) -> float | None:
        self._waiting.pop(key, None)
        self._called.discard(key)
        try:
            return await self._look_at(key)
        finally:
            self._call_next()

    async def _look_at(self, key: Key) -> float | None:
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
            return _soonest(again_s, self._pods.unseen_s(key), self._groups.unseen_s(key))
        except ConflictError:
            # Somebody else changed the job first; the watch is about to show what.
            memory.due_s = None
            return COALESCE_S
        except ForbiddenError as error:
            if not error.namespace_ends:
                raise
            return None  # the namespace is on its way out, and the job with it

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
            job = await self._intend(job, plan, memory)
        elif begun and world.order is None:
            self._watch_causes(world, plan, memory)
        if command is not None and (begun or world.order is None):
            await self._close(job, command, plan, memory)
        if plan.delete and group is not None and plan.group is GroupWish.PRESENT:
            # Fewer are wanted before they go, else the scheduler takes them for lost.
            group = await self._keep_group(job, group)
        await self._hands.remove_pods([pods[pod.name] for pod in plan.delete], [pods[name] for name in plan.mark])
        status, missing, created = plan.status, False, False
        try:
            if plan.group is GroupWish.PRESENT:
                with self._blaming(job, REFUSED):
                    for task in job.spec.tasks:
                        check_template(task)
            job, status = await self._furnish(job, plan)
            created = await self._tend(msgspec.structs.replace(world, job=job, group=group), plan, memory)
        except ClaimMissingError:
            missing = True
        except TemplateError as error:
            memory.refused(error)
        finally:
            # Whatever was refused: the phase and the counts are true.
            status = _with_refusal(status, memory)
            again_s = await self._record(job, status, memory, asked=world.order is not None)
        self._tell_why_pending(job, group, memory)
        return _soonest(
            again_s,
            plan.wait_s,
            0.0 if command is not None and begun else None,
            COALESCE_S if created and job.status.state.phase else None,
            _CLAIM_AGAIN_S if missing else None,
            max(COALESCE_S, memory.refusal.left_s) if memory.refusal is not None else None,
        )

    async def _intend(self, job: Job, plan: Plan, memory: Memory) -> Job:
        """Store what is going to happen before any of it does."""
        job = await self._store(job, plan.status, memory)
        record(self._recorder, job.metadata.reference(JOB_KIND, BATCH), plan.sayings)
        memory.forget_causes()
        memory.hurry()
        return job

    async def _furnish(self, job: Job, plan: Plan) -> tuple[Job, JobStatus]:
        """What the job needs beside its pods; returns it with the status that tells of that."""
        status = plan.status
        plugins = plugins_of(job.spec)
        if plan.belongings is True and (plugins or job.spec.volumes):
            with self._blaming(job, "PVCError"):
                job, claims = await self._hands.keep_claims(job)
            with self._blaming(job, "PluginError"):
                job, records = await self._hands.keep_belongings(job, plugins)
            return job, msgspec.structs.replace(status, controlled_resources={**records, **claims})
        if plan.belongings is False and any(name.startswith("plugin-") for name in status.controlled_resources):
            records = await self._hands.remove_belongings(job, plugins)
            return job, msgspec.structs.replace(status, controlled_resources=records)
        return job, status

    async def _tend(self, world: World, plan: Plan, memory: Memory) -> bool:
        """PodGroup and pods; returns whether pods were made, which the status has to count."""
        job, group, create = world.job, world.group, plan.create
        if plan.group is GroupWish.PRESENT:
            kept = await self._keep_group(job, group)
            if group is None and kept is not None:
                admitted = group_is_open(job, kept)
                self._made.labels("credit" if admitted else "scheduler").inc()
                if admitted:
                    create = decide(msgspec.structs.replace(world, group=kept)).create
        elif plan.group is GroupWish.ABSENT and group is not None:
            await self._hands.remove_group(group)
        if not create:
            memory.refusal = None
            return False
        wary = memory.refusal is not None
        if memory.refusal is not None and memory.refusal.left_s > 0:
            return False
        # A pod carries the version and the retries of the status that asked for it.
        asking = msgspec.structs.replace(job, status=plan.status)
        plugins: list[Plugin] = plugins_of(job.spec)
        try:
            with self._blaming(job, REFUSED):
                made = await self._hands.create_pods(asking, plugins, create, wary=wary)
        except (ConflictError, ThrottledError, UnreachableError):
            raise
        except BatonError as error:
            if isinstance(error, ForbiddenError) and error.namespace_ends:
                raise
            memory.refused(error)
            _LOG.warning("pods refused", job=str(key_of(job)), error=str(error))
            return True  # some may have been made
        memory.refusal = None
        began_s = seconds(job.metadata.creation_timestamp)
        if made and began_s is not None:
            self._latency.observe(max(0.0, self._now().timestamp() - began_s) * 1000)
        return made

    async def _keep_group(self, job: Job, group: PodGroup | None) -> PodGroup | None:
        classes = {item.metadata.name: item.value for item in self._classes}
        with self._blaming(job, "PodGroupError"):
            return await self._hands.keep_group(job, group, classes)

    async def _record(self, job: Job, status: JobStatus, memory: Memory, *, asked: bool) -> float | None:
        """Write the status now or later; returns when later is. Nothing is judged of a job that has none yet: where
        there is something to be judged, a command that was `asked` or the end of a pod, it is written now."""
        key = key_of(job)
        if status == job.status:
            memory.due_s = None
            self._later.pop(key, None)
            return None
        begun = bool(job.status.state.phase)
        moved = begun and status.state.phase != job.status.state.phase
        crowd = self._is_crowd()
        eventful = asked or bool(memory.gone) or status.succeeded + status.failed + status.terminating > 0
        # What was made and is not recorded is made again at each look.
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
        """Give free places to the jobs that have waited longest: long enough, or until the crowd was gone."""
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
            written = await self._hands.write_status(job, status, patient=patient)
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
        """A command is done with: delete it and say what became of it. One that cannot be deleted comes here again:
        left behind, it would be carried out once more by the next process."""
        with self._blaming(job, "CommandError"):
            await self._consume(command)
        memory.done.add(command.metadata.uid)
        order = _order(command, job)
        earlier = order is not None and order.signature == job.status.state.message
        obeyed = plan.reaction is not None and plan.reaction.cause.event == JobEvent.COMMAND_ISSUED
        phase = phase_of(job)
        effect = "carried out" if obeyed or earlier else f"without effect on a job that is {phase}"
        self._say(job, "CommandIssued", f"command {command.action} ({command.metadata.name}): {effect}")

    async def _dismiss(self, key: Key, commands: list[Command], *, seen: bool) -> float | None:
        """Commands for a job that is gone go too; one that is only not `seen` yet is waited for."""
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
        with contextlib.suppress(NotFoundError, ConflictError):  # gone, or another one of that name by now
            await self._client.delete(COMMANDS, metadata.name, metadata.namespace, options=only)

    def _recall(self, key: Key, job: Job, pods: Iterable[Pod]) -> Memory:
        """What is remembered of the job, that its spec has changed since included."""
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
        """A pod is gone; whether that matters is for the next look at the job to say."""
        memory = self._memories.get(key)
        ours = any(owner.uid == memory.uid for owner in pod.metadata.owner_references) if memory is not None else False
        if memory is not None and ours and not self._pods.is_deleted(pod):
            memory.gone[pod.metadata.name] = view(pod)

    def _gone(self, job: Job, memory: Memory, pods: list[PodView]) -> list[tuple[str, str]]:
        """Pods of this life that went away by themselves and have no running replacement."""
        replaced = {pod.name for pod in pods if pod.phase != "Pending"}
        replicas = {task.name: task.replicas for task in job.spec.tasks}
        for name, pod in list(memory.gone.items()):
            past = pod.version != job.status.version or pod.marked or pod.index >= replicas.get(pod.task, 0)
            if past or name in replaced:
                del memory.gone[name]
        return [(pod.task, pod.name) for pod in memory.gone.values()]

    def _watch_causes(self, world: World, plan: Plan, memory: Memory) -> None:
        """Remember since when a cause is known while a policy's timeout runs; without one nothing is remembered."""
        if plan.wait_s is None:
            memory.forget_causes()
            return
        for cause in plan.waiting:
            memory.seen_s.setdefault(cause.key, world.now_s)

    def _tell_why_pending(self, job: Job, group: PodGroup | None, memory: Memory) -> None:
        condition = _latest(group) if group is not None else None
        if condition is None or condition.type == "Scheduled" or phase_of(job).final:
            return
        words = f"PodGroup {job.metadata.namespace}:{job.metadata.name} {condition.type.lower()}, "
        words += f"reason: {condition.message}"
        if words != memory.said:
            memory.said = words
            self._say(job, "PodGroupPending", words, warning=True)

    @contextlib.contextmanager
    def _blaming(self, job: Job, reason: str) -> Iterator[None]:
        """Tell the user what the API server did not want."""
        try:
            yield
        except UnreachableError:
            raise  # says nothing about the job
        except BatonError as error:
            self._say(job, reason, str(error), warning=True)
            raise

    def _say(self, job: Job, reason: str, message: str, *, warning: bool = False) -> None:
        self._recorder.record(job.metadata.reference(JOB_KIND, BATCH), reason, message, warning=warning)


def _order(command: Command, job: Job) -> Order | None:
    """What a command asks of the job; nothing if it was meant for an earlier one of that name."""
    meant = command.target.uid if command.target is not None else ""
    if meant not in ("", job.metadata.uid):
        return None
    return Order(command.action, command.metadata.name, command.metadata.uid)


def _with_refusal(status: JobStatus, memory: Memory) -> JobStatus:
    """The status with the reason why pods are refused, for as long as they are and the job waits for them."""
    state = status.state
    if memory.refusal is not None and state.phase in (JobPhase.PENDING, JobPhase.RUNNING):
        state = msgspec.structs.replace(state, reason=REFUSED, message=memory.refusal.words)
    elif state.reason == REFUSED:
        state = msgspec.structs.replace(state, reason="", message="")
    return msgspec.structs.replace(status, state=state)


def _is_news(old: Pod, new: Pod) -> bool:
    """Whether the change of a pod can matter to its job: that it was given a node, for one, does not."""
    return view(old) != view(new) or old.metadata.owner_references != new.metadata.owner_references


def _latest(group: PodGroup) -> PodGroupCondition | None:
    true = [condition for condition in group.status.conditions if condition.status == "True"]
    return max(true, key=lambda condition: condition.last_transition_time or "", default=None)


def _soonest(*times_s: float | None) -> float | None:
    return min((time_s for time_s in times_s if time_s is not None), default=None)
