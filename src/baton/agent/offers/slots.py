"""Slots: the units in which a resource is offered to kubelet.

A slot id is the card's id, two underscores and an ordinal from 1, as nvshare's users know it from kubelet's records.
Kubelet treats ids as opaque text, stores them in its checkpoint for the life of a pod and returns them after any
restart, so the form must never change and everything must follow from the id alone.

Kubelet reads at most 4 MiB in one ListAndWatch message and never retries after a larger one, so the exact size of the
message is computed here before anything is served.
"""

import itertools
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NewType

import msgspec

from baton.model.ids import CardId

SlotId = NewType("SlotId", str)

MAX_ID_LENGTH = 63
"""Kubelet documents this limit without enforcing it; other readers of its records may enforce it."""
MAX_LIST_BYTES = 4 * 1024 * 1024
"""The receive limit of kubelet's gRPC client."""
MAX_SLOTS = 40_000
"""Per resource. Below the limit in bytes, because every change of health rewrites kubelet's checkpoint."""

_SEPARATOR = "__"


def slot_id(card: CardId, ordinal: int) -> SlotId:
    """The id of one slot; ordinals start at 1."""
    return SlotId(f"{card}{_SEPARATOR}{ordinal}")


def card_of(slot: str) -> CardId:
    """The card that a slot belongs to, from the id alone; the id itself if it has no ordinal."""
    card, separator, ordinal = slot.rpartition(_SEPARATOR)
    return CardId(card) if separator and ordinal.isdigit() else CardId(slot)


class CardSlots(msgspec.Struct, frozen=True):
    """One card's part of a resource, with the properties that the policies use."""

    card: CardId
    index: int
    slots: tuple[SlotId, ...]
    numa_node: int | None = None
    nvlink_peers: frozenset[CardId] = frozenset()

    @classmethod
    def of(
        cls,
        card: CardId,
        index: int,
        count: int,
        numa_node: int | None = None,
        nvlink_peers: Iterable[CardId] = (),
    ) -> "CardSlots":
        slots = tuple(slot_id(card, ordinal) for ordinal in range(1, count + 1))
        return cls(card, index, slots, numa_node, frozenset(nvlink_peers))


class Pool:
    """All slots of one resource. Immutable; the lookups for requests are prepared once."""

    def __init__(self, cards: Iterable[CardSlots]) -> None:
        self.cards: tuple[CardSlots, ...] = tuple(sorted(cards, key=lambda card: (card.index, card.card)))

    @cached_property
    def slots(self) -> Mapping[SlotId, CardSlots]:
        """Which card a slot belongs to."""
        return {slot: card for card in self.cards for slot in card.slots}

    def __len__(self) -> int:
        return sum(len(card.slots) for card in self.cards)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The slots numbered consecutively, card after card."""
        return {slot: number for number, slot in enumerate(self.slots)}

    @cached_property
    def first(self) -> Mapping[CardId, int]:
        """The number of each card's first slot."""
        starts = itertools.accumulate((len(card.slots) for card in self.cards), initial=0)
        return {card.card: start for card, start in zip(self.cards, starts, strict=False)}

    def marks(self, slots: Iterable[str]) -> bytearray:
        """A set of slots as one byte per slot, by number: 1 if it is in the set. Slots of other pools are ignored."""
        marks = bytearray(len(self))
        self.mark(marks, slots)
        return marks

    def mark(self, marks: bytearray, slots: Iterable[str]) -> None:
        """Add slots to a set in this form."""
        for slot in slots:
            if (number := self.numbers.get(slot)) is not None:
                marks[number] = 1

    def list_bytes(self) -> int:
        """The size of the ListAndWatch message for the pool with every slot `Unhealthy`, the longer word."""
        total = 0
        for card in self.cards:
            topology = 0
            if card.numa_node is not None:
                node = 1 + _varint_bytes(card.numa_node) if card.numa_node else 0
                topology = _field_bytes(_field_bytes(node))
            for slot in card.slots:
                total += _field_bytes(_field_bytes(len(slot)) + _field_bytes(len("Unhealthy")) + topology)
        return total


def _field_bytes(length: int) -> int:
    """A length-delimited protobuf field with a one-byte tag."""
    return 1 + _varint_bytes(length) + length


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
