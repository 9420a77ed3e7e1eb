"""What commands ask of the scheduler, and how the same is had where none answers.

A scheduler listens inside of the cluster, so it is asked through the API server's proxy to its service; `--scheduler`
names an address instead. Without an answer the scheduler's own informers are run here until everything was listed once,
and their events go into an engine of the same configuration: same input, same verdict.
"""

import asyncio
import time
import urllib.parse
from typing import Any

import aiohttp
import msgspec

from baton.cli.requests import Cluster
from baton.engine import records
from baton.engine.events import Event
from baton.errors import UnavailableError
from baton.kube.client import Client
from baton.kube.core import CONFIG_MAPS
from baton.kube.errors import ApiError, ForbiddenError, NotFoundError, ThrottledError
from baton.kube.scheduler.feed import Feed
from baton.kube.scheduler.reload import ConfigMapName
from baton.kube.scheduler.settings import Settings

SERVICE = "/api/v1/namespaces/baton-system/services/baton-scheduler:http/proxy"
CONFIGURATION = "baton-system/baton-scheduler"

_ANSWER_LIMIT_S = 5.0
_LIST_LIMIT_S = 60.0


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
    except (ForbiddenError, ThrottledError, ApiError) as error:
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


def observe(cluster: Cluster) -> records.Record:
    """What a scheduler that starts now would see."""
    settings = Settings()
    events = cluster.wait(_listed(cluster.client, settings))
    about = records.Recorded(now_s=time.time(), configuration=cluster.wait(_configuration(cluster.client)))
    return records.Record(about, tuple(events))


async def _listed(client: Client, settings: Settings) -> list[Event]:
    feed = Feed(client, settings.scheduler_names, settings.slot_resources, lambda: None)
    running = [asyncio.create_task(reflector.run()) for reflector in feed.reflectors]
    try:
        async with asyncio.timeout(_LIST_LIMIT_S):
            await feed.synced()
    except TimeoutError:
        waiting = ", ".join(each.resource.plural for each in feed.reflectors if not each.synced.is_set())
        raise UnavailableError(f"the cluster could not be listed within {_LIST_LIMIT_S:g} s: {waiting}") from None
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return feed.take()


async def _configuration(client: Client) -> str:
    """The text of the scheduler configuration where an installation keeps it; empty when there is none."""
    name = ConfigMapName(CONFIGURATION)
    try:
        found: Any = await client.get(CONFIG_MAPS, name.name, name.namespace)
    except (NotFoundError, ForbiddenError):
        return ""
    return name.text_in(found.data) or ""
