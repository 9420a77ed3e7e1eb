"""Kubelet's question for a preference, read from its bytes.

Kubelet names every slot that it could give, in the order of a Go map: 16,000 ids where 16 cards have 1,000 slots each,
of which the answer needs one bit apiece, and admits no other pod meanwhile. Where there are many slots, no strings are
made of the ids (`slotnames`). Whatever does not look as usual (other ids among ours, other fields before them, cards
whose ids differ in length) is read by the generated class, which takes longer and changes nothing else. Both may read a
part of one message because of a rule of the encoding: cut between two fields, it says in two what it says in one.
"""

from typing import TYPE_CHECKING

from baton.agent.offers.slot_choice import PreferenceRequest
from baton.agent.offers.slots import Pool, SlotId
from baton.agent.proto import deviceplugin_pb2 as api

if TYPE_CHECKING:
    from baton.agent.kubelet.slot_scan import SlotNames

_MANY_SLOTS = 1000
"""Fewer are read as soon by the generated class, and the agent of most nodes is spared the memory that NumPy takes."""


class PreferenceReader:
    """Reads the questions about one pool."""

    def __init__(self, pool: Pool, many_slots: int = _MANY_SLOTS) -> None:
        self.pool = pool
        self._names = _names(pool) if len(pool) >= many_slots else None

    def read(self, content: bytes) -> list[PreferenceRequest]:
        """What a serialized PreferredAllocationRequest asks for, per container."""
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
    """Where the request of one container begins if there is nothing else in the message, as with every kubelet so far.

    It spares a copy of the whole, which takes about as long as the rest.
    """
    length = 0
    if content.startswith(b"\x0a"):  # field 1, of a length that follows: seven bits per byte, the lowest first
        for index, byte in enumerate(content[1:6]):
            length |= (byte & 0x7F) << 7 * index
            if byte <= 0x7F:
                start = index + 2
                return start if start + length == len(content) else None
    return None
