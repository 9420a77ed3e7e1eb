"""Carries out evictions through the Eviction API, which gives pods their grace and honours disruption budgets.

A refused eviction (by a budget, or because several budgets cover the pod) is not withdrawn at once, because the engine
would then try one victim after another without a pause. The pod counts as leaving until the pause is over. After that
it counts as staying, for a time that doubles with each refusal, so that the engine picks another victim.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus

import structlog

from baton.engine.events import EvictFailed
from baton.engine.plan import Eviction
from baton.kube.client import Client
from baton.kube.errors import ApiError, ConflictError, NotFoundError, ThrottledError, UnreachableError
from baton.kube.queue import WorkQueue, doubled
from baton.kube.recorder import Recorder
from baton.model import core
from baton.model.ids import Key, PodKey
from baton.model.meta import ObjectReference
from baton.scheduler.feed.feed import Feed
from baton.scheduler.metrics import Metrics
from baton.scheduler.settings import Settings

_LOG = structlog.get_logger("baton.scheduler")

_WORKERS = 8
_LONGEST_S = 60.0
"""Longest pause before the eviction of the same victim is retried, unless the first pause is longer."""


class Evictor:
    """The evictions of plans, until their outcome is known."""

    def __init__(
        self,
        client: Client,
        feed: Feed,
        recorder: Recorder,
        settings: Settings,
        metrics: Metrics,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._feed = feed
        self._recorder = recorder
        self._settings = settings
        self._metrics = metrics
        self._now_s = now_s
        self._queue: WorkQueue[PodKey] = WorkQueue()
        self._wanted: dict[PodKey, tuple[Eviction, str]] = {}
        self._timers: dict[PodKey, asyncio.TimerHandle] = {}
        self._refusals: dict[tuple[PodKey, str], int] = {}

    def submit(self, evictions: Iterable[Eviction]) -> None:
        for eviction in evictions:
            pod = self._feed.pods.get(Key(eviction.pod))
            if pod is not None:
                self._wanted[eviction.pod] = (eviction, pod.metadata.uid)
                self._queue.add(eviction.pod)

    async def run(self) -> None:
        try:
            await self._queue.run(self._evict, workers=_WORKERS)
        finally:
            self._queue.close()
            for timer in self._timers.values():
                timer.cancel()

    async def _evict(self, key: PodKey) -> None:
        if key not in self._wanted:
            return
        eviction, uid = self._wanted[key]
        namespace, _, name = key.partition("/")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        action = eviction.reason.split(" ", 1)[0]
        try:
            await self._client.request("POST", core.PODS.path(namespace, name, "eviction"), body=body)
        except (NotFoundError, ConflictError):
            self._wanted.pop(
                key, None
            )  # the pod is gone, or replaced by another of the same name; the watch reports it
            return
        except ThrottledError as error:
            self._metrics.eviction(action, "refused")
            self._refused(key, uid, error.message)
            return
        except UnreachableError:
            raise  # the queue retries
        except ApiError as error:
            if error.status > HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            # A pod that several budgets cover also gets an internal error; retrying does not help.
            self._metrics.eviction(action, "failed")
            self._refused(key, uid, error.message)
            return
        self._wanted.pop(key, None)
        self._metrics.eviction(action, "evicted")
        about = ObjectReference(kind="Pod", namespace=namespace, name=name, uid=uid, api_version="v1")
        self._recorder.record(about, "Evict", f"Pod is evicted, because it is {eviction.reason}", warning=True)
        _LOG.info("evicted", pod=key, node=eviction.node, reason=eviction.reason)

    def _refused(self, key: PodKey, uid: str, reason: str) -> None:
        _LOG.info("eviction refused", pod=key, reason=reason)
        self._wanted.pop(key, None)
        self._refusals = {known: times for known, times in self._refusals.items() if self._is_there(*known)}
        self._refusals[key, uid] = self._refusals.get((key, uid), 0) + 1
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(self._settings.evict_retry_s, self._give_up, key, uid)

    def _give_up(self, key: PodKey, uid: str) -> None:
        self._timers.pop(key, None)
        if self._is_there(key, uid):
            first_s, times = self._settings.evict_retry_s, self._refusals.get((key, uid), 1)
            pause_s = doubled(first_s, times - 1, max(first_s, _LONGEST_S))
            self._feed.tell(EvictFailed(key, self._now_s() + pause_s))

    def _is_there(self, key: PodKey, uid: str) -> bool:
        pod = self._feed.pods.get(Key(key))
        return pod is not None and pod.metadata.uid == uid
