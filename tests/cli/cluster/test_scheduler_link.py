"""Which scheduler the commands query, and how they handle a missing answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from baton.cli.cluster.scheduler_link import NoSchedulerError, ask
from baton.kube.errors import ApiError, NotFoundError, UnreachableError
from baton.model.meta import Lease, LeaseSpec, Metadata


class Cluster:
    """An API server on which pod `replica-1` leads; `answer` is its response."""

    def __init__(self, answer: bytes | Exception, holder: str = "replica-1_4711") -> None:
        self.client = self
        self.asked = ""
        self._answer = answer
        self._holder = holder

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    async def get(self, *_: Any) -> Lease:
        return Lease(metadata=Metadata(name="baton-scheduler"), spec=LeaseSpec(holder_identity=self._holder))

    async def request(self, _method: str, path: str, **_: Any) -> bytes:
        self.asked = path
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def asked(cluster: Cluster) -> bytes:
    return ask(cluster, "/why/team/a", None)  # type: ignore[arg-type]  # stands in for a Cluster


def test_the_leading_pod_is_queried_through_the_api_server() -> None:
    cluster = Cluster(b"{}")
    assert asked(cluster) == b"{}"
    assert cluster.asked == "/api/v1/namespaces/baton-system/pods/replica-1:11251/proxy/why/team/a"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (UnreachableError("the API server https://a does not answer: no answer in time"), "replica-1 does not answer"),
        (ApiError(503, "ServiceUnavailable", "error trying to reach service"), "error trying to reach service"),
        (NotFoundError(404, "NotFound", 'pods "replica-1" not found'), 'pods "replica-1" not found'),
    ],
)
def test_an_unreachable_leader_counts_as_no_scheduler(answer: Exception, sentence: str) -> None:
    """Its node may be gone; the API server then waits longer for it than the command does."""
    with pytest.raises(NoSchedulerError, match=sentence):
        asked(Cluster(answer))


def test_there_is_no_leader_after_an_orderly_end() -> None:
    with pytest.raises(NoSchedulerError, match="no scheduler leads at the moment"):
        asked(Cluster(b"{}", holder=""))


def test_a_refusal_by_the_scheduler_is_passed_on() -> None:
    with pytest.raises(NotFoundError, match="it is not known"):
        asked(Cluster(NotFoundError(404, "", "it is not known")))
