"""Starting the lock daemon as a process that outlives the program that starts it."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


def start_daemon(
    sockets: Path,
    options: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start `baton lockd` in its own session; it logs to `log`, or to the output of this process."""
    return subprocess.Popen(
        [sys.executable, "-m", "baton.cli.main", "lockd", "--socket-dir", str(sockets.absolute()), *options],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        cwd="/",
        start_new_session=True,
    )
