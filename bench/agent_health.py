"""The agent's startup and faults of cards: how soon kubelet learns of the cards, of each fault and of its end.

The agent is a process with its default settings; kubelet is a registration server in this process that follows
ListAndWatch. An application error must change nothing: the benchmark waits twice the target time to confirm that.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from baton.agent.offers.slots import card_of
from baton.gpu import profiles, simulated
from tests.agent import kubelet_server
from tests.agent.kubelet_server import Kubelet

_AIM_S = 2.0
_ROUNDS = 5
_GPU = "nvshare.com/gpu"


class _Fault(NamedTuple):
    what: str
    name: str
    details: dict[str, float]


_FATAL = [
    _Fault("Xid fatal (79)", "xid", {"xid": 79}),
    _Fault("off the bus", "lost", {}),
    _Fault("uncorrectable ECC", "ecc", {}),
    _Fault("slow link", "slow-link", {"factor": 0.1}),
]
_APPLICATION = _Fault("Xid application (31)", "xid", {"xid": 31})


@contextlib.asynccontextmanager
async def _agent(folder: Path, machine: Path) -> AsyncIterator[None]:
    config = folder / "agent.yaml"
    config.write_text(
        f"""
kubelet: {{directory: {folder}, plugin-directory: {folder}/device-plugins}}
hook: {{directory: {folder}/hook}}
lock: {{socket-directory: {folder}/lock/lock, supervise: false}}
api: {{enabled: false}}
serving: {{status-socket: {folder}/agent.sock, metrics-address: ""}}
"""
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.cli.main", "agent", "--config", str(config),
        env={**os.environ, **simulated.environment(machine)}, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def _healthy_cards(kubelet: Kubelet) -> int:
    return len({card_of(slot) for slot in kubelet.books[_GPU].healthy}) if _GPU in kubelet.books else 0


async def _delay_s(kubelet: Kubelet, machine: Path, fault: _Fault, healthy_after: int) -> float:
    began_s = time.perf_counter()
    simulated.inject(machine, 0, fault.name, **fault.details)
    await kubelet.until(lambda: _healthy_cards(kubelet) == healthy_after, limit_s=120.0)
    return time.perf_counter() - began_s


async def _run(folder: Path, machine: Path) -> None:
    heal = _Fault("return to service", "heal", {})
    async with contextlib.AsyncExitStack() as stack:
        kubelet = await stack.enter_async_context(kubelet_server.running(folder))
        began_s = time.perf_counter()
        await stack.enter_async_context(_agent(folder, machine))
        await kubelet.until(lambda: _healthy_cards(kubelet) == 2)
        print(f"process start to first list {time.perf_counter() - began_s:.2f} s  (target {_AIM_S:g} s)")
        for fault in _FATAL:
            away_s, back_s = [], []
            for _ in range(_ROUNDS):
                away_s.append(await _delay_s(kubelet, machine, fault, 1))
                back_s.append(await _delay_s(kubelet, machine, heal, 2))
            print(
                f"{fault.what:22} unhealthy after {max(away_s):5.2f} s, healthy again after {max(back_s):5.2f} s  "
                f"(target {_AIM_S:g} s; longest of {_ROUNDS})"
            )
        lists = len(kubelet.lists[_GPU])
        simulated.inject(machine, 0, _APPLICATION.name, **_APPLICATION.details)
        await asyncio.sleep(2 * _AIM_S)
        print(f"{_APPLICATION.what:22} lists sent because of it: {len(kubelet.lists[_GPU]) - lists}  (target 0)")


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        folder = Path(name)
        machine = folder / "simgpu"
        simulated.start([profiles.find("t4")] * 2, machine)
        try:
            asyncio.run(_run(folder, machine))
        finally:
            simulated.stop(machine, force=True)
