"""The idle agent: memory and CPU against an interpreter that imports gRPC and sleeps."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from baton.gpu import profiles, simulated

_SETTLE_S, _MEASURE_S = 10.0, 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _measure(argv: list[str], environment: dict[str, str]) -> tuple[float, float]:
    process = subprocess.Popen(argv, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        time.sleep(_SETTLE_S)
        before_s = _cpu_s(process.pid)
        time.sleep(_MEASURE_S)
        return _memory_mib(process.pid), (_cpu_s(process.pid) - before_s) / _MEASURE_S * 100
    finally:
        process.terminate()
        process.wait()


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        folder = Path(name)
        machine = folder / "simgpu"
        simulated.start([profiles.find("t4")] * 8, machine)
        config = folder / "agent.yaml"
        config.write_text(
            f"""
kubelet: {{directory: {folder}, plugin-directory: {folder}}}
hook: {{directory: {folder}/hook}}
lock: {{socket-directory: {folder}/lock/lock, supervise: false}}
api: {{enabled: false}}
serving: {{status-socket: {folder}/agent.sock, metrics-address: ""}}
"""
        )
        bare_mib, bare_percent = _measure([sys.executable, "-c", "import grpc.aio, time; time.sleep(60)"], {})
        argv = [sys.executable, "-m", "baton.cli.main", "agent", "--config", str(config)]
        mib, percent = _measure(argv, simulated.environment(machine))
        simulated.stop(machine, force=True)
    print(f"python with grpc   {bare_mib:6.1f} MiB  {bare_percent:5.2f} % of a core")
    print(
        f"baton agent        {mib:6.1f} MiB  {percent:5.2f} % of a core  {mib / bare_mib:.1f}x  "
        "(budget 100 MiB, 2 %; 8 simulated cards)"
    )
