"""Questions of commands to the running scheduler.

The scheduler listens inside the cluster, so commands ask the replica that holds the lease through the API server's
proxy; `--scheduler` names an address instead. A given address that does not answer is an error. If no replica answers,
the error is `NoSchedulerError`, and `baton.cli.cluster.observation` takes the scheduler's place.
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
"""The port on which the schedulers of an installation listen."""

_ANSWER_LIMIT_S = 5.0
_OF_THE_API_SERVER = "NotFound"
"""The reason in the API server's 404 for a missing pod; a 404 of the scheduler itself has no reason."""


class _Refusal(msgspec.Struct):
    error: str = ""


class NoSchedulerError(UnavailableError):
    """No scheduler answers; the command can build the engine itself instead."""


def ask(cluster: Cluster, path: str, url: str | None) -> bytes:
    """Ask the leading scheduler; raises `NotFoundError` if the scheduler does not know the object."""
    if url is not None:
        return cluster.wait(_ask_at(url, path))
    name, namespace = LEASE
    try:
        lease = cluster.wait(cluster.client.get(LEASES, name, namespace))
    except ApiError as error:
        raise NoSchedulerError(f"its lease {namespace}/{name} cannot be read: {error.message}") from None
    # The identity of a replica is its host name, which is the name of its pod, and its process id.
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
        # The API server has just answered for the lease, so the pod's node does not answer.
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
    raise UnavailableError(f"the scheduler at {url} refused the request: {said}")


def _refusal(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        return ""
