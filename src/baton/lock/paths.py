"""Where the daemon's files are: the sockets for workloads, the control socket, and what survives a restart."""

import os
from pathlib import Path
from typing import NamedTuple

from baton.errors import UnavailableError, UsageError

_LONGEST = 107
"""A unix socket's path may have 107 bytes."""
_DEEPEST = len("/scheduler.sock")
"""Cards' own sockets lie deeper, but are bound through a directory descriptor and mounted elsewhere."""


SYSTEM_SOCKET_DIR = Path("/run/baton/lock")
"""Where a daemon for all users of the machine serves."""


def default_socket_dir() -> Path:
    """The directory that workloads mount, by the rules of the wire protocol."""
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
    """All paths of one daemon. Only `sockets` is ever shown to a workload."""

    sockets: Path

    @property
    def private(self) -> Path:
        """The directory above, for the daemon and those who control it."""
        return self.sockets.parent

    @property
    def control(self) -> Path:
        """The control socket."""
        return self.private / "control.sock"

    @property
    def lock(self) -> Path:
        """Held by the living daemon; that it exists says that there was one."""
        return self.private / "lockd.lock"

    @property
    def journal(self) -> Path:
        """Who holds which card."""
        return self.private / "holders"

    @property
    def accounts(self) -> Path:
        """Accounts and settings made by hand."""
        return self.private / "accounts.json"

    def card_socket(self, card: str) -> Path:
        """The socket for clients that cannot name their card."""
        return self.sockets / "gpu" / card / "scheduler.sock"

    def check_owner(self) -> None:
        """Refuse a directory that another user has made: its sockets, and what our files lead to, would be theirs."""
        try:
            owner = self.private.stat().st_uid
        except FileNotFoundError:
            return
        if os.getuid() and owner not in (0, os.getuid()):
            raise UsageError(
                f"the socket directory {str(self.sockets)!r} lies in {str(self.private)!r}, which belongs to user "
                f"{owner}; use a directory of your own: set BATON_SOCKET_DIR or XDG_RUNTIME_DIR"
            )

    def unusable(self, error: OSError) -> UnavailableError:
        """One sentence for a directory in which files or sockets cannot be made."""
        where = error.filename or str(self.sockets)
        return UnavailableError(
            f"the socket directory {str(self.sockets)!r} cannot be used: {where}: {error.strerror}; "
            "make it writable and give it space, or use another --socket-dir"
        )

    def prepare(self) -> None:
        """Make the directories; refuse one that would not work."""
        if len(os.fsencode(self.sockets)) + _DEEPEST > _LONGEST:
            raise UsageError(
                f"the socket directory {str(self.sockets)!r} is too long for a unix socket; "
                f"use one of at most {_LONGEST - _DEEPEST} bytes"
            )
        self.private.mkdir(parents=True, exist_ok=True)
        self.check_owner()
        if self.private.stat().st_mode & 0o002:
            raise UsageError(
                f"the socket directory {str(self.sockets)!r} lies in {str(self.private)!r}, which everybody may write "
                f"to, and the control socket would lie there too; use a directory of its own, "
                f"such as {str(self.sockets / 'lock')!r}"
            )
        self.sockets.mkdir(exist_ok=True)
        self.sockets.chmod(0o711)
        if self.private.stat().st_uid == os.getuid():
            self.private.chmod(0o711)
