"""Thousands of slot ids in a message, recognised without making one string.

A string for every id, and looking each one up, costs milliseconds, most of them spent waiting for memory. Here the ids
are found by their tags, a few characters of each say which slot it must be, and then all of them are compared with what
those slots are called, in full: an id is taken for a slot's only if it is that, byte for byte.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton.agent.offers.slots import CardSlots, Pool, slot_id

_ID_TAG = 0x0A
"""Field 1 of a container's request, of a length that follows."""
_LONGEST = 0x7F
"""The greatest length that is written in one byte."""
_BLOCK_BYTES = 96 * 1024
"""How much is read at a time: little enough for what is made of it to stay in the processor's cache."""
_WORD = 8


class SlotNames:
    """What the slots of a pool are called, in a form that many ids can be compared with at once."""

    def __init__(self, cards: Sequence[CardSlots], firsts: Sequence[int]) -> None:
        prefixes = [_prefix(card) for card in cards]
        self._length = len(prefixes[0])
        self._prefixes = np.array(prefixes, f"V{self._length}")
        self._tails = np.array([_word(prefix) for prefix in prefixes], np.uint64)
        self._firsts = np.array(firsts, np.int64)
        self._counts = np.array([len(card.slots) for card in cards], np.uint64)
        ordinals = range(1, int(self._counts.max()) + 1)
        # For ordinal 0, which does not exist, a word that no digits make.
        self._digits = np.array([1, *(_word(str(ordinal).encode()) for ordinal in ordinals)], np.uint64)

    @classmethod
    def of(cls, pool: Pool) -> "SlotNames | None":
        """None for cards whose ids are short or differ in length. Of those that end alike only one is known by name."""
        cards = {_word(_prefix(card)): card for card in pool.cards if card.slots}
        lengths = {len(_prefix(card)) for card in cards.values()}
        if len(lengths) != 1 or min(lengths) < _WORD:
            return None
        by_tail = [cards[tail] for tail in sorted(cards)]
        return cls(by_tail, [pool.first[card.card] for card in by_tail])

    def mark(self, marks: bytearray, content: bytes, start: int) -> int:
        """Mark, as `Pool.mark` does, the slots whose ids come next in `content`; return where the last one ends."""
        while (found := self._block(content, start)) is not None:
            numbers, start = found
            np.frombuffer(marks, np.uint8)[numbers] = 1
        return start

    def _block(self, content: bytes, at: int) -> tuple[npt.NDArray[np.int64], int] | None:
        """The numbers of some slots, and where they end; None if there is no id any more, or one that is no slot's."""
        size = min(len(content) - at, _BLOCK_BYTES)
        text = np.frombuffer(content, np.uint8, size, at)
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
        words = np.ndarray((size - _WORD + 1,), "<u8", content, at, (1,))
        # The card whose tail this is, or any: the comparison after it is what counts.
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
