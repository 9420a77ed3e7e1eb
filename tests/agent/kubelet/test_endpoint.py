"""The plugin and kubelet over real sockets: registration, restarts, the stream race, allocation, refusals."""

import asyncio
import contextlib
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from baton.agent import config as configuration
from baton.agent.config import AgentConfig, Kubelet
from baton.agent.kubelet import lifecycle as life
from baton.agent.kubelet.answers import HostFiles, answer
from baton.agent.kubelet.endpoint import PluginEndpoint, socket_name
from baton.agent.kubelet.lifecycle import Mode
from baton.agent.kubelet.plugin import Board
from baton.agent.offers.offers import Offer, plan
from baton.agent.offers.slot_choice import CardLoad
from baton.agent.offers.slots import SlotId, card_of
from baton.gpu.cards import Card
from baton.gpu.containers import ContainerEdits
from baton.gpu.nvidia import NVIDIA
from baton.model.ids import CardId
from tests.agent import kubelet_server
from tests.agent.kubelet_server import AdmissionError

GPU = "nvshare.com/gpu"
FAST = life.Pace(first_delay_s=0.02, longest_delay_s=0.1)


class Advice:
    """The agent's answers, set by the test."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.load: dict[CardId, CardLoad] | None = None
        self.chosen: list[CardId] = []
        self.refusal = ""
        self.given: list[list[str]] = []

    async def loads(self) -> Mapping[CardId, CardLoad] | None:
        return self.load

    async def chosen_cards(self, offer: Offer, size: int) -> Sequence[CardId]:
        return self.chosen

    def answer(self, offer: Offer, slots: Sequence[str]) -> ContainerEdits:
        return answer(self.config, HostFiles("/var/lib/baton/hook/1/libbaton.so"), offer, slots)

    def allocated(self, offer: Offer, slots: Sequence[str]) -> None:
        self.given.append(list(slots))

    async def start_refusal(self, offer: Offer, slots: Sequence[str]) -> str:
        return self.refusal


def cards(count: int) -> tuple[Card, ...]:
    return tuple(
        Card(CardId(f"GPU-{index}"), index, NVIDIA.name, "Tesla T4", 16384, (7, 5), "", index % 2)
        for index in range(count)
    )


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: unix sockets have room for 107 characters."""
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        yield Path(name)


class Plugin:
    """One running endpoint."""

    def __init__(self, directory: Path, text: str = "", count: int = 2, mode: Mode = Mode.REGISTER) -> None:
        self.config = configuration.parse(text)
        self.offer = plan(self.config, cards(count))[0]
        self.board = Board(self.offer)
        self.advice = Advice(self.config)
        kubelet = Kubelet(
            directory=str(directory),
            plugin_directory=str(directory / "device-plugins"),
            registration=mode,
            own_directory=str(directory / "own"),
        )
        self.endpoint = PluginEndpoint(self.board, self.advice, kubelet, random.Random(1), FAST)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Plugin"]:
        task = asyncio.create_task(self.endpoint.run())
        try:
            yield self
        finally:
            self.endpoint.stop()
            await task


@pytest.mark.parametrize("mode", list(Mode))
async def test_registers_and_offers_every_slot(directory: Path, mode: Mode) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory, mode=mode).running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        assert kubelet.options[GPU].get_preferred_allocation_available
        if mode is Mode.REGISTER:
            assert kubelet.registrations[0].options == kubelet.options[GPU], "old kubelets read only these"


@pytest.mark.parametrize("mode", list(Mode))
async def test_comes_back_after_every_kubelet_restart(directory: Path, mode: Mode) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory, mode=mode).running():
        for _ in range(3):
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
            await kubelet.restart()
            await kubelet.until(lambda: GPU in kubelet.clients and kubelet.allocatable(GPU) == 20)
        assert kubelet.most_streams == 1


async def test_waits_for_a_kubelet_that_comes_later(directory: Path) -> None:
    async with Plugin(directory).running() as plugin:
        await plugin.endpoint.until(life.State.WAITING)
        async with kubelet_server.running(directory) as kubelet:
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)


@pytest.mark.parametrize("mode", list(Mode))
async def test_registers_again_when_kubelet_cancels_the_stream_without_restarting(directory: Path, mode: Mode) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory, mode=mode).running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        await kubelet.cancel_stream(GPU)
        await kubelet.until(lambda: GPU in kubelet.clients and kubelet.allocatable(GPU) == 20)
        assert kubelet.most_streams == 1, "two registrations were active at once"


async def test_survives_a_second_plugin_of_the_same_resource_that_dies(directory: Path) -> None:
    """A rolling update with overlap: the end of the old plugin's stream ends the new one too, which recovers."""
    async with kubelet_server.running(directory) as kubelet:
        old = Plugin(directory)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(old.running())
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
            async with Plugin(directory, "resources: [{name: nvshare.com/gpu, replicas: 7}]").running():
                await kubelet.until(lambda: kubelet.allocatable(GPU) == 14)
                await stack.aclose()
                await kubelet.until(lambda: GPU in kubelet.clients and kubelet.allocatable(GPU) == 14)


async def test_a_removed_socket_is_created_again(directory: Path) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory).running() as plugin:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        (directory / "device-plugins" / socket_name(GPU)).unlink()
        await kubelet.until(lambda: len(kubelet.registrations) == 2 and kubelet.allocatable(GPU) == 20)
        assert plugin.endpoint.registrations >= 1


async def test_a_refused_registration_is_retried(directory: Path) -> None:
    async with kubelet_server.running(directory) as kubelet:
        kubelet.refuse = "not now"
        async with Plugin(directory).running() as plugin:
            await plugin.endpoint.until(life.State.PAUSED)
            assert "not now" in plugin.endpoint.life.reason
            kubelet.refuse = ""
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)


async def test_an_unhealthy_card_takes_away_its_own_slots_only(directory: Path) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory).running() as plugin:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        plugin.board.show(unhealthy=frozenset({CardId("GPU-1")}))
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 10)
        assert kubelet.capacity[GPU] == 20
        assert all(card_of(slot) == "GPU-0" for slot in kubelet.books[GPU].healthy)
        plugin.board.show(unhealthy=frozenset())
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        assert len(kubelet.lists[GPU]) == 3, "a list is sent only on change"


async def test_an_unchanged_offer_is_not_sent_again(directory: Path) -> None:
    plugin = Plugin(directory)
    assert not plugin.board.show(unhealthy=frozenset({CardId("GPU-of-another-node")}))
    assert plugin.board.show(unhealthy=frozenset({CardId("GPU-1")}))
    assert not plugin.board.show(unhealthy=frozenset({CardId("GPU-1")}))


async def test_pods_are_spread_and_get_their_environment(directory: Path) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory, count=4).running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 40)
        used: Counter[str] = Counter()
        for number in range(10):
            answers = await kubelet.admit(f"pod-{number}", {"main": {GPU: 2}})
            seen = answers["main"][GPU].envs["NVIDIA_VISIBLE_DEVICES"].split(",")
            assert len(seen) == 2
            used.update(seen)
        assert set(used.values()) == {5}


async def test_the_main_container_takes_over_the_slots_of_init_containers(directory: Path) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory).running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        answers = await kubelet.admit("pod", {"main": {GPU: 2}}, init={"prepare": {GPU: 1}})
        first = answers["prepare"][GPU].envs["BATON_SLOTS"]
        assert first in answers["main"][GPU].envs["BATON_SLOTS"].split(",")
        assert len(kubelet.books[GPU].allocated) == 2


@pytest.mark.parametrize(
    ("text", "count", "sentence"),
    [
        ("resources: [{name: nvshare.com/gpu, policy: strict-spread}]", 3, "policy strict-spread puts every slot"),
        ("resources: [{name: nvshare.com/gpu, max-per-container: 1}]", 2, "max-per-container is 1"),
    ],
)
async def test_a_choice_of_kubelet_that_breaks_a_rule_fails_the_pod_with_one_sentence(
    directory: Path, text: str, count: int, sentence: str
) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory, text).running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        with pytest.raises(AdmissionError, match=sentence):
            await kubelet.admit("pod", {"main": {GPU: count}})
        assert await kubelet.admit("another", {"main": {GPU: 1}})


async def test_an_unknown_slot_is_refused(directory: Path) -> None:
    async with kubelet_server.running(directory) as kubelet, Plugin(directory).running() as plugin:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 20)
        kubelet.books[GPU].healthy = {SlotId("GPU-stranger__1")}
        with pytest.raises(AdmissionError, match="slot 'GPU-stranger__1' does not exist on this node"):
            await kubelet.admit("pod", {"main": {GPU: 1}})
        assert plugin.advice.given == []


async def test_ten_thousand_slots_fit_in_the_message_limits_of_both_sides(directory: Path) -> None:
    text = "resources: [{name: nvshare.com/gpu, replicas: 2500}]"
    async with kubelet_server.running(directory) as kubelet, Plugin(directory, text, count=4).running():
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 10_000)
        answers = await kubelet.admit("pod", {"main": {GPU: 4}})
        assert len(answers["main"][GPU].envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == 4


async def test_a_long_resource_name_still_has_a_socket(directory: Path) -> None:
    text = f"resources: [{{name: {'a' * 60}.example.com/{'b' * 63}}}]"
    name = configuration.parse(text).resources[0].name
    async with kubelet_server.running(directory) as kubelet, Plugin(directory, text).running():
        await kubelet.until(lambda: kubelet.allocatable(name) == 20)
