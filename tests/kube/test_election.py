"""The election where the moment counts: what a real API server shows only now and then."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from baton.kube.election import Election
from baton.kube.objects import Lease, LeaseSpec, Metadata

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class LeaseKeeper:
    """An API server with one lease; `stop` is called in the moment when a renewal has succeeded."""

    def __init__(self) -> None:
        self.lease = Lease(metadata=Metadata(name="test", resource_version="0"), spec=LeaseSpec(holder_identity="me"))
        self.written: list[str] = []
        self.stop: Callable[[], object] | None = None

    async def get(self, *_: Any) -> Lease:
        await asyncio.sleep(0.01)
        return self.lease

    async def replace(self, _: Any, name: str, body: dict[str, Any], __: str) -> Lease:
        await asyncio.sleep(0.01)
        holder = body["spec"]["holderIdentity"]
        self.written.append(holder)
        self.lease = Lease(
            metadata=Metadata(name=name, resource_version=str(len(self.written))),
            spec=LeaseSpec(holder_identity=holder),
        )
        if len(self.written) == 2 and self.stop is not None:
            asyncio.get_running_loop().call_soon(self.stop)
        return self.lease


async def lead() -> None:
    await asyncio.Event().wait()


async def test_a_leader_that_is_stopped_in_the_moment_of_a_renewal_gives_the_lease_back() -> None:
    """A cancellation that comes when what is waited for has just ended must not be lost: the lease would be renewed
    for ever by a program that leads no more."""
    server = LeaseKeeper()
    election = Election(server, "test", "default", "me", duration_s=60, renew_deadline_s=40, retry_s=1)  # type: ignore[arg-type]  # as much of a client as it needs
    task = asyncio.create_task(election.run(lead))
    server.stop = task.cancel
    _, still_running = await asyncio.wait({task}, timeout=30)
    assert not still_running
    assert server.written == ["me", "me", ""]
