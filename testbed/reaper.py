"""Tears a bed down when its owner dies, however it dies.

One small process per bed, in its own session, so that neither closing the terminal nor a `kill -9` of the test run ends
it too. It watches the owner through a pidfd and does nothing else. The bed ends it when the bed is stopped normally or
left running without an owner.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from testbed.state import BedRecord, beds


def start(record: BedRecord) -> subprocess.Popen[bytes]:
    """Start the reaper of a bed that this process owns. It runs in the directory above the package to be importable."""
    with (record.directory / "reaper.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "testbed.reaper", record.id, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=Path(__file__).resolve().parent.parent,
        )


def dismiss(reaper: subprocess.Popen[bytes]) -> None:
    """End the reaper, which is no longer needed."""
    reaper.kill()
    reaper.wait()


def main(bed_id: str, owner_pid: int) -> None:
    """Wait for the owner's death, then tear down the bed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        owner = os.pidfd_open(owner_pid)
        if os.getppid() == owner_pid:
            select.select([owner], [], [])
    except ProcessLookupError:
        pass
    from testbed.teardown import tear_down

    for record in beds():
        if record.id == bed_id:
            tear_down(record)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
