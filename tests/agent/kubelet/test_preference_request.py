"""Every valid encoding of kubelet's request is decoded as by the generated class."""

import contextlib
import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.agent.kubelet.preference_request import PreferenceReader
from baton.agent.offers.slot_choice import PreferenceRequest
from baton.agent.offers.slots import CardSlots, Pool, SlotId
from baton.agent.proto import deviceplugin_pb2 as api
from baton.model.ids import CardId

UUIDS = Pool(CardSlots.of(CardId(f"GPU-{number:036d}"), number, count) for number, count in enumerate((3, 120, 12)))
POOLS = {
    "UUIDs": UUIDS,
    "of one card": Pool([CardSlots.of(CardId("GPU-aaaaaaaa"), 0, 11)]),
    "of several lengths": Pool(CardSlots.of(CardId("GPU-" + "1" * number), number, 5) for number in range(1, 9)),
    "as long as a tag": Pool(CardSlots.of(CardId(f"darwin{number}"), number, 12) for number in range(3)),
    "that end alike": Pool(CardSlots.of(CardId(f"GPU-{number}-aaaaaaaa"), number, 5) for number in range(3)),
    "too long for one byte": Pool(CardSlots.of(CardId(f"{'x' * 130}{number}"), number, 5) for number in range(3)),
    "that fill one byte": Pool(CardSlots.of(CardId(f"{'x' * 123}{number}"), number, 12) for number in range(3)),
    "with a line break": Pool(CardSlots.of(CardId(f"GPU-\n.{number:08d}"), number, 5) for number in range(3)),
    "without slots": Pool([CardSlots.of(CardId("GPU-aaaaaaaa"), 0, 0), CardSlots.of(CardId("GPU-bbbbbbbb"), 1, 2)]),
    "without cards": Pool([]),
}


def read(pool: Pool, content: bytes) -> list[PreferenceRequest]:
    """The decoder for many slots."""
    return PreferenceReader(pool, many_slots=0).read(content)


def as_generated(pool: Pool, content: bytes) -> list[PreferenceRequest]:
    request = api.PreferredAllocationRequest.FromString(content)
    return [
        PreferenceRequest(
            pool.marks(asked.available_deviceIDs),
            tuple(SlotId(slot) for slot in asked.must_include_deviceIDs),
            asked.allocation_size,
        )
        for asked in request.container_requests
    ]


def varint(value: int, spare_bytes: int = 0) -> bytes:
    """A number, optionally encoded in more bytes than necessary, which is allowed."""
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)] + [0] * spare_bytes
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def field(number: int, content: bytes, spare_bytes: int = 0) -> bytes:
    return varint(number << 3 | 2) + varint(len(content), spare_bytes) + content


def near_misses(slot: str) -> list[str]:
    """Ids that name no slot."""
    card, _, ordinal = slot.rpartition("__")
    others = [
        f"{card}__0",
        f"{card}__0{ordinal}",
        f"{card}__{ordinal}0000",
        f"{card}__99999",
        f"{card}__\0",
        f"{card}__",
    ]
    return [
        *others,
        f"{card}_{ordinal}_",
        f"{card}__:",
        f"X{slot[1:]}",
        f"{slot[:5]}X{slot[6:]}",
        slot[:-1] + "é",
        "",
        "\n",
    ]


def ids(pool: Pool) -> st.SearchStrategy[str]:
    slots = list(pool.slots) or [SlotId("GPU-stranger__1")]
    known = st.sampled_from(slots)
    return st.one_of(known, known, known, known.flatmap(lambda slot: st.sampled_from(near_misses(slot))))


def parts(pool: Pool) -> st.SearchStrategy[bytes]:
    """Container requests: mostly as kubelet encodes them, otherwise any fields in any order."""
    available = st.lists(st.sampled_from(list(pool.slots) or [SlotId("")])).map(
        lambda slots: b"".join(field(1, slot.encode()) for slot in slots)
    )
    any_field = st.one_of(
        st.builds(lambda slot, spare: field(1, slot.encode(), spare), ids(pool), st.integers(0, 2)),
        ids(pool).map(lambda slot: field(2, slot.encode())),
        st.sampled_from([0, 1, 10, 300, (1 << 31) - 1]).map(lambda size: varint(3 << 3) + varint(size)),
        st.binary(max_size=12).map(lambda content: field(9, content)),
        st.binary(min_size=8, max_size=8).map(lambda content: varint(10 << 3 | 1) + content),
        st.integers(0, 1 << 60).map(lambda value: varint(1 << 3) + varint(value)),
    )
    return st.builds(lambda start, rest: start + b"".join(rest), available, st.lists(any_field, max_size=6))


def messages(pool: Pool) -> st.SearchStrategy[bytes]:
    others = st.sampled_from([b"", b"", field(7, b"\n\x01x"), varint(1 << 3) + varint(10)])
    one = st.builds(lambda part, other, spare: field(1, part, spare) + other, parts(pool), others, st.integers(0, 1))
    return st.lists(one, max_size=3).map(b"".join)


@pytest.mark.parametrize("name", POOLS)
@settings(max_examples=30)
@given(data=st.data())
def test_any_valid_encoding_is_decoded_as_by_the_generated_class(name: str, data: st.DataObject) -> None:
    pool = POOLS[name]
    content = data.draw(messages(pool))
    assert read(pool, content) == as_generated(pool, content)


@pytest.mark.parametrize("slot", near_misses("GPU-000000000000000000000000000000000001__7"))
def test_an_id_that_almost_names_a_slot_is_unknown(slot: str) -> None:
    asked = api.ContainerPreferredAllocationRequest(available_deviceIDs=[slot], allocation_size=1)
    content = api.PreferredAllocationRequest(container_requests=[asked]).SerializeToString()
    assert not any(read(UUIDS, content)[0].available)


def test_a_length_of_two_bytes_is_not_mistaken_for_a_shorter_one() -> None:
    pool = POOLS["that fill one byte"]
    slot = pool.cards[0].slots[11].encode()
    others = field(9, b"") * 8000
    length = ord("x") << 7
    content = field(1, b"\n\x80" + (slot + others)[: length + 1])
    assert read(pool, content) == as_generated(pool, content)


@given(content=st.binary(max_size=40), cut=st.integers(1, 30))
def test_a_damaged_message_is_refused_or_decoded_as_by_the_generated_class(content: bytes, cut: int) -> None:
    slots = b"".join(field(1, slot.encode()) for slot in UUIDS.slots)
    for damaged in (content, field(1, slots[:-cut]), field(1, slots)[:-cut]):
        try:
            expected = as_generated(UUIDS, damaged)
        except DecodeError:
            with contextlib.suppress(DecodeError):
                read(UUIDS, damaged)
            continue
        assert read(UUIDS, damaged) == expected


@pytest.mark.parametrize("size", [1, 4, 10])
def test_requests_on_a_large_node_are_decoded_without_looking_up_ids(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the rest of the message contains bytes like a tag, such as a size of 10."""
    pool = Pool(CardSlots.of(CardId(f"GPU-{number:036d}"), number, 1000) for number in range(16))
    slots = list(pool.slots)
    random.Random(1).shuffle(slots)
    available, taken = slots[:9000], slots[:2]
    asked = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=taken, allocation_size=size
    )
    content = api.PreferredAllocationRequest(container_requests=[asked]).SerializeToString()
    expected = pool.marks(available)
    monkeypatch.setattr(pool, "numbers", {})
    assert read(pool, content) == [PreferenceRequest(expected, tuple(taken), size)]
