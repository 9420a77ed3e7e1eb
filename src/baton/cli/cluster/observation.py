"""The view of a scheduler that starts now: its informers, run until everything is listed once.

For `baton why` and `baton state` when no scheduler answers. Objects, translation and configuration are those of the
scheduler, so the verdict is the same. Imported only when needed: loading the engine's arrays takes longer than an
answer from the scheduler.
"""

import asyncio
import time
from typing import Any, NamedTuple

from baton.cli.cluster.requests import Cluster, RightsError
from baton.engine import records
from baton.errors import UnavailableError
from baton.kube.client import Client
from baton.kube.errors import ForbiddenError, NotFoundError
from baton.model.core import CONFIG_MAPS
from baton.model.resource import Resource
from baton.scheduler.feed.feed import Feed
from baton.scheduler.reload import ConfigMapName
from baton.scheduler.settings import Settings

CONFIGURATION = "baton-system/baton-scheduler"
"""The ConfigMap in which an installation keeps the scheduler configuration."""

_LIST_LIMIT_S = 60.0


class Observation(NamedTuple):
    """The objects as the API server has them, and the engine's record of them."""

    feed: Feed
    record: records.Record


def observe(cluster: Cluster) -> Observation:
    """List everything that a scheduler that starts now would list."""
    feed = cluster.wait(_listed(cluster.client, Settings()))
    about = records.Recorded(now_s=time.time(), configuration=cluster.wait(_configuration(cluster.client)))
    return Observation(feed, records.Record(about, tuple(feed.take())))


async def _listed(client: Client, settings: Settings) -> Feed:
    feed = Feed(client, settings.scheduler_names, settings.slot_resources, lambda: None)
    # A reflector retries a forbidden list, because a program may get the right later; a command should report it.
    refused = await asyncio.gather(*(_refused(client, each.resource) for each in feed.reflectors))
    if any(refused):
        kinds = ", ".join(each.resource.plural for each, no in zip(feed.reflectors, refused, strict=True) if no)
        raise RightsError(f"you may not list {kinds} of the whole cluster, which a scheduler's view needs")
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
    return feed


async def _refused(client: Client, resource: Resource[Any]) -> bool:
    try:
        await client.list_page(resource, limit=1)
    except ForbiddenError:
        return True
    except NotFoundError:
        pass
    return False


async def _configuration(client: Client) -> str:
    """The scheduler configuration of the installation as text; empty if there is none."""
    name = ConfigMapName(CONFIGURATION)
    try:
        found = await client.get(CONFIG_MAPS, name.name, name.namespace)
    except (NotFoundError, ForbiddenError):
        return ""
    return name.text_in(found.data) or ""
