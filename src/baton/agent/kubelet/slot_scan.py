"""Recognises thousands of slot ids in a message without making a string.

A string and a lookup for every id cost milliseconds, most of them spent waiting for memory. Here the ids are found by
their tags, a few characters of each tell which slot it must be, and then each id is compared with the name of that slot
byte for byte.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton.agent.offers.slots import CardSlots, Pool, slot_id

_ID_TAG = 0x0A
"""Field 1 of a container's request, of a length that follows."""
_LONGEST = 0x7F
"""The greatest length that fits in one byte."""
_BLOCK_BYTES = 96 * 1024
"""How much is scanned at a time: the intermediate arrays must fit in the processor's cache."""
_WORD = 8


class SlotNames:
    """The names of a pool's slots, in a form that allows comparing many ids at once."""

    def __init__(self, cards: Sequence[CardSlots], firsts: Sequence[int]) -> None:
        prefixes = [_prefix(card) for card in cards]
        self._length = len(prefixes[0])
        self._prefixes = np.array(prefixes, f"V{self._length}")
        self._tails = np.array([_word(prefix) for prefix in prefixes], np.uint64)
        self._firsts = np.array(firsts, np.int64)
        self._counts = np.array([len(card.slots) for card in cards], np.uint64)
        ordinals = range(1, int(self._counts.max()) + 1)
        # Ordinal 0 does not exist, so it gets a word that no digits form.
        self._digits = np.array([1, *(_word(str(ordinal).encode()) for ordinal in ordinals)], np.uint64)

    @classmethod
    def of(cls, pool: Pool) -> "SlotNames | None":
        """None for cards whose ids are short or differ in length. Of cards whose ids end alike, one is included."""
        cards = {_word(_prefix(card)): card for card in pool.cards if card.slots}
        lengths = {len(_prefix(card)) for card in cards.values()}
        if len(lengths) != 1 or min(lengths) < _WORD:
            return None
        by_tail = [cards[tail] for tail in sorted(cards)]
        return cls(by_tail, [pool.first[card.card] for card in by_tail])

    def mark(self, marks: bytearray, content: bytes, start: int) -> int:
        """Mark the slots whose ids come next in `content`, as `Pool.mark` does; return the end of the last one."""
        while (found := self._block(content, start)) is not None:
            numbers, start = found
            np.frombuffer(marks, np.uint8)[numbers] = 1
        return start

    def _block(self, content: bytes, at: int) -> tuple[npt.NDArray[np.int64], int] | None:
        """The numbers of the next slots, and where their ids end; None if the next field is not the id of a slot."""
        size = min(len(content) - at, _BLOCK_BYTES)
        text = np.frombuffer(content, np.uint8, size, at)
        starts = np.flatnonzero(text[:-1] == _ID_TAG)
        if not starts.size or starts[0]:
            return None
        lengths = text[starts + 1]
        ends = starts + lengths + 2
        # Other bytes may look like the tag. It is a tag if the previous id ends right before it.
        astray = starts[1:] != ends[:-1]
        count = int(astray.argmax()) + 1 if astray.any() else len(starts)
        count -= int(ends[count - 1] > size)
        starts, lengths, ends = starts[:count], lengths[:count], ends[:count]
        if not count or lengths.max() > _LONGEST or lengths.min() <= self._length:
            return None
        words = np.ndarray((size - _WORD + 1,), "<u8", content, at, (1,))
        # The card with this tail, or an arbitrary one: the next comparison decides.
        cards = np.searchsorted(self._tails[:-1], words[starts + (2 + self._length - _WORD)])
        prefixes = np.ndarray((size - self._length + 1,), self._prefixes.dtype, content, at, (1,))
        if prefixes[starts + 2].tobytes() != self._prefixes[cards].tobytes():
            return None
        blank_bits = (_WORD + self._length - lengths).astype(np.uint64) * 8
        digits = words[ends - _WORD] >> blank_bits << blank_bits
        ordinals = _value(digits)
        if (ordinals > self._counts[cards]).any() or not np.array_equal(digits, self._digits[ordinals]):
            return None
        return self._firsts[cards] + ordinals.astype(np.int64) - 1, at + int(ends[-1])


def _prefix(card: CardSlots) -> bytes:
    """The common beginning of the ids of a card's slots."""
    return slot_id(card.card, 1).removesuffix("1").encode()


def _word(text: bytes) -> int:
    """The last eight characters, or fewer, as one number, the last one highest."""
    return int.from_bytes(text[-_WORD:].rjust(_WORD, b"\0"), "little")


def _value(digits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The value of up to eight decimal digits: pairs first, then pairs of pairs, then both halves."""
    word = np.uint64
    value = digits & word(0x0F0F0F0F0F0F0F0F)
    value = (value * word(10 << 8 | 1) >> word(8)) & word(0x00FF00FF00FF00FF)
    value = (value * word(100 << 16 | 1) >> word(16)) & word(0x0000FFFF0000FFFF)
    return value * word(10_000 << 32 | 1) >> word(32)
