"""Frames of the wire protocol (docs/reference/wire.md): building, splitting, reading.

Every frame has 537 bytes. Base types are nvshare's; extension types carry `key=value` lines where the base types carry
names. No input from a peer raises an error here: bytes that make no sense become a frame of a type that the session
rejects.
"""

import enum
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

FRAME_BYTES = 537
NAME_BYTES = 254
TEXT_BYTES = 508
DATA_BYTES = 20
EXTENSION_VERSION = 1

DAEMON_ID = 7331
DROP_ID = 1337
_MAGIC = b"BT"
_LAYOUT = struct.Struct("<B254s254sQ20s")


class Kind(enum.IntEnum):
    """Message types. Types 9 to 14 have different meanings in different dialects and are not used."""

    REGISTER = 1
    SCHED_ON = 2
    SCHED_OFF = 3
    REQ_LOCK = 4
    LOCK_OK = 5
    DROP_LOCK = 6
    LOCK_RELEASED = 7
    SET_TQ = 8
    HELLO = 64
    LIMITS = 65
    IDENTITY = 66
    REPORT = 67
    NOTICE = 68
    RESUME = 69
    ALLOWANCE = 70


class Frame(NamedTuple):
    """One message as it is on the wire; `kind` is any byte, known or not."""

    kind: int
    pod: bytes = b""
    namespace: bytes = b""
    id: int = 0
    data: bytes = b""

    def pack(self) -> bytes:
        """The 537 bytes."""
        return _LAYOUT.pack(self.kind, self.pod, self.namespace, self.id & 0xFFFFFFFFFFFFFFFF, self.data)


def unpack(raw: bytes) -> Frame:
    """Read a frame of 537 bytes."""
    kind, pod, namespace, number, data = _LAYOUT.unpack(raw)
    return Frame(kind, pod, namespace, number, data)


def name(raw: bytes) -> str:
    """A NUL-padded name. Unprintable characters are replaced, because names appear in logs and tables."""
    text = raw.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def extension(kind: Kind, fields: Mapping[str, object]) -> bytes:
    """A frame of an extension type. Text that does not fit is cut off."""
    text = b""
    for key, value in fields.items():
        line = f"{key}={value}".replace("\n", " ").encode()
        joined = line if not text else text + b"\n" + line
        if len(joined) > TEXT_BYTES:
            line = line[: TEXT_BYTES - len(text) - 1]
            text = (text + b"\n" + line) if text else line
            break
        text = joined
    return Frame(kind, text[:NAME_BYTES], text[NAME_BYTES:], DAEMON_ID).pack()


def fields(frame: Frame) -> dict[str, str]:
    """The `key=value` lines of an extension frame; other lines are ignored."""
    text = (frame.pod.ljust(NAME_BYTES, b"\0") + frame.namespace).partition(b"\0")[0]
    found: dict[str, str] = {}
    for line in text.split(b"\n"):
        key, equals, value = line.partition(b"=")
        if equals:
            found[key.decode("utf-8", "replace")] = name(value)
    return found


def number(values: Mapping[str, str], key: str, most: float = 2.0**63) -> float:
    """A decimal number, at most `most`; 0 if it is missing, negative or not a number."""
    text = values.get(key, "")
    if not text or len(text) > 32 or not text.replace(".", "", 1).isascii():
        return 0.0
    digits = text.replace(".", "", 1)
    if not digits.isdigit():
        return 0.0
    return min(float(text), most)


def registration(gpu: bytes | None, *, pod: str = "none", namespace: str = "none") -> bytes:
    """REGISTER as a client sends it: with a raw UUID in Baton's dialect, without one in nvshare's."""
    data = b"" if gpu is None else gpu.ljust(16, b"\0")[:16] + _MAGIC + bytes([EXTENSION_VERSION, 0])
    return Frame(Kind.REGISTER, pod.encode()[:NAME_BYTES], namespace.encode()[:NAME_BYTES], 1234, data).pack()


def registered_gpu(frame: Frame) -> tuple[bool, bytes | None]:
    """Whether a REGISTER comes from a client with extensions, and the raw UUID that it names."""
    if frame.data[16:18] != _MAGIC or frame.data[18] < 1:
        return False, None
    raw = frame.data[:16]
    return True, raw if any(raw) else None


def uuid_text(raw: bytes) -> str:
    """A raw UUID in NVIDIA's notation."""
    digits = raw.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def uuid_bytes(text: str) -> bytes | None:
    """The raw form of a textual UUID; None if the text is not a UUID."""
    digits = text.removeprefix("GPU-").replace("-", "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    return raw if len(raw) == 16 else None


class Splitter:
    """Splits a stream into frames; keeps at most one incomplete frame."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield every frame that these bytes complete."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        size = len(data)
        start = 0
        while size - start >= FRAME_BYTES:
            yield data[start : start + FRAME_BYTES]
            start += FRAME_BYTES
        self._rest = data[start:]


LOCK_OK = Frame(Kind.LOCK_OK, id=DAEMON_ID).pack()
DROP_LOCK = Frame(Kind.DROP_LOCK, id=DROP_ID).pack()
SCHED_ON = Frame(Kind.SCHED_ON, id=DAEMON_ID).pack()
SCHED_OFF = Frame(Kind.SCHED_OFF, id=DAEMON_ID).pack()


def welcome(client: int, *, on: bool) -> bytes:
    """The reply to REGISTER."""
    return Frame(Kind.SCHED_ON if on else Kind.SCHED_OFF, id=DAEMON_ID, data=b"%016x" % client).pack()
