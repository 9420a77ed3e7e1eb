"""The agent as a whole, with cards in memory and a kubelet in this process: start, health, reload, other vendors."""

import asyncio
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton.agent import config as configuration
from baton.agent import daemon
from baton.agent.cluster.labels import gpu_labels
from baton.agent.config import Kind, Sharing
from baton.agent.daemon import Agent, Companion
from baton.agent.node import host_files
from baton.agent.node.identity import PodProcess
from baton.agent.node.lock_keeper import LockKeeper
from baton.agent.node.lock_port import LockClient
from baton.agent.node.usage import LockTimes
from baton.agent.status import StatusServer, ask
from baton.errors import BatonError, UnavailableError
from baton.gpu.cards import CardEvent, Severity
from baton.model.ids import CardId, PodUid
from tests.agent import kubelet_server
from tests.agent.agents import Cards, config_text, running
from tests.agent.kubelet_server import AdmissionError
from tests.gpu.fake import FakeNvidia

GPU = "nvshare.com/gpu"
PATIENCE_S = 120.0
"""Only turns a hang into a failure."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        yield Path(name)


async def test_offers_every_card_and_answers_about_itself(directory: Path) -> None:
    cards = Cards()
    async with running(directory, cards) as (agent, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        answers = await kubelet.admit("pod", {"main": {GPU: 1}})
        assert answers["main"][GPU].envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        status = await ask(directory / "agent.sock", PATIENCE_S)
        assert [(r.name, r.slots, r.free, r.state) for r in status.resources] == [(GPU, 20, 19, "serving")]
        assert [card.pods for card in status.cards] == [("default/pod",), ()]
        assert agent.ready
    assert cards.closed


async def test_the_hook_is_installed_once_there_is_room_for_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tried, installed = host_files.prepare, asyncio.Event(), asyncio.Event()

    def prepare(*words: Any, **named: Any) -> Any:
        made = real(*words, **named)
        (installed if made.hook_path else tried).set()
        return made

    monkeypatch.setattr(daemon, "_HOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(host_files, "prepare", prepare)
    (directory / "hook").write_text("in the way of the directory")
    async with running(directory, Cards()) as (_, kubelet), asyncio.timeout(PATIENCE_S):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        before = await kubelet.admit("before", {"main": {GPU: 1}})
        assert tried.is_set()
        (directory / "hook").unlink()
        await installed.wait()
        after = await kubelet.admit("after", {"main": {GPU: 1}})
    assert not any("libbaton.so" in mount.host_path for mount in before["main"][GPU].mounts)
    assert any("libbaton.so" in mount.host_path for mount in after["main"][GPU].mounts)


async def test_an_ended_pod_holds_no_slots_even_if_an_older_kubelet_lists_it(directory: Path) -> None:
    class Knowing(Companion):
        async def run(self, agent: Agent) -> None:
            pass

        def ended_pods(self) -> frozenset[tuple[str, str]]:
            return frozenset({("default", "ended"), ("other", "pod")})

    async with running(directory, Cards(), companions=[StatusServer(), Knowing()]) as (_, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        await kubelet.admit("ended", {"main": {GPU: 1}})
        await kubelet.admit("pod", {"main": {GPU: 1}})
        status = await ask(directory / "agent.sock", PATIENCE_S)
        assert [resource.free for resource in status.resources] == [19]
        assert sorted(card.pods for card in status.cards) == [(), ("default/pod",)]


async def test_a_share_of_three_resources_is_reported_once_and_only_on_its_card(directory: Path) -> None:
    number, memory, cores = (f"volcano.sh/vgpu-{what}" for what in ("number", "memory", "cores"))
    text = config_text(directory, f"[{{name: {number}, kind: vgpu, memory-unit-mib: 1024}}]")
    async with running(directory, Cards(), text) as (_, kubelet):
        await kubelet.until(lambda: all(kubelet.allocatable(name) for name in (number, memory, cores)))
        await kubelet.admit("pod", {"main": {number: 1, memory: 30, cores: 200}})
        status = await ask(directory / "agent.sock", PATIENCE_S)
        assert sorted(card.pods for card in status.cards) == [(), ("default/pod",)], "its units are on both cards"
        connector = aiohttp.UnixConnector(str(directory / "agent.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://agent/metrics") as response,
        ):
            told = [line.rpartition(" ") for line in (await response.text()).splitlines() if not line.startswith("#")]
    assert len({series for series, _, _ in told}) == len(told)
    slots = {series: value for series, _, value in told if series.startswith("baton_container_slots")}
    assert list(slots.values()) == ["1.0"]


async def test_probes_and_metrics_over_http(directory: Path) -> None:
    cards = Cards()
    async with running(directory, cards) as (_, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        await kubelet.admit("pod", {"main": {GPU: 2}})
        cards.happened.append(CardEvent(CardId("GPU-0"), Severity.APPLICATION, "Xid 31", 31))
        connector = aiohttp.UnixConnector(str(directory / "agent.sock"))
        async with aiohttp.ClientSession(connector=connector) as session:
            for path in ("healthz", "readyz"):
                async with session.get(f"http://agent/{path}") as response:
                    assert response.status == 200
            text = ""
            while 'xid="31"' not in text:
                async with session.get("http://agent/metrics") as response:
                    text = await response.text()
    for line in (
        'baton_card_healthy{card="GPU-0",index="0",model="Tesla T4"} 1.0',
        'baton_card_utilisation_ratio{card="GPU-1",index="1",model="Tesla T4"} 0.5',
        'baton_slots{card="GPU-0",resource="nvshare.com/gpu"} 10.0',
        'baton_slots_in_use{card="GPU-1",resource="nvshare.com/gpu"} 1.0',
        'baton_container_slots{card="GPU-0",container="main",namespace="default",pod="pod"} 1.0',
        'baton_card_xids_total{card="GPU-0",xid="31"} 1.0',
        'baton_resource_registered{resource="nvshare.com/gpu"} 1.0',
        'baton_allocations_total{resource="nvshare.com/gpu"} 1.0',
    ):
        assert line in text


async def test_an_address_of_ipv6_is_written_in_brackets(directory: Path) -> None:
    """On nodes without IPv4 addresses kubelet's probes reach nothing at 0.0.0.0."""
    with socket.socket(socket.AF_INET6) as free:
        try:
            free.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = free.getsockname()[1]
    text = config_text(directory).replace('metrics-address: ""', f"metrics-address: '[::1]:{port}'")
    async with (
        asyncio.timeout(60),
        running(directory, Cards(), text),
        aiohttp.ClientSession() as session,
        session.get(f"http://[::1]:{port}/healthz") as response,
    ):
        assert response.status == 200


async def test_a_fatal_event_and_a_bad_probe_take_a_card_away_and_good_probes_bring_it_back(directory: Path) -> None:
    cards = Cards()
    async with running(directory, cards) as (_, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        cards.happened.append(CardEvent(CardId("GPU-1"), Severity.FATAL, "Xid 79: fallen off the bus", 79))
        cards.bad = {CardId("GPU-1"): "the driver asks for a reset of this GPU"}
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 10)
        reason = ""
        while reason != "the driver asks for a reset of this GPU":
            status = await ask(directory / "agent.sock", PATIENCE_S)
            assert [card.healthy for card in status.cards] == [True, False]
            reason = status.cards[1].reason
        cards.bad = {}
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)


async def test_a_card_that_vanishes_stays_listed_as_unhealthy(directory: Path) -> None:
    cards = Cards()
    async with running(directory, cards) as (agent, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        cards.listed.pop()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 10)
        assert kubelet.capacity[GPU] == 20
        assert agent.ready


async def test_a_changed_file_is_loaded_and_an_invalid_one_is_not(directory: Path) -> None:
    async with running(directory, Cards()) as (agent, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        path = directory / "agent.yaml"
        path.write_text(config_text(directory, "[{name: nvshare.com/gpu, replicas: 3}, {name: a.b/c, replicas: 0}]"))
        await agent.reload()
        assert "resources[1].replicas is 0" in agent.problem
        path.write_text(
            config_text(
                directory,
                "[{name: nvshare.com/gpu, replicas: 3, cards: [{index: 1, use: false}]},"
                " {name: nvidia.com/gpu, kind: whole, cards: [{index: 0, use: false}]}]",
            )
        )
        await agent.reload()
        assert not agent.problem
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 3 and kubelet.allocatable("nvidia.com/gpu") == 1)
        path.write_text(config_text(directory))
        await agent.reload()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20 and "nvidia.com/gpu" not in kubelet.clients)
        assert len([r for r in kubelet.registrations if r.resource_name == GPU]) == 1, "one registration throughout"


async def test_a_new_kind_or_unit_of_a_resource_takes_effect_at_once(directory: Path) -> None:
    """The slots do not change, so kubelet needs no update, but limits and node annotations depend on it."""
    async with running(directory, Cards()) as (agent, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        for unit_mib in (256, 1024):
            fields = f"kind: vgpu, memory-name: a.b/memory, cores-name: a.b/cores, memory-unit-mib: {unit_mib}"
            (directory / "agent.yaml").write_text(config_text(directory, f"[{{name: {GPU}, {fields}}}]"))
            await agent.reload()
            offer = agent.endpoints[GPU].board.offer
            assert (offer.kind, offer.memory_unit_mib, offer.memory_name) == (Kind.VGPU, unit_mib, "a.b/memory")


async def test_sections_for_the_start_stay_unchanged_until_the_next_start(directory: Path) -> None:
    """The lock daemon still listens in the same directory, so containers must still mount that one."""
    async with running(directory, Cards()) as (agent, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        before = agent.config
        text = config_text(directory, "[{name: nvshare.com/gpu, replicas: 3}]").replace("/lock", "/elsewhere")
        (directory / "agent.yaml").write_text(text.replace("device-plugins", "other-plugins"))
        await agent.reload()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 6)
        assert (agent.config.lock, agent.config.kubelet) == (before.lock, before.kubelet)
        answers = await kubelet.admit("pod", {"main": {GPU: 1}})
        assert f"{directory}/lock" in [mount.host_path for mount in answers["main"][GPU].mounts]


async def test_described_devices_are_offered_beside_cards(directory: Path) -> None:
    (directory / "darwin0").touch()
    kind = f'{{name: darwin, resource: a.b/darwin, discovery: {{files: "{directory}/darwin[0-9]", every-s: 0.1}}, '
    (directory / "darwin.yaml").write_text(kind + 'container: {device-nodes: ["{path}"]}}')
    text = config_text(directory, more="devices: [darwin.yaml]")
    async with running(directory, Cards(), text) as (_, kubelet):
        await kubelet.until(lambda: kubelet.allocatable("a.b/darwin") == 1)
        answers = await kubelet.admit("pod", {"main": {"a.b/darwin": 1, GPU: 1}})
        assert [node.host_path for node in answers["main"]["a.b/darwin"].devices] == [f"{directory}/darwin0"]
        (directory / "darwin0").unlink()
        await kubelet.until(lambda: kubelet.allocatable("a.b/darwin") == 0)


def write_kind(directory: Path, vendor: str, replicas: int = 1) -> None:
    """A vendor whose first device has the common name `unit0`, and a state in a file beside it."""
    (directory / vendor).mkdir()
    (directory / vendor / "unit0").touch()
    (directory / vendor / "unit0.state").write_text("ok")
    discovery = f'{{files: "{directory}/{vendor}/unit[0-9]", every-s: 0.1}}'
    (directory / f"{vendor}.yaml").write_text(
        f"{{name: {vendor}, resource: {vendor}.org/unit, replicas: {replicas}, discovery: {discovery}, "
        f'health: {{file: "{{path}}.state"}}}}'
    )


async def test_an_unhealthy_device_does_not_affect_another_vendors_device_of_the_same_name(directory: Path) -> None:
    for vendor in ("one", "two"):
        write_kind(directory, vendor)
    text = config_text(directory, more="devices: [one.yaml, two.yaml]")
    async with running(directory, Cards(), text) as (_, kubelet):
        await kubelet.until(lambda: kubelet.allocatable("one.org/unit") == kubelet.allocatable("two.org/unit") == 1)
        (directory / "one" / "unit0.state").write_text("broken")
        await kubelet.until(lambda: kubelet.allocatable("one.org/unit") == 0)
        assert kubelet.allocatable("two.org/unit") == 1


class AnsweringLock(LockClient):
    """A lock daemon that always answers."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, tuple, 1.0)
        self.told: asyncio.Queue[Mapping[CardId, Sharing]] = asyncio.Queue()

    async def look(self) -> bool:
        return True

    async def share(self, modes: Mapping[CardId, Sharing]) -> bool:
        self.told.put_nowait(modes)
        return True


async def test_lock_times_of_deleted_pods_are_dropped_even_if_no_client_reads_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.agent.node.lock_keeper._LOOK_EVERY_S", 0.001)
    lock = AnsweringLock(directory)
    lock.usage.totals[PodProcess(PodUid("gone"), "c"), CardId("GPU-0")] = LockTimes(1.0)
    async with asyncio.timeout(60), running(directory, Cards(1), companions=[LockKeeper(start=False)]) as (agent, _):
        agent.lock = lock
        while lock.usage.totals:
            await lock.told.get()


async def test_the_lock_daemon_and_the_labels_do_not_cover_described_devices(directory: Path) -> None:
    """The lock daemon refuses unknown cards, and the agent then sends nothing further."""
    write_kind(directory, "one", replicas=3)
    text = config_text(directory, more="devices: [one.yaml]")
    async with running(directory, Cards(1), text, [LockKeeper(start=False)]) as (agent, kubelet):
        await kubelet.until(lambda: kubelet.allocatable("one.org/unit") == 3)
        agent.lock = lock = AnsweringLock(directory)
        assert await lock.told.get() == {"GPU-0": Sharing.AUTO}
        assert gpu_labels("baton.dev", agent.gpus.cards, agent.gpu_offers)["baton.dev/gpu.replicas"] == "10"


async def test_a_driver_that_comes_later_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.agent.cards.watch._SEARCH_EVERY_S", 0.05)
    there: list[Cards] = []

    def open_driver() -> Cards:
        if not there:
            raise UnavailableError("no NVIDIA driver here")
        return there[0]

    agent = Agent(configuration.parse(config_text(directory)), "node-1", [FakeNvidia(open_driver)])
    async with kubelet_server.running(directory) as kubelet:
        task = asyncio.create_task(agent.run())
        await kubelet.until(lambda: GPU in kubelet.clients)
        with pytest.raises(AdmissionError):
            await kubelet.admit("early", {"main": {GPU: 1}})
        there.append(Cards())
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        agent.stopping.set()
        await task


async def test_a_failing_companion_is_retried_without_affecting_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    class Failing(Companion):
        name = "failing"

        async def run(self, agent: Agent) -> None:
            attempts.append(1)
            raise BatonError("not today")

        async def start_refusal(self, offer: object, slots: Sequence[str]) -> str:
            return "not on my watch"

    async with running(directory, Cards(), companions=[Failing()]) as (agent, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        assert attempts
        assert agent.ready
        assert await agent.start_refusal(agent.endpoints[GPU].board.offer, []) == "not on my watch"


async def test_a_missing_agent_gives_one_sentence(directory: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no agent answers on .*missing.sock"):
        await ask(directory / "missing.sock", 1.0)
