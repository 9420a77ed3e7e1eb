"""Who has which slots, as kubelet itself knows it.

Kubelet keeps two records. The PodResources API names running pods by namespace and name, one entry per device and NUMA
node. The device manager's checkpoint, a file, names every pod by UID, also plain init containers, and is there before
any API server is; its format belongs to kubelet, so it is only read, and only where the API has no answer. Together
they say which pod a slot belongs to, without guessing by counts and times.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import grpc
import msgspec

from baton.agent.kubelet.endpoint import LOCAL_CHANNEL
from baton.agent.proto import podresources_pb2 as api
from baton.errors import UnavailableError
from baton.model.ids import PodUid

CHECKPOINT = "kubelet_internal_checkpoint"
_LIMIT_S = 1.0


class Holding(msgspec.Struct, frozen=True):
    """Slots of one resource in one container."""

    namespace: str
    pod: str
    container: str
    resource: str
    slots: frozenset[str]


class Recorded(msgspec.Struct, frozen=True):
    """The same as the checkpoint has it: by UID, with names unknown."""

    pod_uid: PodUid
    container: str
    resource: str
    slots: frozenset[str]


class PodResources:
    """A client of kubelet's PodResources socket that opens a connection per question; questions are rare."""

    def __init__(self, kubelet_directory: Path) -> None:
        self._socket = kubelet_directory / "pod-resources" / "kubelet.sock"

    async def holdings(self, limit_s: float = _LIMIT_S) -> list[Holding] | None:
        """Every container's slots; None when kubelet does not answer in time (it also limits the rate of questions)."""
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
    """One holding per container and resource, out of kubelet's many entries."""
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
    """What the checkpoint says: nothing when there is none, as on a new node. `UnavailableError` when it cannot be
    read or is of a form that is not known; who took that for "nobody has anything" would lift everybody's limits."""
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


def owners_of(slots: Iterable[str], resource: str, records: Iterable[Recorded]) -> list[Recorded]:
    """The containers that have exactly these slots: one, or several of a pod whose init containers hand them on."""
    wanted = frozenset(slots)
    return [record for record in records if record.resource == resource and record.slots == wanted]


def over_committed(holdings: Iterable[Holding]) -> list[str]:
    """Slots that two containers have at once, which must never be; a sentence for each.

    A pod's ordinary init containers hand their slots on and do not appear in PodResources, so a slot that is there
    twice belongs to two.
    """
    seen: dict[tuple[str, str], Holding] = {}
    problems = []
    for holding in holdings:
        for slot in sorted(holding.slots):
            first = seen.setdefault((holding.resource, slot), holding)
            if first is not holding:
                problems.append(
                    f"slot {slot} of {holding.resource} is in {first.namespace}/{first.pod}/{first.container} "
                    f"and in {holding.namespace}/{holding.pod}/{holding.container}"
                )
    return problems
