"""Resources that are no shared GPUs, on a real kubelet: whole cards, and devices of another vendor."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.agent.offers.slots import card_of
from tests.cluster.agent.conftest import CONFIG, TELL, AgentOnNode, GpuNode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

WHOLE = "nvidia.com/gpu"
DARWIN = "zju.edu.cn/darwin"
UNITS = "/run/baton/units"
DESCRIPTION = f"""
name: darwin
resource: {DARWIN}
discovery: {{files: "{UNITS}/darwin[0-9]*", every-s: 0.2}}
health: {{file: "{UNITS}/state-{{name}}", equals: [running, idle]}}
container:
  environment: {{DARWIN_DEVICES: "{{names}}"}}
  device-nodes: ["{{path}}"]
  mounts:
    - {{host: {UNITS}/library, container: /usr/lib/darwin}}
"""
LOOK = f"{TELL}; stat -c '%F %n' {UNITS}/darwin*; cat /usr/lib/darwin/version; exec sleep 3600"


def holders(node: GpuNode, resource: str) -> dict[str, set[str]]:
    """What each pod has of a resource, by kubelet's word."""
    found: dict[str, set[str]] = {}
    for holding in node.all_holdings():
        if holding.resource == resource:
            found.setdefault(holding.pod, set()).update(map(card_of, holding.slots))
    return found


def test_a_whole_card_belongs_to_one_container(node: GpuNode, agents: Callable[..., AgentOnNode]) -> None:
    agents(CONFIG.replace("name: nvshare.com/gpu\n    replicas: 4", f"name: {WHOLE}\n    kind: whole"))
    node.until_allocatable(2, WHOLE)
    for name in ("first", "second"):
        node.create(name, 1, resource=WHOLE)
        node.running(name)
    held = holders(node, WHOLE)
    assert sorted(card for cards in held.values() for card in cards) == sorted(node.cards)
    for name in ("first", "second"):
        assert {node.environment(name)["NVIDIA_VISIBLE_DEVICES"]} == held[name]
    node.create("third", 1, resource=WHOLE)
    assert "UnexpectedAdmissionError" in node.failed("third")


@pytest.fixture
def units(node: GpuNode) -> Path:
    """Two devices of another vendor; any character device will do."""
    folder = node.node.path(UNITS)
    (folder / "library").mkdir(parents=True, exist_ok=True)
    (folder / "library" / "version").write_text("darwin library 1\n")
    for number in range(2):
        if not (folder / f"darwin{number}").exists():
            os.mknod(folder / f"darwin{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (folder / f"state-darwin{number}").write_text("idle\n")
    return folder


def test_a_container_gets_a_device_of_another_vendor_and_a_bad_one_is_taken_away(
    node: GpuNode, agents: Callable[..., AgentOnNode], units: Path
) -> None:
    node.node.path("/var/lib/baton").mkdir(parents=True, exist_ok=True)
    node.node.path("/var/lib/baton/darwin.yaml").write_text(DESCRIPTION)
    agents(CONFIG + "devices: [/var/lib/baton/darwin.yaml]\n")
    node.until_allocatable(2, DARWIN)
    (units / "state-darwin0").write_text("burning\n")
    node.until_allocatable(1, DARWIN)
    node.create("thinker", 1, resource=DARWIN, command=("sh", "-c", LOOK))
    node.running("thinker")
    assert node.environment("thinker")["DARWIN_DEVICES"] == "darwin1"
    node.bed.wait_for(lambda: "library" in node.log("thinker"), "the container to have looked around")
    assert node.log("thinker").splitlines()[-2:] == [f"character special file {UNITS}/darwin1", "darwin library 1"]
    (units / "state-darwin0").write_text("idle\n")
    node.until_allocatable(2, DARWIN)
