"""Devices that a file describes: found, offered, given out, unhealthy when they vanish, and every mistake reported."""

import json
import sys
from pathlib import Path

import pytest
import structlog

from baton.agent.documents import DocumentError
from baton.agent.offers.slots import slot_id
from baton.agent.offers.vendor_devices import FileKind, load_kind, load_kinds
from baton.errors import BatonError
from baton.gpu.containers import DeviceNode, Mount
from baton.model.ids import CardId

DARWIN = """
name: darwin
resource: zju.edu.cn/darwin
discovery: {{files: "{dev}/darwin[0-9]*"}}
attributes:
  serial: {{file: "{dev}/sys/{{name}}/serial"}}
  model: {{value: Darwin3}}
health: {{file: "{dev}/sys/{{name}}/state", equals: [ok]}}
container:
  environment: {{DARWIN_DEVICES: "{{names}}", DARWIN_SERIALS: "{{serials}}"}}
  mounts: [{{host: /usr/lib/darwin, container: /usr/lib/darwin}}]
  device-nodes: ["{{path}}"]
labels: {{zju.edu.cn/darwin.model: "{{model}}", zju.edu.cn/darwin.count: "{{count}}"}}
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two accelerators."""
    for name, serial in (("darwin0", "A1"), ("darwin1", "B2")):
        (tmp_path / name).touch()
        (tmp_path / "sys" / name).mkdir(parents=True)
        (tmp_path / "sys" / name / "serial").write_text(f"{serial}\n")
        (tmp_path / "sys" / name / "state").write_text("ok\n")
    (tmp_path / "darwin.yaml").write_text(DARWIN.format(dev=tmp_path))
    return tmp_path


def test_every_file_that_fits_is_a_unit(machine: Path) -> None:
    kind = load_kind(machine / "darwin.yaml")
    assert kind.look()
    assert not kind.look(), "nothing has changed"
    offer = kind.offer()
    assert offer.name == "zju.edu.cn/darwin"
    assert list(offer.pool.slots) == ["darwin0__1", "darwin1__1"]
    assert kind.labels() == {"zju.edu.cn/darwin.model": "Darwin3", "zju.edu.cn/darwin.count": "2"}


def test_a_container_gets_what_the_file_says_for_its_units(machine: Path) -> None:
    kind = load_kind(machine / "darwin.yaml")
    kind.look()
    both = kind.answer([slot_id(CardId("darwin1"), 1), slot_id(CardId("darwin0"), 1)])
    assert both.environment == {"DARWIN_DEVICES": "darwin0,darwin1", "DARWIN_SERIALS": "A1,B2"}
    assert both.mounts == (Mount("/usr/lib/darwin", "/usr/lib/darwin"),)
    assert both.device_nodes == (DeviceNode(f"{machine}/darwin0"), DeviceNode(f"{machine}/darwin1"))
    assert kind.answer(["darwin1__1"]).environment["DARWIN_DEVICES"] == "darwin1"


def test_a_unit_that_vanishes_stays_listed_as_unhealthy_and_heals_when_it_returns(machine: Path) -> None:
    kind = load_kind(machine / "darwin.yaml")
    kind.look()
    (machine / "darwin1").unlink()
    assert kind.look()
    assert kind.unhealthy == {"darwin1"}
    assert len(kind.offer().pool) == 2
    (machine / "darwin1").touch()
    assert kind.look()
    assert kind.unhealthy == frozenset()


def test_the_health_rule_decides(machine: Path) -> None:
    kind = load_kind(machine / "darwin.yaml")
    (machine / "sys" / "darwin0" / "state").write_text("broken")
    kind.look()
    assert kind.unhealthy == {"darwin0"}


@pytest.mark.process
def test_a_command_may_list_units_with_fields_of_its_own(tmp_path: Path) -> None:
    rows = [{"id": "npu/7", "path": "/dev/npu7", "memory-mib": 4096, "numa-node": 1}]
    script = f"print({json.dumps(json.dumps(rows))})"
    content = {
        "name": "npu", "resource": "example.com/npu", "replicas": 2,
        "discovery": {"command": [sys.executable, "-c", script]},
        "container": {"device-nodes": ["{path}"], "cdi": ["example.com/npu={id}"]},
    }  # fmt: skip
    (tmp_path / "npu.yaml").write_text(json.dumps(content))
    (kind,) = load_kinds([str(tmp_path / "npu.yaml")])
    assert kind.look()
    offer = kind.offer()
    assert list(offer.pool.slots) == ["npu-7__1", "npu-7__2"]
    (card,) = offer.pool.cards
    assert card.numa_node == 1
    assert kind.answer(["npu-7__2"]).cdi_devices == ("example.com/npu=npu-7",)


@pytest.mark.process
@pytest.mark.parametrize("code", ["print('x')", "print('{}')", "raise SystemExit(3)"])
def test_a_failing_command_marks_units_unhealthy_and_removes_none(tmp_path: Path, code: str) -> None:
    script = tmp_path / "list.py"
    script.write_text('print(\'[{"id": "a"}]\')')
    content = {"name": "x", "resource": "a.b/c", "discovery": {"command": [sys.executable, str(script)]}}
    (tmp_path / "x.yaml").write_text(json.dumps(content))
    kind = load_kind(tmp_path / "x.yaml")
    assert kind.look()
    script.write_text(code)
    assert kind.look()
    assert kind.unhealthy == {"a"}
    assert len(kind.offer().pool) == 1


def listing(tmp_path: Path, rows: list[dict[str, str]], more: str = "") -> FileKind:
    """A kind whose command lists these devices."""
    command = json.dumps([sys.executable, "-c", f"print({json.dumps(json.dumps(rows))})"])
    path = tmp_path / "kind.yaml"
    path.write_text(f"name: x\nresource: a.b/x\ndiscovery: {{command: {command}}}\n{more}")
    return load_kind(path)


@pytest.mark.process
@pytest.mark.parametrize(
    ("rows", "more", "sentence"),
    [
        ([{"id": "a"}, {"model": "M"}], "", "device 1 has no id; give it `id` or `path`"),
        ([{"id": "a/0"}, {"id": "a:0"}], "", "devices 0 and 1 would both be called a-0"),
        ([{"id": "x" * 48 + "1"}, {"id": "x" * 48 + "2"}], "", "the first 48 letters"),
        ([{"id": f"a{n}"} for n in range(41)], "replicas: 1000", "41 devices of 1000 replicas each exceed"),
    ],
)
def test_devices_that_are_ambiguous_or_too_many_are_reported(
    tmp_path: Path, rows: list[dict[str, str]], more: str, sentence: str
) -> None:
    """They are neither offered under one name, nor in a list that is too long for kubelet."""
    kind = listing(tmp_path, rows, more)
    with structlog.testing.capture_logs() as said:
        kind.look()
    assert sentence in said[0]["reason"]
    assert not kind.offer().pool.cards


@pytest.mark.process
@pytest.mark.parametrize("text", ["\u00b2", "9" * 5000, "-1", "x"])
def test_an_invalid_number_counts_as_unknown(tmp_path: Path, text: str) -> None:
    kind = listing(tmp_path, [{"id": "a", "numa-node": text, "memory-mib": text}])
    kind.look()
    (terms,) = kind.offer().terms.values()
    assert (terms.card.numa_node, terms.card.memory_mib) == (None, 0)


def test_every_mistake_in_a_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        """
name: bad
resource: nodomain
discovery: {files: "/dev/x*", command: ["true"]}
attributes:
  path: {value: x}
  two: {value: x, file: y}
labels: {"model of it": x, UP.org/model: x, b.org/model: x}
replicas: 0
"""
    )
    with pytest.raises(DocumentError) as caught:
        load_kind(path)
    assert "replicas is 0" in str(caught.value)
    path.write_text(path.read_text().replace("replicas: 0", "replicas: 1"))
    with pytest.raises(DocumentError) as caught:
        load_kind(path)
    for sentence in (
        "resource is 'nodomain': expected DOMAIN/NAME",
        "discovery needs exactly one of files and command",
        "attributes.path is a field of every unit",
        "attributes.two needs exactly one of file and value",
        "labels.model of it is not a label name: the name must be 1 to 63 letters",
        "labels.UP.org/model is not a label name: the part before / must be lower-case",
    ):
        assert sentence in str(caught.value)


def test_a_name_that_is_already_in_use_is_refused(machine: Path) -> None:
    with pytest.raises(BatonError, match=r"zju\.edu\.cn/darwin, which is already in use"):
        load_kinds([str(machine / "darwin.yaml")], ["zju.edu.cn/darwin"])


KIND = """
from baton.gpu.containers import ContainerEdits

class Lamps:
    resource = "example.com/lamp"
    look_every_s = 1.0
    unhealthy = frozenset()

    def look(self):
        return True

    def offer(self):
        raise NotImplementedError

    def answer(self, slots):
        return ContainerEdits(environment={"LAMPS": ",".join(slots)})

    def labels(self):
        return {}
"""


def test_a_kind_of_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lamps.py").write_text(KIND)
    package = tmp_path / "lamps-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: lamps\nVersion: 1.0\n")
    points = package / "entry_points.txt"
    points.write_text("[baton.devices]\nlamps = lamps:Lamps\n")
    monkeypatch.syspath_prepend(tmp_path)
    (kind,) = load_kinds([])
    assert kind.resource == "example.com/lamp"
    assert kind.answer(["a", "b"]).environment == {"LAMPS": "a,b"}
    with pytest.raises(BatonError, match=r"example\.com/lamp, which is already in use"):
        load_kinds([], taken=["example.com/lamp"])
    points.write_text("[baton.devices]\nlamps = lamps:Candles\n")
    with pytest.raises(BatonError, match=r"device kind lamps \(lamps:Candles\) could not be loaded"):
        load_kinds([])
