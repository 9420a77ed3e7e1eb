"""What each Xid means for a card. An Xid is the number under which NVIDIA's driver reports an error.

The rows follow NVIDIA's public Xid catalogue and answer a narrow question: may the card get new work? One kind of
mistake takes healthy cards away because of a bug in a program, the other gives work to a broken card. If the catalogue
says to restart the program, the severity is `application`; if it says to reset the GPU or more, `fatal`. Xid 109 is an
exception: the catalogue asks for a reset, but NVIDIA's device plugin ignores it, and so does Baton. An unlisted number
is fatal, because an unknown hardware error must not be ignored.
"""

import msgspec

from baton.gpu.cards import Severity


class Xid(msgspec.Struct, frozen=True):
    """One row: the number, its severity for the card, and its title."""

    number: int
    severity: Severity
    title: str


_ROWS: dict[Severity, dict[int | tuple[int, ...], str]] = {
    Severity.APPLICATION: {
        8: "GPU stopped processing a channel of one program",
        13: "graphics engine exception",
        31: "memory page fault of one program",
        32: "invalid or corrupted push buffer stream",
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)): "copy engine exception",
        43: "GPU stopped processing for one program",
        44: "graphics engine fault during a context switch",
        45: "channels of a program removed after an earlier error",
        60: "security engine exception",
        (68, 83, 84, 88, 89, 96, 97, 98): "video decoder exception",
        69: "graphics engine class error",
        73: "video encoder exception",
        80: "push buffer with a wrong checksum",
        (82, *range(99, 106)): "image decoder exception",
        (86, 139): "optical flow engine exception",
        94: "contained memory error",
        109: "context switch timeout",
    },
    Severity.IGNORABLE: {
        37: "driver firmware error",
        (42, 65): "video processor exception",
        56: "display engine error",
        63: "page retirement or row remapping recorded",
        (66, 67): "illegal access by the driver",
        92: "high rate of single bit ECC errors",
        93: "the card's own log is worn out",
        (106, 107): "test message",
        108: "NVLink translation error at the other end",
        121: "corrected error on the chip-to-chip link",
        137: "NVLink memory fault of one program",
        141: "fast path error",
        (147, 148): "NVLink note",
        154: "recommended recovery action changed",
        157: "retirement of a unit could not be recorded",
        160: "channel retired",
        161: "channel could not be retired",
    },
    Severity.FATAL: {
        38: "driver firmware error",
        46: "GPU stopped processing",
        48: "double bit ECC error",
        54: "auxiliary power is not connected",
        57: "error programming the video memory interface",
        58: "unstable video memory interface",
        61: "internal micro-controller breakpoint",
        62: "internal micro-controller halt",
        64: "page retirement or row remapping could not be recorded",
        (74, 144, 145, 146, 149, 150, 155): "NVLink error",
        78: "vGPU start error",
        79: "GPU has fallen off the bus",
        95: "uncontained memory error",
        110: "security fault",
        119: "GSP firmware did not answer in time",
        120: "GSP firmware error",
        122: "SPI flash controller failure",
        123: "power management unit failure",
        136: "NVLink training failed",
        140: "uncorrectable ECC error that was not recovered",
        143: "GPU initialisation failure",
        151: "key rotation error",
        156: "a unit was retired and the GPU wants a reset",
        158: "fatal time-out on the GPU",
    },
}

XIDS: dict[int, Xid] = {
    number: Xid(number, severity, title)
    for severity, rows in _ROWS.items()
    for numbers, title in rows.items()
    for number in (numbers if isinstance(numbers, tuple) else (numbers,))
}


def classify(number: int) -> Xid:
    """The row of an Xid; an unlisted one is fatal."""
    return XIDS.get(number) or Xid(number, Severity.FATAL, "an error that NVIDIA's catalogue does not list")
