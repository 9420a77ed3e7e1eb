"""GPU time of real programs under the hook and the daemon, against the shares they requested: weights and limits.

The programs keep a simulated GPU busy all the time and do not fit on it together. Each program's share of the card's
time is compared with its weight, or with its limit in percent.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from baton.gpu import profiles, simulated
from baton.local.daemon import OwnDaemon
from baton.local.launch import Launch, Requests
from baton.lock.control import ControlClient
from baton.lock.paths import Paths

_SCALE = 60.0
_WARM_UP_S = 3.0
_MEASURED_S = float(os.environ.get("BATON_BENCH_SECONDS", "60"))
"""Turns take one to two seconds here; shares are enforced over many turns."""
_GIB = 1 << 30

CASES: tuple[tuple[str, tuple[Requests, ...], tuple[float, ...]], ...] = (
    ("weights 1:2:3", tuple(Requests(weight=weight, tenant=f"w{weight}") for weight in (1, 2, 3)), (16.7, 33.3, 50.0)),
    ("weights 30:70", tuple(Requests(weight=weight, tenant=f"w{weight}") for weight in (30, 70)), (30.0, 70.0)),
    ("limit 25 %", (Requests(cores_percent=25, tenant="c25"),), (25.0,)),
    ("limit 50 %", (Requests(cores_percent=50, tenant="c50"),), (50.0,)),
    ("limits 30 % and 60 %", tuple(Requests(cores_percent=c, tenant=f"c{c}") for c in (30, 60)), (30.0, 60.0)),
)


def _received(control: ControlClient) -> dict[str, float]:
    return {tenant.tenant: tenant.account.received_s for tenant in control.status().tenants}


def _measure(requests: tuple[Requests, ...]) -> list[float]:
    """Percentage of the elapsed time that each program received."""
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        folder = Path(name)
        simulated.start([profiles.find("p100-16")], folder / "machine", _SCALE)
        machine = simulated.environment(folder / "machine")
        daemon = OwnDaemon(folder / "run" / "lock", machine)
        daemon.start()
        control = ControlClient(Paths(daemon.sockets).control)
        words = [
            sys.executable, "-m", "baton.local.trainer", "--working-set", str(11 * _GIB), "--steps", "100000",
            "--gpu-seconds", "6", "--cpu-seconds", "0", "--kernels", "20", "--time-scale", str(_SCALE),
        ]  # fmt: skip
        programs = []
        for request in requests:
            launch = Launch(words, request, daemon.sockets, machine)
            programs.append(
                subprocess.Popen(
                    words,
                    env=launch.environment([card.gpu for card in control.status().gpus]),
                    stdout=subprocess.DEVNULL,
                )
            )
        time.sleep(_WARM_UP_S)
        before, began = _received(control), time.monotonic()
        time.sleep(_MEASURED_S)
        after, elapsed_s = _received(control), time.monotonic() - began
        for program in programs:
            program.kill()
            program.wait()
        daemon.stop()
        simulated.stop(folder / "machine", force=True)
    return [100 * (after[request.tenant] - before.get(request.tenant, 0.0)) / elapsed_s for request in requests]


def run() -> None:
    worst = 0.0
    for title, requests, asked in CASES:
        received = _measure(requests)
        errors = [got - ask for got, ask in zip(received, asked, strict=True)]
        worst = max(worst, *(abs(error) for error in errors))
        cells = "  ".join(f"{got:5.1f} of {ask:4.1f}" for got, ask in zip(received, asked, strict=True))
        print(f"{title:22} {cells}   off by {max(map(abs, errors)):.1f} points", flush=True)
    print(f"worst {worst:.1f} points (target 2.0), each over {_MEASURED_S:.0f} s")
