"""Whole numbers in annotations and labels, where nobody checks what anybody writes.

`str.isdigit` is true of `²`, of which `int` knows nothing, and `int` refuses thousands of digits; a number that fits
into no vector would stop the scheduler later on. What is none of the expected numbers is none.
"""

UINT64_MOST = 2**64 - 1
_DIGITS = 20


def whole_number(text: str, most: int = UINT64_MOST) -> int | None:
    """The number from 0 to `most` that the text is, in ASCII digits; else None."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        return None
    number = int(text)
    return number if number <= most else None
