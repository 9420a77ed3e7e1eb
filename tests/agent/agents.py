"""An agent in this process, with cards in memory and a kubelet beside it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from baton.agent import config as configuration
from baton.agent.daemon import Agent, Companion
from baton.agent.status import StatusServer
from baton.gpu.cards import Card, CardEvent, CardHealth, ProcessUse, Sample
from baton.gpu.containers import DriverFiles
from baton.gpu.nvidia import NVIDIA
from baton.model.ids import CardId
from tests.agent import kubelet_server
from tests.agent.kubelet_server import Kubelet
from tests.gpu.fake import FakeNvidia

PATIENCE_S = 120.0
"""Only turns a hang into a failure."""


class Cards:
    """A `GpuSource` in memory."""

    description = "cards in memory"
    driver_files = DriverFiles()
    silent_cards = 0

    def __init__(self, count: int = 2) -> None:
        self.listed = [
            Card(CardId(f"GPU-{index}"), index, NVIDIA.name, "Tesla T4", 16384, (7, 5), "") for index in range(count)
        ]
        self.bad: dict[CardId, str] = {}
        self.happened: list[CardEvent] = []
        self.processes: tuple[ProcessUse, ...] = ()
        self.closed = False

    def cards(self) -> tuple[Card, ...]:
        return tuple(self.listed)

    def telemetry(self) -> tuple[Sample, ...]:
        return tuple(
            Sample(card.id, 50, 1024, card.memory_mib, 60, 70.0, 250.0, 1500, None, None, self.processes)
            for card in self.listed
        )

    def health(self) -> tuple[CardHealth, ...]:
        return tuple(CardHealth(card.id, card.id not in self.bad, self.bad.get(card.id, "")) for card in self.listed)

    def events(self, timeout_s: float) -> tuple[CardEvent, ...]:
        import time

        time.sleep(min(timeout_s, 0.02))
        # One by one: this runs in another thread than the test, which may add one meanwhile.
        return tuple(self.happened.pop(0) for _ in range(len(self.happened)))

    def close(self) -> None:
        self.closed = True


def config_text(directory: Path, resources: str = "[{name: nvshare.com/gpu}]", more: str = "") -> str:
    return f"""
resources: {resources}
kubelet: {{directory: {directory}, plugin-directory: {directory}/device-plugins}}
hook: {{directory: {directory}/hook}}
lock: {{socket-directory: {directory}/lock}}
health: {{settle-s: 0.01, heal-s: 0.05, probe-every-s: 0.05}}
serving: {{status-socket: {directory}/agent.sock, metrics-address: ""}}
{more}
"""


@contextlib.asynccontextmanager
async def running(
    directory: Path, cards: Cards, text: str = "", companions: Sequence[Companion] = ()
) -> AsyncIterator[tuple[Agent, Kubelet]]:
    path = directory / "agent.yaml"
    path.write_text(text or config_text(directory))
    agent = Agent(
        configuration.load(path), "node-1", [FakeNvidia(lambda: cards)], config_path=path,
        companions=companions or [StatusServer()],
    )  # fmt: skip
    async with kubelet_server.running(directory) as kubelet:
        task = asyncio.create_task(agent.run())
        for companion in agent.companions:
            if isinstance(companion, StatusServer):
                await companion.listening.wait()
        try:
            yield agent, kubelet
        finally:
            agent.stopping.set()
            await task
