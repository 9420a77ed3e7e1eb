"""The checked-in message modules are what the `.proto` files say, and the messages are kubelet's."""

from pathlib import Path

import pytest

from baton.agent import proto
from baton.agent.proto import deviceplugin_pb2, pluginregistration_pb2, podresources_pb2

HERE = Path(proto.__file__).parent


def test_generated_modules_are_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools (dependency group proto) is not installed")
    from baton.agent.proto.__main__ import generate

    generate(tmp_path)
    fresh = {path.name: path.read_text() for path in (tmp_path / "baton/agent/proto").glob("*_pb2.py*")}
    kept = {path.name: path.read_text() for path in HERE.glob("*_pb2.py*")}
    assert fresh == kept, "run `python -m baton.agent.proto`"


def test_packages_are_those_of_kubelet() -> None:
    assert deviceplugin_pb2.DESCRIPTOR.package == "v1beta1"
    assert podresources_pb2.DESCRIPTOR.package == "v1"
    assert pluginregistration_pb2.DESCRIPTOR.package == "pluginregistration"


def test_an_allocate_answer_keeps_its_bytes() -> None:
    """Kubelet stores the serialized answer and replays it after upgrades: field numbers must never move."""
    answer = deviceplugin_pb2.ContainerAllocateResponse(
        envs={"A": "b"},
        mounts=[deviceplugin_pb2.Mount(container_path="/c", host_path="/h", read_only=True)],
        devices=[deviceplugin_pb2.DeviceSpec(container_path="/d", host_path="/e", permissions="rw")],
        annotations={"x": "y"},
        cdi_devices=[deviceplugin_pb2.CDIDevice(name="v/c=n")],
    )
    assert answer.SerializeToString(deterministic=True) == (
        b"\n\x06\n\x01A\x12\x01b"
        b"\x12\n\n\x02/c\x12\x02/h\x18\x01"
        b"\x1a\x0c\n\x02/d\x12\x02/e\x1a\x02rw"
        b'"\x06\n\x01x\x12\x01y'
        b"*\x07\n\x05v/c=n"
    )
