"""Leader election on a Lease, compatible with client-go's.

One replica holds the lease and renews it; the others look now and then and take it when it has not been renewed for
its duration. Clocks of different machines are never compared: a candidate measures, on its own monotonic clock, how
long the record has not changed. A leader that cannot renew in `renew_deadline_s` stops leading *before* anybody else
may start, because the deadline is shorter than the duration. Both count from when a renewal was sent, which no
candidate can have seen earlier: its answer may be late.
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
        """The lease as our last write left it; None when it must be read first."""
        self._sent_at = 0.0
        """When the last write that succeeded was sent."""
        self._complained: type[BatonError] | None = None
        """What the last try came to, if it failed."""
        self.leader: str = ""
        """Who leads, as far as we know."""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, then run `lead` while it is ours; returns when `lead` returns or the lease is lost."""
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
        """Renew until it has failed for the whole deadline."""
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
        """Make the lease ours, or keep it so; False when it is somebody else's or cannot be reached."""
        try:
            ours = await self._acquire()
        except BatonError as error:
            # Once for each reason: somebody looks for it here, and a server that is away need not be told of all day.
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
        """Give the lease up, so that the next leader need not wait for it to run out."""
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
            if lease.spec.holder_identity == self.identity:
                spec = {**self._spec(lease), "holderIdentity": "", "leaseDurationSeconds": 1}
                body = {"metadata": self._metadata(lease), "spec": spec}
                await self._client.replace(LEASES, self._name, body, self._namespace)
        except BatonError as error:
            _LOG.debug("lease not released", lease=self._name, error=str(error))

    def _metadata(self, lease: Lease) -> dict[str, Any]:
        """The version that is replaced; marks that others set on the lease stay."""
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
