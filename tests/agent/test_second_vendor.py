"""A vendor that is one module and one line in `vendors.VENDORS`, from its driver to what a container and a user see."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from baton.admission.findings import Field, Findings
from baton.admission.rules.gpus import check_gpus
from baton.agent import config as configuration
from baton.agent.cluster import labels
from baton.agent.cluster.annotations import offered_text
from baton.agent.daemon import Agent
from baton.agent.documents import DocumentError
from baton.agent.kubelet.answers import overridden
from baton.agent.offers.offers import plan
from baton.agent.status import StatusServer, ask
from baton.cli import doctor
from baton.gpu import vendors
from baton.gpu.cards import GpuSource, NoDriverError
from baton.model.card_annotations import offered_cards
from tests.agent import kubelet_server
from tests.agent.kubelet_server import Kubelet
from tests.gpu import amd
from tests.gpu.amd import Amd, AmdSource
from tests.gpu.fake import FakeNvidia, FakeSource, card

NVIDIA_RESOURCE, AMD_RESOURCE = "nvshare.com/gpu", "amd.com/gpu"
RESOURCES = f"[{{name: {NVIDIA_RESOURCE}}}, {{name: {AMD_RESOURCE}, vendor: amd, replicas: 4}}]"


def no_nvidia_driver() -> GpuSource:
    raise NoDriverError("no NVIDIA driver here")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: unix sockets have room for 107 characters."""
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        yield Path(name)


@pytest.fixture
def amd_cards() -> AmdSource:
    return AmdSource([amd.card(0), amd.card(1)])


@pytest.fixture
def mixed(amd_cards: AmdSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with cards of both vendors."""
    nvidia_cards = FakeSource([card(0), card(1)])
    monkeypatch.setattr(vendors, "VENDORS", (FakeNvidia(lambda: nvidia_cards), Amd(lambda: amd_cards)))


@pytest.fixture
def amd_only(amd_cards: AmdSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without an NVIDIA driver."""
    monkeypatch.setattr(vendors, "VENDORS", (FakeNvidia(no_nvidia_driver), Amd(lambda: amd_cards)))


@contextlib.asynccontextmanager
async def running(directory: Path, more: str = "") -> AsyncIterator[tuple[Agent, Kubelet]]:
    text = f"""
resources: {RESOURCES}
kubelet: {{directory: {directory}, plugin-directory: {directory}/device-plugins}}
hook: {{directory: {directory}/hook}}
lock: {{socket-directory: {directory}/lock}}
health: {{settle-s: 0.01, heal-s: 0.05, hold-s: 0.05, probe-every-s: 0.05}}
serving: {{status-socket: {directory}/agent.sock, metrics-address: ""}}
{more}
"""
    server = StatusServer()
    agent = Agent(configuration.parse(text), "node-1", vendors.VENDORS, companions=[server])
    async with kubelet_server.running(directory) as kubelet:
        task = asyncio.create_task(agent.run())
        await server.listening.wait()
        try:
            yield agent, kubelet
        finally:
            agent.stopping.set()
            await task


@pytest.mark.usefixtures("amd_only")
async def test_a_container_gets_what_the_cards_vendor_says_and_nothing_of_another_vendor(directory: Path) -> None:
    async with running(directory) as (_, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(AMD_RESOURCE) == 8)
        assert kubelet.allocatable(NVIDIA_RESOURCE) == 0
        answers = await kubelet.admit("pod", {"main": {AMD_RESOURCE: 2}})
    answer = answers["main"][AMD_RESOURCE]
    assert dict(answer.envs) == {
        "BATON_CARDS": "GPU-amd-0,GPU-amd-1",
        "BATON_SLOTS": "GPU-amd-0__1,GPU-amd-1__1",
        "ROCR_VISIBLE_DEVICES": "GPU-amd-0,GPU-amd-1",
        "HIP_VISIBLE_DEVICES": "0,1",
    }
    assert [node.host_path for node in answer.devices] == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]
    assert not answer.mounts, "the hook is for CUDA"
    assert "nvidia" not in str(answer).lower()


@pytest.mark.usefixtures("amd_only")
async def test_cdi_names_are_those_of_the_vendor(directory: Path) -> None:
    async with running(directory, "device-list: cdi") as (_, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(AMD_RESOURCE) == 8)
        answers = await kubelet.admit("pod", {"main": {AMD_RESOURCE: 1}})
    answer = answers["main"][AMD_RESOURCE]
    assert [device.name for device in answer.cdi_devices] == ["amd.com/gpu=GPU-amd-0"]
    assert "nvidia" not in str(answer).lower()


@pytest.mark.usefixtures("mixed")
async def test_two_vendors_on_one_node_keep_their_cards_apart(directory: Path) -> None:
    async with running(directory) as (agent, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(AMD_RESOURCE) == 8)
        await kubelet.until(lambda: kubelet.allocatable(NVIDIA_RESOURCE) == 20)
        answers = await kubelet.admit("pod", {"main": {NVIDIA_RESOURCE: 1, AMD_RESOURCE: 1}})
        nvidia, other = answers["main"][NVIDIA_RESOURCE], answers["main"][AMD_RESOURCE]
        assert nvidia.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-fake-0"
        assert "LD_PRELOAD" in nvidia.envs
        assert "ROCR_VISIBLE_DEVICES" not in nvidia.envs
        assert other.envs["ROCR_VISIBLE_DEVICES"] == "GPU-amd-0"
        assert "nvidia" not in str(other).lower()
        own = labels.gpu_labels("baton.dev", agent.gpus.cards, agent.gpu_offers)
        assert (own["baton.dev/gpu.count"], own["baton.dev/gpu.product"]) == ("4", "mixed")
        assert own["baton.dev/gpu.model.AMD-Instinct-MI210"] == "2"
        theirs = labels.gpu_labels("nvidia.com", agent.gpus.cards, agent.gpu_offers)
        assert (theirs["nvidia.com/gpu.count"], theirs["nvidia.com/gpu.replicas"]) == ("2", "10")
        told = offered_text([(offer, frozenset()) for offer in agent.gpu_offers])
        offered = {one.id: one for one in offered_cards(told or "")}
        assert (offered[amd.card(0).id].resource, offered[amd.card(0).id].compute_capability) == (AMD_RESOURCE, 0)


@pytest.mark.usefixtures("mixed")
async def test_health_metrics_and_status_follow_the_cards_of_both_vendors(
    directory: Path, amd_cards: AmdSource
) -> None:
    broken = amd.card(1).id
    async with running(directory) as (_, kubelet):
        await kubelet.until(lambda: kubelet.allocatable(AMD_RESOURCE) == 8)
        await kubelet.admit("pod", {"main": {AMD_RESOURCE: 1}})
        amd_cards.fail(broken, "uncorrectable memory error")
        await kubelet.until(lambda: kubelet.allocatable(AMD_RESOURCE) == 4)
        assert kubelet.allocatable(NVIDIA_RESOURCE) == 20
        status = await ask(directory / "agent.sock", 60.0)
        assert status.driver == "fake cards; amdgpu 6.12"
        assert {one.id: one.reason for one in status.cards if not one.healthy} == {broken: "uncorrectable memory error"}
        assert [one.pods for one in status.cards if one.id == amd.card(0).id] == [("default/pod",)]
        connector = aiohttp.UnixConnector(str(directory / "agent.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://agent/metrics") as response,
        ):
            text = await response.text()
        for line in (
            'baton_card_healthy{card="GPU-amd-1",index="1",model="AMD Instinct MI210"} 0.0',
            'baton_card_healthy{card="GPU-fake-1",index="1",model="Fake"} 1.0',
            'baton_card_temperature_celsius{card="GPU-amd-0",index="0",model="AMD Instinct MI210"} 45.0',
            'baton_slots_in_use{card="GPU-amd-0",resource="amd.com/gpu"} 1.0',
        ):
            assert line in text
        amd_cards.reasons.clear()
        await kubelet.until(lambda: kubelet.allocatable(AMD_RESOURCE) == 8)


@pytest.mark.usefixtures("mixed")
def test_a_rule_by_index_matches_only_cards_of_the_resources_vendor() -> None:
    cards = (card(0), card(1), amd.card(0), amd.card(1))
    config = configuration.parse(
        f"resources: [{{name: {AMD_RESOURCE}, vendor: amd, cards: [{{index: 1, use: false}}]}}]"
    )
    (offer,) = plan(config, cards)
    assert list(offer.terms) == [amd.card(0).id]
    assert overridden(offer, [amd.card(0).id], {"HIP_VISIBLE_DEVICES": "7"}.get).startswith(
        "the pod sets HIP_VISIBLE_DEVICES=7 itself"
    )
    assert not overridden(offer, [amd.card(0).id], {"NVIDIA_VISIBLE_DEVICES": "all"}.get)


@pytest.mark.usefixtures("mixed")
def test_an_unsupported_kind_or_unknown_vendor_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(DocumentError) as caught:
        configuration.parse("resources: [{name: a.b/c, vendor: amd, kind: vgpu}, {name: a.b/d, vendor: nvidea}]")
    assert "resources[0].kind is 'vgpu', whose limits need Baton's hook" in str(caught.value)
    assert "resources[1].vendor is 'nvidea': expected one of nvidia, amd; did you mean 'nvidia'?" in str(caught.value)


@pytest.mark.usefixtures("mixed")
def test_admission_refuses_the_variables_of_every_vendor() -> None:
    container = {
        "env": [{"name": "ROCR_VISIBLE_DEVICES", "value": "0"}],
        "resources": {"limits": {NVIDIA_RESOURCE: "1"}},
    }
    findings = Findings()
    check_gpus(Field("", {"spec": {"containers": [container]}}), findings)
    assert 'sets ROCR_VISIBLE_DEVICES to "0" in a pod' in findings.message()


@pytest.mark.usefixtures("amd_only")
def test_doctor_finds_the_cards_of_the_vendor_that_is_there() -> None:
    finding = doctor.check_gpus()
    assert (finding.verdict, finding.detail) == (doctor.Verdict.OK, "2 GPUs through the amdgpu 6.12")
