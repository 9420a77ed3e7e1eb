"""What commands ask of the running scheduler.

It listens inside of the cluster, so the replica that holds the lease is asked through the API server's proxy;
`--scheduler` names an address instead. An address that does not answer is an error; a cluster in which nobody does is
`NoSchedulerError`, after which `baton.cli.cluster.observation` takes the scheduler's place.
"""

import urllib.parse

import aiohttp
import msgspec

from baton.cli.cluster.requests import Cluster
from baton.errors import UnavailableError
from baton.kube.errors import ApiError, NotFoundError, UnreachableError
from baton.model.meta import LEASES

LEASE = ("baton-scheduler", "baton-system")
PORT = 11251
"""Where the schedulers of an installation listen."""

_ANSWER_LIMIT_S = 5.0
_OF_THE_API_SERVER = "NotFound"
"""The reason of a 404 by which the API server says that there is no such pod; the scheduler's own has none."""


class _Refusal(msgspec.Struct):
    error: str = ""


class NoSchedulerError(UnavailableError):
    """No scheduler answers; the engine can be built here instead."""


def ask(cluster: Cluster, path: str, url: str | None) -> bytes:
    """Ask the leading scheduler; its own refusals come as `NotFoundError`."""
    if url is not None:
        return cluster.wait(_ask_at(url, path))
    name, namespace = LEASE
    try:
        lease = cluster.wait(cluster.client.get(LEASES, name, namespace))
    except ApiError as error:
        raise NoSchedulerError(f"its lease {namespace}/{name} cannot be read: {error.message}") from None
    # A replica calls itself after its host, which is its pod, and its process.
    pod = (lease.spec.holder_identity or "").rpartition("_")[0]
    if not pod:
        raise NoSchedulerError("no scheduler leads at the moment")
    proxy = f"/api/v1/namespaces/{namespace}/pods/{pod}:{PORT}/proxy{path}"
    try:
        return cluster.wait(cluster.client.request("GET", proxy, timeout_s=_ANSWER_LIMIT_S))
    except ApiError as error:
        if error.status == 404 and error.reason != _OF_THE_API_SERVER:
            raise
        raise NoSchedulerError(f"pod {pod} does not answer through the API server: {error.message}") from None
    except UnreachableError:
        # The API server itself has just told of the lease; behind it, a node that is gone is waited for.
        raise NoSchedulerError(f"pod {pod} does not answer within {_ANSWER_LIMIT_S:g} s") from None


async def _ask_at(url: str, path: str) -> bytes:
    parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
    address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{path}"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_LIMIT_S)) as session,
            session.get(address) as answer,
        ):
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise UnavailableError(f"no scheduler answers at {url}: {error or type(error).__name__}") from None
    if answer.status == 200:
        return body
    said = _refusal(body) or f"HTTP {answer.status}"
    if answer.status == 404:
        raise NotFoundError(404, "Not Found", said)
    raise UnavailableError(f"the scheduler at {url} refuses: {said}")


def _refusal(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        return ""
