"""Whole numbers in annotations and labels, which no schema validates.

`str.isdigit` is true for `²`, which `int` does not accept, and `int` rejects thousands of digits; a number too large
for a vector would stop the scheduler later. Text that is not an expected number counts as no number.
"""

UINT64_MOST = 2**64 - 1
_DIGITS = 20


def whole_number(text: str, most: int = UINT64_MOST) -> int | None:
    """The number from 0 to `most` that the text holds in ASCII digits; otherwise None."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        return None
    number = int(text)
    return number if number <= most else None
