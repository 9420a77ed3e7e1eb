"""Carries out bindings: in parallel, in the order of the plan, each until its outcome is known.

The binder retries a bind while the API server is busy or unreachable. A retry is safe: the request names the pod's uid,
and for a pod that is already bound the API server answers with a conflict. The binder then reads the pod; if it is on
the planned node, the bind succeeded. A bind that fails for good is withdrawn in the engine, and the pod is left alone
for a pause that doubles with each failure. In a namespace that is being deleted the pause is the longest one at once,
and there is no event, because the pod will be deleted too.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple

import msgspec
import structlog

from baton.engine.events import BindFailed
from baton.engine.objects import CardGrant, CardKind
from baton.engine.plan import Binding
from baton.errors import BatonError
from baton.kube.client import Client
from baton.kube.errors import ApiError, ConflictError, ForbiddenError, NotFoundError, ThrottledError, UnreachableError
from baton.kube.queue import doubled
from baton.kube.recorder import Recorder
from baton.mapping.cards import binding_annotations
from baton.model import core
from baton.model.card_annotations import ASSIGNED_TIME
from baton.model.ids import Key, NodeName, PodKey
from baton.model.meta import ObjectReference
from baton.model.numerals import whole_number
from baton.scheduler.feed.feed import Feed
from baton.scheduler.metrics import Metrics
from baton.scheduler.nodelock import NodeLocks
from baton.scheduler.settings import Settings

_LOG = structlog.get_logger("baton.scheduler")

_BURST = 20
_BURST_S = 2.0
"""This many bindings in this many seconds are a burst."""
_LONG_BURST = 50
_LONG_BURST_S = 10.0
"""So are this many in this many seconds: under load, bindings at a slow API server come in fits and starts."""
_NAMESPACE_ENDS = "its namespace is being deleted"
_LATEST_S = 2**40
"""Device plugins set the time of an allocated pod to the largest number there is, which is not a real time."""


class Bind(NamedTuple):
    """One binding in flight."""

    key: PodKey
    uid: str
    node: NodeName
    cards: tuple[CardGrant, ...]
    planned_at: float


class _Target(msgspec.Struct, frozen=True):
    name: str
    kind: str = "Node"
    api_version: str = msgspec.field(name="apiVersion", default="v1")


class _BindingMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    namespace: str
    uid: str
    annotations: dict[str, str] = {}


class _BindingBody(msgspec.Struct, frozen=True):
    metadata: _BindingMeta
    target: _Target
    kind: str = "Binding"
    api_version: str = msgspec.field(name="apiVersion", default="v1")


class Binder:
    """A queue of bindings and its workers."""

    def __init__(
        self,
        client: Client,
        feed: Feed,
        recorder: Recorder,
        good_news: Recorder,
        settings: Settings,
        metrics: Metrics,
        locks: NodeLocks,
    ) -> None:
        self._client = client
        self._feed = feed
        self._recorder = recorder
        self._good_news = good_news
        self._settings = settings
        self._metrics = metrics
        self._locks = locks
        self._waiting: deque[Bind] = deque()
        self._ready = asyncio.Semaphore(0)
        self._slow: set[asyncio.Task[None]] = set()
        self._failures: dict[PodKey, tuple[str, int]] = {}
        """How often the bind of a pod has failed, with the pod's uid."""
        self._timers: dict[PodKey, asyncio.TimerHandle] = {}
        self._last_time: dict[NodeName, int] = {}
        self._encode = msgspec.json.Encoder().encode
        self.on_the_way = 0
        """Bindings submitted and not yet settled."""
        self._settled: deque[float] = deque(maxlen=_LONG_BURST)
        """When the last bindings were settled, on the monotonic clock."""
        self.idle = asyncio.Event()
        self.idle.set()

    def submit(self, bindings: Iterable[Binding]) -> None:
        """Take over a plan's bindings."""
        now = time.monotonic()
        for binding in bindings:
            pod = self._feed.pods.get(Key(binding.pod))
            if pod is None:
                continue  # the engine is about to learn of its removal
            bind = Bind(binding.pod, pod.metadata.uid, binding.node, binding.cards, now)
            self.on_the_way += 1
            self._metrics.assumed(bind.key)
            if pod.spec.volumes and self._feed.volumes.unbound(pod):
                self._spawn(self._carry_out(bind))
            else:
                self._waiting.append(bind)
                self._ready.release()
        if self.on_the_way:
            self.idle.clear()

    def in_burst(self) -> bool:
        """Whether so many pods are being bound that any other request would delay one of them. Also true while the API
        server stalls, so that many bindings wait and none succeeds."""
        return (
            len(self._waiting) >= _BURST
            or self._settled_within(_BURST, _BURST_S)
            or self._settled_within(_LONG_BURST, _LONG_BURST_S)
        )

    def _settled_within(self, number: int, seconds: float) -> bool:
        return len(self._settled) >= number and time.monotonic() < self._settled[-number] + seconds

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._settings.parallel_binds):
                    group.create_task(self._serve())
        finally:
            for timer in self._timers.values():
                timer.cancel()
            for task in self._slow:
                task.cancel()
            await asyncio.gather(*self._slow, return_exceptions=True)

    async def _serve(self) -> None:
        while True:
            await self._ready.acquire()
            await self._carry_out(self._waiting.popleft())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)

    async def _carry_out(self, bind: Bind) -> None:
        try:
            if self._needs_lock(bind):
                self._spawn(self._behind_lock(bind))
                return
            problem = await self._bind(bind)
        except BatonError as error:
            problem = str(error)
        self._done(bind, problem)

    def _needs_lock(self, bind: Bind) -> bool:
        """Whether the bind needs the node's lock; it then waits in a separate task, not in a worker."""
        return self._locks.enabled and any(grant.kind is CardKind.VGPU for grant in bind.cards)

    async def _behind_lock(self, bind: Bind) -> None:
        try:
            async with asyncio.timeout(self._locks.wait_limit_s):
                await self._locks.acquire(bind.node, bind.key, bind.uid)
            problem = await self._bind(bind)
        except TimeoutError:
            problem = f"the lock of node {bind.node} was not free within {self._locks.wait_limit_s:.0f} s"
        except BatonError as error:
            problem = str(error)
        if problem:
            await self._locks.release(bind.node, bind.key, bind.uid)
        self._done(bind, problem)

    def _done(self, bind: Bind, problem: str) -> None:
        self.on_the_way -= 1
        self._settled.append(time.monotonic())
        if not self.on_the_way:
            self.idle.set()
        if problem:
            self._failed(bind, problem)
        else:
            self._succeeded(bind)

    async def _bind(self, bind: Bind) -> str:
        """Bind the pod; return an empty string on success, otherwise the problem."""
        pod = self._feed.pods.get(Key(bind.key))
        if pod is None or pod.metadata.uid != bind.uid:
            return "the pod is gone"
        if pod.spec.volumes and self._feed.volumes.unbound(pod):
            node = self._feed.nodes.get(Key(bind.node))
            if node is None:
                return f"node {bind.node} is gone"
            await self._feed.volumes.bind(self._client, pod, node, self._settings.volume_limit_s)
        body = self._body(bind, pod)
        path = core.PODS.path(pod.metadata.namespace, pod.metadata.name, "binding")
        deadline = time.monotonic() + self._settings.bind_limit_s
        pause_s = self._settings.retry_first_s
        while True:
            try:
                await self._client.request("POST", path, body=body, timeout_s=self._settings.request_limit_s)
                return ""
            except NotFoundError:
                return "the pod is gone"
            except ConflictError as error:
                outcome = await self._read_back(bind)
                if outcome is not None:
                    return outcome
                problem = error.message
            except ThrottledError as error:
                problem = error.message
                pause_s = max(pause_s, error.retry_after_s or 0.0)
            except (ApiError, UnreachableError) as error:
                if isinstance(error, ForbiddenError) and error.namespace_ends:
                    return _NAMESPACE_ENDS
                if isinstance(error, ApiError) and error.status < 500:
                    return error.message or str(error)
                problem = str(error)
            self._metrics.bind_retry()
            if time.monotonic() + pause_s > deadline:
                return await self._settle(bind, problem)
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            pause_s = min(self._settings.retry_longest_s, pause_s * 2)

    async def _read_back(self, bind: Bind) -> str | None:
        """The outcome: empty if the pod is on our node, the problem if it cannot get there, None if it still may."""
        namespace, _, name = bind.key.partition("/")
        try:
            pod = await self._client.get(core.PODS, name, namespace)
        except NotFoundError:
            return "the pod is gone"
        except (ApiError, UnreachableError):
            return None
        if pod.metadata.uid != bind.uid:
            return "the pod is gone"
        if pod.spec.node_name == bind.node:
            return ""
        if pod.spec.node_name:
            return f"another scheduler bound it to {pod.spec.node_name}"
        return "the pod is being deleted" if pod.metadata.deletion_timestamp else None

    async def _settle(self, bind: Bind, problem: str) -> str:
        """Wait until it is certain that the last request did not succeed after all; only then may the pod be planned
        again."""
        while True:
            namespace, _, name = bind.key.partition("/")
            try:
                await self._client.get(core.PODS, name, namespace)
            except NotFoundError:
                return "the pod is gone"
            except (ApiError, UnreachableError):
                await asyncio.sleep(self._settings.retry_first_s * 5)
                continue
            return problem if (outcome := await self._read_back(bind)) is None else outcome

    def _body(self, bind: Bind, pod: core.Pod) -> bytes:
        annotations: dict[str, str] = {}
        if bind.cards:
            names = [container.name for container in pod.spec.containers]
            annotations = binding_annotations(bind.node, bind.cards, names, self._moment_s(bind.node))
        meta = _BindingMeta(pod.metadata.name, pod.metadata.namespace, bind.uid, annotations)
        return self._encode(_BindingBody(meta, _Target(bind.node)))

    def _moment_s(self, node: NodeName) -> int:
        """Seconds, different for any two pods of a node: a device plugin serves the earliest first."""
        last = self._last_time.get(node)
        if last is None:
            last = max((_time_of(pod) for pod in self._feed.pods if pod.spec.node_name == node), default=0)
        moment = self._last_time[node] = max(int(time.time()), last + 1)
        return moment

    def _succeeded(self, bind: Bind) -> None:
        self._failures.pop(bind.key, None)
        self._metrics.bound(bind.key, time.monotonic() - bind.planned_at)
        self._good_news.record(
            _about(bind), "Scheduled", f"Successfully assigned {bind.key} to {bind.node}{_cards_text(bind.cards)}"
        )

    def _failed(self, bind: Bind, problem: str) -> None:
        self._metrics.bind_failed()
        pod = self._feed.pods.get(Key(bind.key))
        if pod is None or pod.metadata.uid != bind.uid:
            return
        of, failures = self._failures.get(bind.key, ("", 0))
        failures = failures + 1 if of == bind.uid else 1
        self._failures[bind.key] = (bind.uid, failures)
        pause_s, held = self._settings.retry_longest_s, problem
        if problem != _NAMESPACE_ENDS:
            pause_s = doubled(self._settings.retry_first_s, failures, pause_s) * random.uniform(0.8, 1.2)
            _LOG.warning("bind failed", pod=bind.key, node=bind.node, reason=problem, pause_s=round(pause_s, 2))
            message = f"binding to {bind.node} failed: {problem}"
            self._recorder.record(_about(bind), "FailedScheduling", message, warning=True)
            held = f"its binding to {bind.node} failed ({problem}), and the scheduler tries again after a pause"
        self._feed.tell(BindFailed(bind.key))
        self._feed.hold(bind.key, bind.uid, held)
        if (timer := self._timers.get(bind.key)) is not None:
            timer.cancel()  # it belongs to an earlier pod of the same name
        loop = asyncio.get_running_loop()
        self._timers[bind.key] = loop.call_later(pause_s, self._release, bind.key)

    def _release(self, key: PodKey) -> None:
        self._timers.pop(key, None)
        if self._feed.pods.get(Key(key)) is None:
            self._failures.pop(key, None)
        self._feed.release(key)


def _about(bind: Bind) -> ObjectReference:
    namespace, _, name = bind.key.partition("/")
    return ObjectReference(kind="Pod", namespace=namespace, name=name, uid=bind.uid, api_version="v1")


def _cards_text(cards: tuple[CardGrant, ...]) -> str:
    named = [grant.card for grant in cards if "#" not in grant.card]
    return f", cards {', '.join(dict.fromkeys(named))}" if named else ""


def _time_of(pod: core.Pod) -> int:
    """The time at which the pod got its cards, from the annotation; 0 if the annotation has no time any more."""
    return whole_number(pod.metadata.annotations.get(ASSIGNED_TIME, ""), _LATEST_S) or 0
