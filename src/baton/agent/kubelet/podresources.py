"""Who has which slots, according to kubelet's own records.

Kubelet keeps two. The PodResources API names running pods by namespace and name, with one entry per device and NUMA
node. The device manager's checkpoint, a file, names every pod by UID, includes plain init containers, and exists before
any API server. Its format is internal to kubelet, so the agent only reads it, and only where the API has no answer.
Together they tell which pod a slot belongs to, without guessing from counts and times.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import grpc
import msgspec

from baton.agent.kubelet.endpoint import LOCAL_CHANNEL
from baton.agent.kubelet.records import Holding, Recorded
from baton.agent.proto import podresources_pb2 as api
from baton.errors import UnavailableError
from baton.model.ids import PodUid

CHECKPOINT = "kubelet_internal_checkpoint"
_LIMIT_S = 1.0


class PodResources:
    """A client of kubelet's PodResources socket. It opens a connection per request, because requests are rare."""

    def __init__(self, kubelet_directory: Path) -> None:
        self._socket = kubelet_directory / "pod-resources" / "kubelet.sock"

    async def holdings(self, limit_s: float = _LIMIT_S) -> list[Holding] | None:
        """Every container's slots; None if kubelet does not answer in time (it also limits the rate of requests)."""
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=LOCAL_CHANNEL) as channel:
                call = channel.unary_unary(
                    "/v1.PodResourcesLister/List",
                    request_serializer=api.ListPodResourcesRequest.SerializeToString,
                    response_deserializer=api.ListPodResourcesResponse.FromString,
                )
                async with asyncio.timeout(limit_s):
                    answer = await call(api.ListPodResourcesRequest())
        except (grpc.aio.AioRpcError, TimeoutError):
            return None
        return grouped(answer.pod_resources)


def grouped(pods: Iterable[api.PodResources]) -> list[Holding]:
    """Kubelet's entries, combined into one holding per container and resource."""
    found: dict[tuple[str, str, str, str], set[str]] = {}
    for pod in pods:
        for container in pod.containers:
            for entry in container.devices:
                key = (pod.namespace, pod.name, container.name, entry.resource_name)
                found.setdefault(key, set()).update(entry.device_ids)
    return [Holding(*key, frozenset(slots)) for key, slots in found.items()]


class _Entry(msgspec.Struct):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    devices: dict[str, list[str]] = msgspec.field(name="DeviceIDs")


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")


def read_checkpoint(plugin_directory: Path) -> list[Recorded]:
    """The content of the checkpoint; empty if there is none, as on a new node. `UnavailableError` if it cannot be read
    or its format is unknown; treating that as empty would lift all limits."""
    path = plugin_directory / CHECKPOINT
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_Checkpoint)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise UnavailableError(f"kubelet's records in {path} cannot be read: {error}") from None
    return [
        Recorded(
            PodUid(entry.pod_uid),
            entry.container,
            entry.resource,
            frozenset(slot for slots in entry.devices.values() for slot in slots),
        )
        for entry in content.data.entries or ()
    ]
