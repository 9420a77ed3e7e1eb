"""The root of every error that a user is meant to read.

An error is one sentence: what, where, what was got, what is allowed, what to do. The command line prints
`BatonError`s as they are and nothing else; any other exception is a defect and keeps its traceback.

    BatonError               something the user can act on; exit code 1
    ├── UsageError           the command line itself is wrong; exit code 2
    └── UnavailableError     a program, device, daemon or cluster that is needed is not there; exit code 3
"""

from collections.abc import Iterator
from contextlib import contextmanager


class BatonError(Exception):
    """One sentence for the user; `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(BatonError):
    """The words of the command are off: an unknown name, a value out of range."""

    exit_code = 2


class UnavailableError(BatonError):
    """Something that this command needs is not there or does not answer; trying again later may help."""

    exit_code = 3


@contextmanager
def one_failure() -> Iterator[None]:
    """Around a task group: the first failure that a user is meant to read leaves alone, without its group.

    Not `except*`: before 3.11.4 Python wraps what is raised there in a group again.
    """
    try:
        yield
    except ExceptionGroup as group:
        found: BaseException | None = group.subgroup(BatonError)
        while isinstance(found, ExceptionGroup):
            found = found.exceptions[0]
        if found is None:
            raise
        raise found from None
