"""The hook under nvshare's own daemon. BATON_NVSHARE_PEERS names the directory that holds nvshare's programs."""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook.conftest import Workloads
from tests.hook.daemon import PATIENCE_S

PEERS = os.environ.get("BATON_NVSHARE_PEERS", "")
SCRIPT = """
set -e
mount -t tmpfs none /run
mkdir -p /run/nvshare
{scheduler} 2>/dev/null &
daemon=$!
trap 'kill $daemon' EXIT
while [ ! -S /run/nvshare/scheduler.sock ]; do sleep 0.05; done
{control} -T 1 >/dev/null 2>&1
(sleep 6) | {work} &
first=$!
(sleep 6) | {work}
wait $first
echo both ended well
"""


@pytest.mark.skipif(not PEERS, reason="set BATON_NVSHARE_PEERS to a directory with nvshare-scheduler and nvsharectl")
def test_two_workloads_take_turns(workloads: Workloads, program: Callable[[str], str]) -> None:
    """The daemon's socket path is fixed, so the test gives it a /run of its own."""
    environment = workloads.environment(BATON_SOCKET_DIR="/var/run/nvshare", BATON_ON_DAEMON_LOSS="fail")
    preload = environment.pop("LD_PRELOAD")
    work = f"env LD_PRELOAD={shlex.quote(preload)} {shlex.quote(program('hammer'))} 3"
    peers = Path(PEERS)
    script = SCRIPT.format(
        scheduler=shlex.quote(str(peers / "nvshare-scheduler")),
        control=shlex.quote(str(peers / "nvsharectl")),
        work=work,
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (0, "both ended well\n"), done.stderr
    assert workloads.record.devices[0].launches > 0
    assert workloads.record.syncs > 0  # at least one turn was released
