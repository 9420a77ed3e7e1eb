"""The election in races that a real API server shows only rarely."""

import asyncio
import time
import types
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog.testing

from baton.kube.election import Election
from baton.kube.errors import ConflictError, ForbiddenError, UnreachableError
from baton.model.meta import Lease, LeaseSpec, Metadata

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class FakeClient:
    """As much of a client as an election needs, but for the requests."""

    def apart(self) -> "FakeClient":
        return self

    async def close(self) -> None:
        pass


class LeaseKeeper(FakeClient):
    """An API server with one lease; `stop` is called in the moment when a renewal has succeeded."""

    def __init__(self) -> None:
        metadata = Metadata(name="test", resource_version="0", labels={"team": "a"}, annotations={"why": "b"})
        self.lease = Lease(metadata=metadata, spec=LeaseSpec(holder_identity="me"))
        self.written: list[str] = []
        self.stop: Callable[[], object] | None = None

    async def get(self, *_: Any) -> Lease:
        await asyncio.sleep(0.01)
        return self.lease

    async def replace(self, _: Any, name: str, body: dict[str, Any], __: str) -> Lease:
        await asyncio.sleep(0.01)
        holder = body["spec"]["holderIdentity"]
        self.written.append(holder)
        marks = {key: body["metadata"].get(key, {}) for key in ("labels", "annotations")}
        self.lease = Lease(
            metadata=Metadata(name=name, resource_version=str(len(self.written)), **marks),
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
    left = server.lease.metadata
    assert (left.labels, left.annotations) == ({"team": "a"}, {"why": "b"}), "marks of others are not ours to remove"


class Registry(FakeClient):
    """An API server with one lease that two candidates want; one of them may get a late answer, and none afterwards."""

    def __init__(self) -> None:
        self.lease = Lease(metadata=Metadata(name="test", resource_version="0"), spec=LeaseSpec())
        self.late_s = 0.0
        self.dead = False

    async def get(self, *_: Any) -> Lease:
        return self.lease

    async def replace(self, _: Any, name: str, body: dict[str, Any], __: str) -> Lease:
        version, spec = body["metadata"]["resourceVersion"], body["spec"]
        if spec["holderIdentity"] == "slow" and self.dead:
            await asyncio.Event().wait()
        if version != self.lease.metadata.resource_version:
            raise ConflictError(409, "Conflict", "changed meanwhile")
        self.lease = Lease(
            metadata=Metadata(name=name, resource_version=str(int(version) + 1)),
            spec=LeaseSpec(holder_identity=spec["holderIdentity"], lease_duration_seconds=spec["leaseDurationSeconds"]),
        )
        written = self.lease
        if spec["holderIdentity"] == "slow" and self.late_s:
            await asyncio.sleep(self.late_s)
            self.dead = True
        return written


@pytest.mark.parametrize(("late_s", "leads_already"), [(7.9, True), (14.0, False)])
async def test_a_renewal_counts_from_when_it_was_sent(
    monkeypatch: pytest.MonkeyPatch, late_s: float, leads_already: bool
) -> None:
    """The others count from when they could see it, and would start while the leader waits for its late answer."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr("baton.kube.election.time", types.SimpleNamespace(monotonic=loop.time, time=time.time))
    server: Any = Registry()
    leading: list[str] = []
    most: list[int] = []

    def lead(name: str) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            leading.append(name)
            most.append(len(leading))
            try:
                await asyncio.Event().wait()
            finally:
                leading.remove(name)

        return work

    if not leads_already:
        server.late_s = late_s
    tasks = [asyncio.create_task(Election(server, "test", "default", "slow").run(lead("slow")))]
    await asyncio.sleep(1)
    tasks.append(asyncio.create_task(Election(server, "test", "default", "quick").run(lead("quick"))))
    await asyncio.sleep(20)
    server.late_s = server.late_s or late_s
    await asyncio.sleep(60)
    assert leading == ["quick"]
    assert max(most) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_leader_that_finds_the_lease_in_other_hands_stops_at_its_next_look() -> None:
    server: Any = Registry()
    task = asyncio.create_task(Election(server, "test", "default", "me", retry_s=2.0).run(lead))
    await asyncio.sleep(3)
    server.lease = Lease(
        metadata=Metadata(name="test", resource_version="100"), spec=LeaseSpec(holder_identity="other")
    )
    await asyncio.wait({task}, timeout=2)
    assert task.done()


async def test_a_failure_to_take_the_lease_is_logged_once() -> None:
    """A replica without the right to its lease would look like one that stands by."""
    problems: list[Exception] = [
        *[UnreachableError("no answer")] * 3,
        *[ForbiddenError(403, "Forbidden", "leases is forbidden")] * 3,
    ]

    class Closed(FakeClient):
        async def get(self, *_: Any) -> Lease:
            raise problems.pop(0) if len(problems) > 1 else problems[0]

    closed: Any = Closed()
    with structlog.testing.capture_logs() as said:
        task = asyncio.create_task(Election(closed, "test", "default", "me").run(lead))
        await asyncio.sleep(60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [(each["log_level"], each["error"]) for each in said] == [
        ("warning", "no answer"),
        ("warning", "the API server answered 403 Forbidden: leases is forbidden"),
    ]
