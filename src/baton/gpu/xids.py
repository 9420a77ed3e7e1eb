"""What each Xid means for a card. An Xid is the number under which NVIDIA's driver reports an error.

The rows follow NVIDIA's public list of Xid errors. The question they answer here is narrow: must the card be kept
from new work? Getting it wrong in one direction takes healthy cards away for a program's own bug, in the other it
feeds work to a broken card. A number that is not listed is taken as fatal, because an unknown hardware error must not
be waved through; the names of the listed ones are for people who read a log or an event.
"""

import msgspec

from baton.gpu.cards import Severity


class Xid(msgspec.Struct, frozen=True):
    """One row: the number, what it means for the card, and what it is called."""

    number: int
    severity: Severity
    title: str


_F, _A, _I = Severity.FATAL, Severity.APPLICATION, Severity.IGNORABLE

_ROWS: tuple[tuple[int, Severity, str], ...] = (
    (8, _A, "GPU stopped processing a channel of one program"),
    (13, _A, "graphics engine exception"),
    (31, _A, "memory page fault of one program"),
    (32, _A, "invalid or corrupted push buffer stream"),
    (37, _I, "driver firmware error"),
    (38, _F, "driver firmware error"),
    (42, _I, "video processor exception"),
    (43, _A, "GPU stopped processing for one program"),
    (44, _A, "graphics engine fault during context switch"),
    (45, _A, "channels of a program removed after an earlier error"),
    (46, _F, "GPU stopped processing"),
    (48, _F, "double bit ECC error"),
    (56, _I, "display engine error"),
    (57, _F, "error programming the video memory interface"),
    (58, _F, "unstable video memory interface"),
    (61, _F, "internal micro-controller breakpoint"),
    (62, _F, "internal micro-controller halt"),
    (63, _I, "ECC page retirement or row remapping recorded"),
    (64, _F, "ECC page retirement or row remapping could not be recorded"),
    (65, _I, "video processor exception"),
    (66, _A, "illegal access by the driver"),
    (67, _A, "illegal access by the driver"),
    (68, _A, "video decoder exception"),
    (69, _A, "graphics engine class error"),
    (73, _A, "video encoder exception"),
    (74, _F, "NVLink error"),
    (78, _F, "vGPU start error"),
    (79, _F, "GPU has fallen off the bus"),
    (80, _F, "corrupted data sent to the GPU"),
    (92, _I, "high rate of single bit ECC errors"),
    (94, _A, "contained uncorrectable ECC error"),
    (95, _F, "uncontained uncorrectable ECC error"),
    (109, _A, "context switch timeout"),
    (110, _F, "security fault"),
    (119, _F, "GSP firmware did not answer in time"),
    (120, _F, "GSP firmware error"),
    (121, _I, "corrected error on the chip-to-chip link"),
    (122, _F, "SPI flash controller failure"),
    (123, _F, "power management unit failure"),
    (136, _F, "link training failed"),
    (137, _A, "NVLink memory fault of one program"),
    (140, _F, "uncorrectable ECC error that was not recovered"),
    (143, _F, "GPU initialisation failure"),
    (145, _A, "NVLink remote error"),
    (149, _F, "NVLink interface error"),
    (151, _F, "key rotation error"),
    (154, _I, "recommended recovery action changed"),
    (158, _F, "fatal time-out on the internal bus"),
)

XIDS: dict[int, Xid] = {number: Xid(number, severity, title) for number, severity, title in _ROWS}


def classify(number: int) -> Xid:
    """The row of an Xid; one that is not listed is fatal."""
    return XIDS.get(number) or Xid(number, Severity.FATAL, "an error that is not in NVIDIA's list")
