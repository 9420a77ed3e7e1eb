"""Leader election on a Lease, compatible with client-go's.

One replica holds the lease and renews it. The others check it periodically and take it when it has not been renewed for
its duration. Clocks of different machines are never compared: a candidate measures on its own monotonic clock how long
the record has not changed. A leader that cannot renew within `renew_deadline_s` stops leading *before* another replica
may start, because the deadline is shorter than the duration. Both times count from the moment at which a renewal was
sent: no candidate can have seen it earlier, and its answer may be late.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from baton.errors import BatonError
from baton.kube.client import Client
from baton.kube.errors import ConflictError, NotFoundError
from baton.model import times
from baton.model.meta import LEASES, Lease, LeaseSpec

_LOG = structlog.get_logger("baton.kube")


class Election:
    """A candidate for one lease."""

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        *,
        duration_s: float = 15.0,
        renew_deadline_s: float = 10.0,
        retry_s: float = 2.0,
    ) -> None:
        if not retry_s < renew_deadline_s < duration_s:
            raise ValueError("an election needs retry_s < renew_deadline_s < duration_s")
        self._client = client.apart()  # a leader under load must not lose its lease to its own requests
        self._name = name
        self._namespace = namespace
        self.identity = identity
        self._duration_s = duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_s = retry_s
        self._seen: tuple[str, float] = ("", 0.0)
        self._held: Lease | None = None
        """The lease after our last write; None if it must be read first."""
        self._sent_at = 0.0
        """When the last successful write was sent."""
        self._complained: type[BatonError] | None = None
        """Why the last attempt failed, if it failed."""
        self.leader: str = ""
        """The last known leader."""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, then run `lead` while we hold it; return when `lead` returns or the lease is lost."""
        try:
            await self._run(lead)
        finally:
            await self._client.close()

    async def _run(self, lead: Callable[[], Awaitable[None]]) -> None:
        while not await self._try_acquire() or self._left_s() <= 0:  # noqa: ASYNC110  # there is no event: the server holds the state
            await asyncio.sleep(self._retry_s * random.uniform(0.8, 1.2))
        _LOG.info("leading", lease=self._name, identity=self.identity)
        work = asyncio.ensure_future(lead())
        renewal = asyncio.create_task(self._keep())
        try:
            await asyncio.wait({work, renewal}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost = renewal.done()
            for task in (work, renewal):
                if not task.done():
                    task.cancel()
            results = await asyncio.gather(work, renewal, return_exceptions=True)
            if lost:
                _LOG.warning("no longer leading", lease=self._name, identity=self.identity)
            else:
                await self._release()
        if isinstance(results[0], BaseException) and not isinstance(results[0], asyncio.CancelledError):
            raise results[0]

    async def _keep(self) -> None:
        """Renew until renewals have failed for the whole deadline."""
        while True:
            await asyncio.sleep(self._retry_s)
            try:
                async with asyncio.timeout(max(0.0, self._left_s())):
                    kept = await self._try_acquire()
            except TimeoutError:
                return
            if not kept and self.leader not in ("", self.identity):
                return

    def _left_s(self) -> float:
        """How long we may lead without another renewal."""
        return self._sent_at + self._renew_deadline_s - time.monotonic()

    async def _try_acquire(self) -> bool:
        """Take or renew the lease; False if another replica holds it or the API server does not answer."""
        try:
            ours = await self._acquire()
        except BatonError as error:
            # Log each reason once; an unreachable server would otherwise fill the log.
            if self._complained is not type(error):
                _LOG.warning("lease not acquired", lease=f"{self._namespace}/{self._name}", error=str(error))
            self._complained = type(error)
            return False
        self._complained = None
        return ours

    async def _acquire(self) -> bool:
        held, self._held = self._held, None
        try:
            lease = held or await self._client.get(LEASES, self._name, self._namespace)
        except NotFoundError:
            body = {"metadata": {"name": self._name}, "spec": self._spec(None)}
            sent_at = time.monotonic()
            self._hold(await self._client.create(LEASES, body, self._namespace), sent_at)
            return True
        holder = lease.spec.holder_identity or ""
        if lease.metadata.resource_version != self._seen[0]:
            self._seen = (lease.metadata.resource_version, time.monotonic())
        lasts_s = lease.spec.lease_duration_seconds or self._duration_s
        self.leader = holder
        if holder not in ("", self.identity) and time.monotonic() < self._seen[1] + lasts_s:
            return False
        body = {"metadata": self._metadata(lease), "spec": self._spec(lease)}
        sent_at = time.monotonic()
        try:
            self._hold(await self._client.replace(LEASES, self._name, body, self._namespace), sent_at)
        except ConflictError:
            return held is not None and await self._acquire()
        return True

    def _hold(self, lease: Lease, sent_at: float) -> None:
        self._held, self._sent_at, self.leader = lease, sent_at, self.identity

    async def _release(self) -> None:
        """Release the lease, so that the next leader does not wait for it to expire."""
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
            if lease.spec.holder_identity == self.identity:
                spec = {**self._spec(lease), "holderIdentity": "", "leaseDurationSeconds": 1}
                body = {"metadata": self._metadata(lease), "spec": spec}
                await self._client.replace(LEASES, self._name, body, self._namespace)
        except BatonError as error:
            _LOG.debug("lease not released", lease=self._name, error=str(error))

    def _metadata(self, lease: Lease) -> dict[str, Any]:
        """The metadata of the replaced version; labels and annotations of others stay."""
        old = lease.metadata
        marks = {"labels": old.labels, "annotations": old.annotations}
        return {"name": self._name, "resourceVersion": old.resource_version, **marks}

    def _spec(self, lease: Lease | None) -> dict[str, Any]:
        old = lease.spec if lease is not None else LeaseSpec()
        now = times.micro_stamp(time.time())
        ours = old.holder_identity == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "acquireTime": old.acquire_time if ours and old.acquire_time else now,
            "renewTime": now,
            "leaseTransitions": (old.lease_transitions or 0) + (0 if ours or lease is None else 1),
        }
