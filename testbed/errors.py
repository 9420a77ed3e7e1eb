"""Errors of the test bed: one sentence, with the remedy."""

import os

from baton.errors import BatonError


class BedError(BatonError):
    """The bed cannot be started, or one of its programs failed."""


class MissingError(BedError):
    """A requirement of the bed is missing on this machine; tests that need it are skipped with this sentence."""

    exit_code = 3


def lack_is_failure() -> bool:
    """Whether a missing requirement fails the run, as in CI, or only skips the tests that need it."""
    return os.environ.get("CI", "").lower() in {"true", "1"}
