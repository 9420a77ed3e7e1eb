"""Answers that are not an object: a missing object, an unknown kind, a page from a proxy."""

from collections.abc import Iterator
from typing import Any

import pytest

from baton.cli.cluster import reasons
from baton.cli.cluster.requests import Cluster, MissingObjectError, UnknownKindError
from baton.errors import BatonError
from baton.kube.errors import GoneError, NotFoundError, UnreachableError
from baton.kube.kubeconfig import Access
from baton.model.volcano import JOBS

ABSENT = 'jobs.batch.volcano.sh "train" not found'
UNKNOWN = "404 page not found"


@pytest.fixture
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster without pods that gives the parameter as its answer about jobs."""

    async def refuse(_method: str, path: str, **_: Any) -> bytes:
        raise NotFoundError(404, "NotFound", request.param if "volcano.sh" in path else 'pods "train" not found')

    with Cluster(Access("c", "http://127.0.0.1:1")) as made:
        monkeypatch.setattr(made.client, "request", refuse)
        yield made


@pytest.mark.parametrize("cluster", [ABSENT], indirect=True)
def test_a_missing_object_is_reported_with_its_namespace(cluster: Cluster) -> None:
    with pytest.raises(MissingObjectError, match=r"^there is no job train in namespace team$"):
        cluster.get(JOBS, "train", "team")
    with pytest.raises(BatonError, match=r"^there is no pod or job train in namespace team$"):
        reasons.answer(cluster, "team", "train", None)


@pytest.mark.parametrize("cluster", [UNKNOWN], indirect=True)
@pytest.mark.parametrize("name", ["train", "job/train"])
def test_missing_custom_resources_are_reported_with_a_remedy(cluster: Cluster, name: str) -> None:
    """Also by `baton why`, which looks for a pod first."""
    sentence = r"^the cluster does not know jobs\.batch\.volcano\.sh; run `baton install --crds`$"
    with pytest.raises(UnknownKindError, match=sentence):
        cluster.get(JOBS, "train", "team")
    with pytest.raises(UnknownKindError, match=sentence):
        reasons.answer(cluster, "team", name, None)


@pytest.mark.parametrize("cluster", [ABSENT], indirect=True)
def test_a_page_from_a_proxy_is_not_an_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def page(*_: Any, **__: Any) -> bytes:
        return b"<html>Please log in</html>"

    monkeypatch.setattr(cluster.client, "request", page)
    for ask in (lambda: cluster.get(JOBS, "train", "team"), lambda: cluster.list(JOBS), lambda: cluster.table(JOBS)):
        with pytest.raises(
            UnreachableError,
            match=r"does not answer as an API server: the response is not a Kubernetes (object|list|table): ",
        ):
            ask()


@pytest.mark.parametrize("cluster", [ABSENT], indirect=True)
def test_a_list_starts_again_when_its_next_page_has_expired(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pages(*_: Any, parameters: dict[str, str], **__: Any) -> bytes:
        if parameters.get("continue"):
            raise GoneError(410, "Expired", "too old")
        if parameters["limit"] == "0":
            return b'{"items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}'
        return b'{"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]}'

    monkeypatch.setattr(cluster.client, "request", pages)
    assert [job["metadata"]["name"] for job in cluster.list(JOBS)] == ["a", "b"]
