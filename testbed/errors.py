"""What the test bed says when it cannot do its work: one sentence with the remedy."""

import os

from baton.errors import BatonError


class BedError(BatonError):
    """The bed cannot be made, or one of its programs failed."""


class MissingError(BedError):
    """Something that a bed needs is not on this machine; tests that need it are skipped with this sentence."""

    exit_code = 3


def lack_is_failure() -> bool:
    """Whether something missing fails the run, as in CI, or only skips what needs it."""
    return os.environ.get("CI", "").lower() in {"true", "1"}
