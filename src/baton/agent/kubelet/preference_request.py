"""Kubelet's request for a preference, decoded from its bytes.

Kubelet names every available slot, in the order of a Go map: 16,000 ids for 16 cards with 1,000 slots each, of which
the answer needs one bit each. It admits no other pod meanwhile. If there are many slots, `slot_scan` finds the ids
without making strings of them. Any unusual part (other ids among them, other fields before them, cards whose ids differ
in length) is decoded by the generated class, which takes longer and gives the same result. Each may decode a part of
one message, because protobuf messages can be split between two fields.
"""

from typing import TYPE_CHECKING

from baton.agent.offers.slot_choice import PreferenceRequest
from baton.agent.offers.slots import Pool, SlotId
from baton.agent.proto import deviceplugin_pb2 as api

if TYPE_CHECKING:
    from baton.agent.kubelet.slot_scan import SlotNames

_MANY_SLOTS = 1000
"""The generated class decodes fewer ids as fast, and the agent of most nodes does without the memory of NumPy."""


class PreferenceReader:
    """Decodes the requests for one pool."""

    def __init__(self, pool: Pool, many_slots: int = _MANY_SLOTS) -> None:
        self.pool = pool
        self._names = _names(pool) if len(pool) >= many_slots else None

    def read(self, content: bytes) -> list[PreferenceRequest]:
        """The requests in a serialized PreferredAllocationRequest, one per container."""
        start = _only_request(content)
        if start is not None:
            return [self._request(content, start)]
        return [self._request(part, 0) for part in api.PreferredAllocationParts.FromString(content).container_requests]

    def _request(self, content: bytes, start: int) -> PreferenceRequest:
        available = bytearray(len(self.pool))
        if self._names:
            start = self._names.mark(available, content, start)
        rest = api.ContainerPreferredAllocationRequest.FromString(content[start:])
        self.pool.mark(available, rest.available_deviceIDs)
        must_include = tuple(SlotId(slot) for slot in rest.must_include_deviceIDs)
        return PreferenceRequest(available, must_include, int(rest.allocation_size))


def _names(pool: Pool) -> "SlotNames | None":
    from baton.agent.kubelet.slot_scan import SlotNames

    return SlotNames.of(pool)


def _only_request(content: bytes) -> int | None:
    """The start of the only container's request, as every kubelet so far sends it; None for any other message.

    This avoids a copy of the message, which takes about as long as the rest.
    """
    length = 0
    if content.startswith(b"\x0a"):  # field 1, of a length that follows: seven bits per byte, the lowest first
        for index, byte in enumerate(content[1:6]):
            length |= (byte & 0x7F) << 7 * index
            if byte <= 0x7F:
                start = index + 2
                return start if start + length == len(content) else None
    return None
