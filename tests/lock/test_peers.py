"""Who may control the daemon, according to the kernel."""

import os
from pathlib import Path

import pytest

from baton.lock.peers import UNKNOWN_POD, Peer, Rights, pod_of, start_ticks

POD = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


@pytest.mark.parametrize(
    ("cgroup", "pod"),
    [
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-abc.scope\n", POD),
        (f"0::/kubepods/burstable/pod{POD}/abcdef\n", POD),
        (
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable-pod{POD.replace('-', '_')}.slice/x\n",
            POD,
        ),
        ("0::/kubepods/besteffort/podcafecafecafecafecafecafecafecafe/x\n", "cafecafecafecafecafecafecafecafe"),
        ("0::/kubepods/odd\n", "unknown"),
        (f"0::/../../pod{POD}/abcdef\n", POD),
        (f"0::/../../../burstable/pod{POD}/abcdef\n", POD),
        ("0::/machine.slice/libpod-0f1e2d3c4b5a69788796a5b4c3d2e1f0.scope\n", ""),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", ""),
        ("12:memory:/docker/abc\n0::/init.scope\n", ""),
    ],
)
def test_a_pod_is_read_from_the_cgroup(tmp_path: Path, cgroup: str, pod: str) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cgroup").write_text(cgroup)
    assert pod_of(77, tmp_path) == pod


def test_outside_kubernetes_a_process_that_is_gone_was_in_no_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert pod_of(1, tmp_path) == ""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert pod_of(1, tmp_path) == "unknown"


def test_root_the_daemons_user_and_the_group_may_control_but_no_process_of_a_pod() -> None:
    rights = Rights(gid=4242)
    assert rights.may_control(Peer(os.getpid(), 0, 0))
    assert rights.may_control(Peer(os.getpid(), os.getuid(), 7))
    assert rights.may_control(Peer(os.getpid(), 1234, 4242))
    assert not rights.may_control(Peer(os.getpid(), 1234, 1234))
    assert not rights.may_control(Peer(os.getpid(), 0, 0, POD))
    assert not rights.may_control(Peer(0, 0, 0))


def test_a_daemon_in_a_pod_is_controlled_from_that_pod_and_from_the_host() -> None:
    rights = Rights(own_pod=POD)
    assert rights.may_control(Peer(os.getpid(), 0, 0))
    assert rights.may_control(Peer(os.getpid(), 0, 0, POD))
    assert not rights.may_control(Peer(os.getpid(), 0, 0, "another"))
    assert not Rights(own_pod=UNKNOWN_POD).may_control(Peer(os.getpid(), 0, 0, UNKNOWN_POD))


def test_a_process_is_distinguished_from_a_later_one_with_its_pid() -> None:
    assert start_ticks(os.getpid()) > 0
    assert start_ticks(2**22 + 1) == 0
