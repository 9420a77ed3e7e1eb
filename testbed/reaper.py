"""Tears a bed down when its owner dies, however it dies.

One small process per bed, in a session of its own, so that neither a closed terminal nor a `kill -9` of the test run
takes it along. It watches the owner through a process descriptor and does nothing else. The bed ends it when the bed
ends in order or is handed over to nobody.
"""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from testbed.state import BedRecord, beds


def start(record: BedRecord) -> subprocess.Popen[bytes]:
    """Start the reaper of a bed that this process owns. It lives in the directory above the package to find it."""
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
    """The reaper is not needed any more."""
    reaper.kill()
    reaper.wait()


def main(bed_id: str, owner_pid: int) -> None:
    """Wait for the owner's death, then end the bed."""
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
