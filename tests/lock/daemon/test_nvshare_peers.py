"""nvshare's programs against Baton's daemon. `BATON_NVSHARE_PEERS` names the directory that contains them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.errors import UnavailableError
from baton.lock.config import Config
from baton.lock.core.events import Mode
from baton.lock.core.settings import Settings
from baton.native import library
from tests.lock.daemons import Nursery, running
from tests.lock.peer import GPU_TEXT, Peer

PEERS = os.environ.get("BATON_NVSHARE_PEERS", "")

pytestmark = [
    pytest.mark.skipif(not PEERS, reason="BATON_NVSHARE_PEERS does not name a directory with nvshare's programs"),
    pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount the socket where nvshare's programs expect it"),
]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    config = Config(settings=Settings(mode=Mode.SERIAL, quantum_s=3600.0))
    with running(tmp_path, config, [(GPU_TEXT, 16 * 2**30)]) as one:
        yield one


def where_nvshare_looks(nursery: Nursery, *command: str, **environment: str) -> "subprocess.Popen[str]":
    """Run a program in a mount namespace in which /var/run/nvshare is the socket directory of the card."""
    ours = nursery.sockets / "gpu" / GPU_TEXT
    script = (
        'ours="$1"; shift; exec 9< "$ours"; mount -t tmpfs none /run && mkdir -p /run/nvshare '
        '&& mount --bind /proc/self/fd/9 /run/nvshare && exec "$@"'
    )
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(ours), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], **environment},
    )


def test_the_control_tool_sets_the_quantum_and_switches(nursery: Nursery) -> None:
    tool = str(Path(PEERS) / "nvsharectl")
    for arguments, expected in ((["-T", "7"], (7.0, True)), (["-S", "off"], (7.0, False)), (["-S", "on"], (7.0, True))):
        done = where_nvshare_looks(nursery, tool, *arguments)
        _, error = done.communicate()
        assert done.returncode == 0, error
        # Connections are served in order: this one after the tool's, which is closed.
        Peer(nursery.sockets, None).socket.close()
        card = nursery.control.status().gpus[0]
        assert (card.quantum_s, card.on) == expected


def test_the_client_library_takes_turns(nursery: Nursery, tmp_path: Path) -> None:
    """The real client, in two Python processes on the simulated driver: the second runs when the first ends."""
    try:
        driver = library("simgpu/libcuda.so.1")
    except UnavailableError as error:
        pytest.skip(str(error))
    stand_in = tmp_path / "driver"
    stand_in.mkdir()
    (stand_in / "libcuda.so").symlink_to(driver)
    (stand_in / "libcuda.so.1").symlink_to(driver)
    program = (
        "import ctypes, sys; cuda = ctypes.CDLL('libcuda.so')\n"
        "context = ctypes.c_void_p(); where = ctypes.c_void_p()\n"
        "assert cuda.cuInit(0) == 0\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "assert cuda.cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(4096)) == 0\n"
        "assert cuda.cuMemcpyHtoD_v2(where, b'x' * 4096, ctypes.c_size_t(4096)) == 0\n"
        "print('ran', flush=True); sys.stdin.read()\n"
    )
    environment = {
        "LD_PRELOAD": str(Path(PEERS) / "libnvshare.so"),
        "LD_LIBRARY_PATH": str(stand_in),
        "BATON_SIMGPU_DIR": str(tmp_path / "machine"),
    }
    subprocess.run(
        [sys.executable, "-m", "baton.cli.main", "simgpu", "start", "--quiet", "--dir", str(tmp_path / "machine")],
        check=True,
        capture_output=True,
    )
    both = [where_nvshare_looks(nursery, sys.executable, "-c", program, **environment) for _ in range(2)]
    try:
        for status in nursery.control.follow(every_ms=50):
            if len(status.clients) == 2 and status.gpus[0].holders and status.gpus[0].waiters:
                break
        holder = next(c for c in status.clients if c.state == "holding")
        first = next(p for p in both if p.pid == holder.pid)
        other = next(p for p in both if p is not first)
        assert first.stdout
        assert other.stdout
        assert first.stdout.readline() == "ran\n"
        first.communicate("")
        assert other.stdout.readline() == "ran\n"
        other.communicate("")
    finally:
        for process in both:
            process.kill()
            process.communicate()
        stop = ["simgpu", "stop", "--quiet", "--force", "--dir", str(tmp_path / "machine")]
        subprocess.run([sys.executable, "-m", "baton.cli.main", *stop], check=False, capture_output=True)
