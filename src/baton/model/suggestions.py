"""The known name that a misspelt one probably means, in one wording for commands, files and manifests."""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that resemble this one, the closest first; at most `most`."""
    return difflib.get_close_matches(name, list(known), n=most)


def did_you_mean(name: str, known: Iterable[str], lead: str = "") -> str:
    """`did you mean 'gang'?` after the lead, or nothing when no known name resembles this one."""
    near = closest(name, known)
    return f"{lead}did you mean {near[0]!r}?" if near else ""
