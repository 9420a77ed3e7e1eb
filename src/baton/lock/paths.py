"""Where the daemon's files are: the sockets for workloads, the control socket, and the state kept over restarts."""

import os
from pathlib import Path
from typing import NamedTuple

from baton.errors import UnavailableError, UsageError

_LONGEST = 107
"""The path of a unix socket may have 107 bytes."""
_DEEPEST = len("/scheduler.sock")
"""The sockets of single cards have longer paths, but they are bound through a directory descriptor and mounted
elsewhere."""


SYSTEM_SOCKET_DIR = Path("/run/baton/lock")
"""The socket directory of a daemon for all users of the machine."""


def default_socket_dir() -> Path:
    """The socket directory to use when none is given, by the rules of the wire protocol."""
    if given := os.environ.get("BATON_SOCKET_DIR"):
        return Path(given).absolute()
    if os.getuid() == 0:
        return SYSTEM_SOCKET_DIR
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "baton" / "lock"
    own = Paths(Path(f"/tmp/baton-{os.getuid()}/lock"))
    own.check_owner()
    return own.sockets


class Paths(NamedTuple):
    """All paths of one daemon. Workloads see only `sockets`."""

    sockets: Path

    @property
    def private(self) -> Path:
        """The parent directory, for the daemon and its control clients."""
        return self.sockets.parent

    @property
    def control(self) -> Path:
        """The control socket."""
        return self.private / "control.sock"

    @property
    def lock(self) -> Path:
        """Locked by the running daemon; if it exists, there was a daemon before."""
        return self.private / "lockd.lock"

    @property
    def journal(self) -> Path:
        """Who holds which card."""
        return self.private / "holders"

    @property
    def accounts(self) -> Path:
        """Accounts, and settings made with `baton lock`."""
        return self.private / "accounts.json"

    def card_socket(self, card: str) -> Path:
        """The socket of one card, for clients that cannot name it."""
        return self.sockets / "gpu" / card / "scheduler.sock"

    def check_owner(self) -> None:
        """Refuse a directory of another user, who could replace its sockets and redirect its files."""
        try:
            owner = self.private.stat().st_uid
        except FileNotFoundError:
            return
        if os.getuid() and owner not in (0, os.getuid()):
            raise UsageError(
                f"the socket directory {str(self.sockets)!r} is in {str(self.private)!r}, which belongs to user "
                f"{owner}; set BATON_SOCKET_DIR or XDG_RUNTIME_DIR to a directory that belongs to you"
            )

    def unusable(self, error: OSError) -> UnavailableError:
        """The error for a directory in which files or sockets cannot be created."""
        where = error.filename or str(self.sockets)
        return UnavailableError(
            f"the socket directory {str(self.sockets)!r} cannot be used: {where}: {error.strerror}; "
            "make it writable, free some space, or use another --socket-dir"
        )

    def prepare(self) -> None:
        """Create the directories; refuse a directory that would not work."""
        if len(os.fsencode(self.sockets)) + _DEEPEST > _LONGEST:
            raise UsageError(
                f"the socket directory {str(self.sockets)!r} is too long for a unix socket; "
                f"use a path of at most {_LONGEST - _DEEPEST} bytes"
            )
        self.private.mkdir(parents=True, exist_ok=True)
        self.check_owner()
        if self.private.stat().st_mode & 0o002:
            raise UsageError(
                f"the socket directory {str(self.sockets)!r} is in {str(self.private)!r}, where the control socket "
                f"would be, too, but every user may write to that directory; use a subdirectory, "
                f"such as {str(self.sockets / 'lock')!r}"
            )
        self.sockets.mkdir(exist_ok=True)
        self.sockets.chmod(0o711)
        if self.private.stat().st_uid == os.getuid():
            self.private.chmod(0o711)
