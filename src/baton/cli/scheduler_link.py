"""What commands ask of the running scheduler.

It listens inside of the cluster, so it is asked through the API server's proxy to its service; `--scheduler` names an
address instead. An address that does not answer is an error; a service that does not is `NoSchedulerError`, after which
`baton.cli.observation` takes the scheduler's place.
"""

import urllib.parse

import aiohttp
import msgspec

from baton.cli.requests import Cluster
from baton.errors import UnavailableError
from baton.kube.errors import ApiError, NotFoundError

SERVICE = "/api/v1/namespaces/baton-system/services/baton-scheduler:http/proxy"

_ANSWER_LIMIT_S = 5.0


class _Refusal(msgspec.Struct):
    error: str = ""


class NoSchedulerError(UnavailableError):
    """No scheduler answers; the engine can be built here instead."""


def ask(cluster: Cluster, path: str, url: str | None) -> bytes:
    """Ask the leading scheduler; its own refusals come as `NotFoundError`."""
    if url is not None:
        return cluster.wait(_ask_at(url, path))
    try:
        return cluster.wait(cluster.client.request("GET", SERVICE + path, timeout_s=_ANSWER_LIMIT_S))
    except NotFoundError as error:
        if said := _refusal(error.message.encode()):
            raise NotFoundError(404, "Not Found", said) from None
        raise NoSchedulerError("the cluster has no service baton-scheduler in baton-system") from None
    except ApiError as error:
        raise NoSchedulerError(f"the scheduler does not answer through the API server: {error}") from None


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
