"""Frames: their bytes, fragments and garbage."""

import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from baton.lock import wire
from baton.lock.core.events import Terms
from baton.lock.daemon.sessions import asked_terms
from baton.lock.wire import FRAME_BYTES, Frame, Kind, Splitter


def test_the_layout_is_nvshares() -> None:
    raw = Frame(Kind.SET_TQ, b"pod", b"space", 0xBEEF, b"30").pack()
    assert len(raw) == 537
    assert raw[0] == 8
    assert raw[1:5] == b"pod\0"
    assert raw[255:261] == b"space\0"
    assert struct.unpack_from("<Q", raw, 509) == (0xBEEF,)
    assert raw[517:520] == b"30\0"


def test_the_reply_to_register_carries_the_id_as_hex() -> None:
    frame = wire.unpack(wire.welcome(0xABC, on=True))
    assert frame.kind == Kind.SCHED_ON
    assert frame.id == 7331
    assert frame.data == b"0000000000000abc\0\0\0\0"


def test_broadcasts_and_turns_carry_what_nvshares_client_expects() -> None:
    assert wire.unpack(wire.LOCK_OK).id == 7331
    assert wire.unpack(wire.DROP_LOCK).id == 1337
    assert wire.unpack(wire.SCHED_OFF).data == bytes(20)


def test_register_names_a_gpu_only_in_our_dialect() -> None:
    gpu = bytes(range(16))
    assert wire.registered_gpu(wire.unpack(wire.registration(gpu))) == (True, gpu)
    assert wire.registered_gpu(wire.unpack(wire.registration(bytes(16)))) == (True, None)
    assert wire.registered_gpu(wire.unpack(wire.registration(None))) == (False, None)


def test_uuids_survive_a_round_trip() -> None:
    text = wire.uuid_text(bytes(range(16)))
    assert text == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert wire.uuid_bytes(text) == bytes(range(16))
    assert wire.uuid_bytes("GPU-nonsense") is None


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), st.integers(0, 2**63), max_size=8))
def test_extension_fields_survive_a_round_trip(values: dict[str, int]) -> None:
    read = wire.fields(wire.unpack(wire.extension(Kind.REPORT, values)))
    assert read == {key: str(value) for key, value in values.items()}


def test_text_that_does_not_fit_is_cut_off_and_the_rest_is_intact() -> None:
    frame = wire.unpack(wire.extension(Kind.NOTICE, {"code": "parked", "reason": "x" * 2000}))
    read = wire.fields(frame)
    assert read["code"] == "parked"
    assert set(read["reason"]) == {"x"}


@given(st.binary(min_size=FRAME_BYTES, max_size=FRAME_BYTES))
def test_any_frame_can_be_read(raw: bytes) -> None:
    frame = wire.unpack(raw)
    values = wire.fields(frame)
    wire.registered_gpu(frame)
    wire.name(frame.pod)
    terms = asked_terms(values, Terms())
    assert terms.weight > 0
    assert 0 <= terms.cores_percent <= 100


@given(st.text(max_size=40))
def test_numbers_are_never_negative_or_too_large(text: str) -> None:
    assert 0 <= wire.number({"n": text}, "n", 1e15) <= 1e15


@given(st.lists(st.integers(1, 2000), max_size=40), st.integers(0, 6))
def test_frames_arrive_whole_however_the_stream_is_split(cuts: list[int], count: int) -> None:
    frames = [random.Random(n).randbytes(FRAME_BYTES) for n in range(count)]
    stream = b"".join(frames) + b"tail"
    splitter = Splitter()
    got: list[bytes] = []
    for cut in [*cuts, len(stream)]:
        piece, stream = stream[:cut], stream[cut:]
        got += splitter.feed(piece)
    assert got == frames
