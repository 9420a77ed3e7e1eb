"""Kubelet's question for a preference, read from its bytes.

Kubelet names every slot that it could give, in the order of a Go map: 16,000 ids where 16 cards have 1,000 slots each,
of which the answer needs one bit apiece. Making a string of each and looking it up costs several milliseconds, most of
them spent waiting for memory, while kubelet admits no other pod. So no strings are made: the ids are found in the
message by their tags, a few characters of each say which slot it must be, and then all of them are compared with what
those slots are called, in full. An id is taken for a slot only if it is that slot's, byte for byte.

Whatever does not look like this (other ids among ours, other fields before the ids, cards whose ids differ in
length) is read by the generated class, which costs time and changes nothing else. Where both have a part it is because
of a rule of the encoding: a message may be cut between two fields, and what the parts say is what the whole says.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton.agent.policies import Wish
from baton.agent.proto import deviceplugin_pb2 as api
from baton.agent.slots import CardSlots, Pool, SlotId, slot_id

_ID_TAG = 0x0A
"""Field 1, of a length that follows."""
_LONGEST = 0x7F
"""The greatest length that is written in one byte."""
_BLOCK_BYTES = 96 * 1024
"""How much is read at a time: little enough for what is made of it to stay in the processor's cache."""
_WORD = 8


class WishReader:
    """Reads the questions about one pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._names = _Names.of(pool)

    def read(self, content: bytes) -> list[Wish]:
        """What a serialized PreferredAllocationRequest asks for, per container."""
        return [self._wish(part) for part in api.PreferredAllocationParts.FromString(content).container_requests]

    def _wish(self, part: bytes) -> Wish:
        slots, end = [], 0
        while self._names and (found := self._names.read(part, end)) is not None:
            numbers, end = found
            slots.append(numbers)
        rest = api.ContainerPreferredAllocationRequest.FromString(part[end:])
        available = self.pool.marks(rest.available_deviceIDs)
        for numbers in slots:
            np.frombuffer(available, np.uint8)[numbers] = 1
        must_include = tuple(SlotId(slot) for slot in rest.must_include_deviceIDs)
        return Wish(available, must_include, int(rest.allocation_size))


class _Names:
    """What the slots of a pool are called, in a form that many ids can be compared with at once."""

    def __init__(self, cards: Sequence[CardSlots], firsts: Sequence[int]) -> None:
        prefixes = [_prefix(card) for card in cards]
        self._length = len(prefixes[0])
        self._prefixes = np.array([list(prefix) for prefix in prefixes], np.uint8)
        self._tails = np.array([_word(prefix) for prefix in prefixes], np.uint64)
        self._firsts = np.array(firsts, np.int64)
        self._counts = np.array([len(card.slots) for card in cards], np.uint64)
        # For ordinal 0, which does not exist, a word that no digits make.
        self._digits = np.array(
            [1, *(_word(str(n).encode()) for n in range(1, int(self._counts.max()) + 1))], np.uint64
        )

    @classmethod
    def of(cls, pool: Pool) -> "_Names | None":
        """None for cards whose ids are short or differ in length. Of those that end alike only one is known by name."""
        cards = {_word(_prefix(card)): card for card in pool.cards if card.slots}
        lengths = {len(_prefix(card)) for card in cards.values()}
        if len(lengths) != 1 or min(lengths) < _WORD:
            return None
        by_tail = [cards[tail] for tail in sorted(cards)]
        return cls(by_tail, [pool.first[card.card] for card in by_tail])

    def read(self, part: bytes, at: int) -> tuple[npt.NDArray[np.int64], int] | None:
        """The numbers of the slots whose ids come next in `part`, a block of them, and where the last one ends.

        None where there is no id any more, or one in the block that is no slot's.
        """
        size = min(len(part) - at, _BLOCK_BYTES)
        text = np.frombuffer(part, np.uint8, size, at)
        starts = np.flatnonzero(text[:-1] == _ID_TAG)
        if not starts.size or starts[0]:
            return None
        lengths = text[starts + 1]
        ends = starts + lengths + 2
        # A byte like the tag may be anything. As far as each id ends where the next one begins, it is a tag.
        astray = starts[1:] != ends[:-1]
        count = int(astray.argmax()) + 1 if astray.any() else len(starts)
        count -= int(ends[count - 1] > size)
        starts, lengths, ends = starts[:count], lengths[:count], ends[:count]
        if not count or lengths.max() > _LONGEST or lengths.min() <= self._length:
            return None
        words = np.ndarray((size - _WORD + 1,), "<u8", part, at, (1,))
        # The card whose tail this is, or any: the comparison after it is what counts.
        cards = np.searchsorted(self._tails[:-1], words[starts + (2 + self._length - _WORD)])
        prefixes = np.ndarray((size - self._length + 1, self._length), np.uint8, part, at, (1, 1))
        if not np.array_equal(prefixes[starts + 2], self._prefixes[cards]):
            return None
        blank_bits = (_WORD + self._length - lengths).astype(np.uint64) * 8
        digits = words[ends - _WORD] >> blank_bits << blank_bits
        ordinals = _value(digits)
        if (ordinals > self._counts[cards]).any() or not np.array_equal(digits, self._digits[ordinals]):
            return None
        return self._firsts[cards] + ordinals.astype(np.int64) - 1, at + int(ends[-1])


def _prefix(card: CardSlots) -> bytes:
    """What the ids of all slots of a card begin with."""
    return slot_id(card.card, 1).removesuffix("1").encode()


def _word(text: bytes) -> int:
    """The last eight characters, or fewer, as one number, the last one highest."""
    return int.from_bytes(text[-_WORD:].rjust(_WORD, b"\0"), "little")


def _value(digits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The number that up to eight decimal digits stand for: pairs of them, then pairs of pairs, then both halves."""
    word = np.uint64
    value = digits & word(0x0F0F0F0F0F0F0F0F)
    value = (value * word(10 << 8 | 1) >> word(8)) & word(0x00FF00FF00FF00FF)
    value = (value * word(100 << 16 | 1) >> word(16)) & word(0x0000FFFF0000FFFF)
    return value * word(10_000 << 32 | 1) >> word(32)
