"""Invalid options are rejected with one sentence before anything is started."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import packages
from testbed.bed import BedOptions
from testbed.errors import BedError, MissingError

ROOT = Path(__file__).parents[2]


def test_kubelets_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingError, match=r"real kubelets need root .* or use KWOK nodes, which do not"):
        BedOptions(kubelets=1).check()
    BedOptions(kwok_nodes=1).check()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (BedOptions(kubelets=-1), "kubelets is -1, must be 0 to 60"),
        (BedOptions(kubelets=61), "kubelets is 61, must be 0 to 60"),
        (BedOptions(kwok_nodes=-5), "kwok_nodes is -5, must not be negative"),
        (BedOptions(scheduler_config={}), "a scheduler configuration was given without a scheduler"),
    ],
)
def test_impossible_numbers_are_named(options: BedOptions, sentence: str) -> None:
    with pytest.raises(BedError, match=sentence):
        options.check()


def shell(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_the_command_line_prints_the_same_sentence(tmp_path: Path) -> None:
    refused = shell("up", "--kubernetes-version", "newest", BATON_TESTBED_STATE=str(tmp_path / "state"))
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == [
        "testbed: 'newest' is not a Kubernetes version; expected three numbers without a leading v, for example 1.36.4"
    ]
    assert not list((tmp_path / "state").glob("*/bed.json"))


def test_a_scheduler_configuration_must_be_a_mapping(tmp_path: Path) -> None:
    config = tmp_path / "scheduler.yaml"
    config.write_text("- a list\n")
    refused = shell("up", "--scheduler-config", str(config))
    assert refused.stderr.startswith(f"testbed: {config} is not a KubeSchedulerConfiguration")


@pytest.mark.parametrize(
    ("option", "word", "expected"),
    [
        ("--kwok-label", "pool", "expected NAME=VALUE"),
        ("--kwok-resource", "=8", "expected NAME=VALUE"),
        ("--kwok-taint", "a=b", "expected NAME=VALUE:EFFECT with an effect of NoSchedule, PreferNoSchedule, NoExecute"),
        ("--kwok-taint", "a:NoSchedule", "expected NAME=VALUE"),
    ],
)
def test_a_malformed_option_is_one_sentence(option: str, word: str, expected: str) -> None:
    refused = shell("up", option, word)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"testbed: {option} is '")
    assert refused.stderr.endswith(f"; {expected}\n")


def test_an_unknown_set_is_rejected_with_a_list_of_known_ones() -> None:
    refused = shell("build", "minikube")
    assert refused.returncode == 1
    known = "etcd, kubernetes, kwok, volcano, volcano-suite"
    assert refused.stderr == f"testbed: cannot build 'minikube'; choose from {known}\n"


@pytest.fixture
def without_containerd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.NODE_PACKAGES, "containerd", ("no-such-program",))


def test_missing_packages_without_root_are_one_line(without_containerd: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}" if name != "no-such-program" else None)
    assert packages.install() == (
        "missing: containerd; the tests on real kubelets are skipped; as root: apt-get install containerd"
    )


def test_missing_packages_without_apt_are_one_line(without_containerd: None, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"no-such-program", "apt-get"}
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name in absent else f"/usr/bin/{name}")
    line = packages.install()
    assert line is not None
    assert line.startswith(
        "missing on this machine, which is not Debian: containerd; the tests on real kubelets are skipped"
    )


def test_a_node_without_its_packages_is_refused_with_the_remedy(without_containerd: None) -> None:
    with pytest.raises(MissingError, match="containerd missing; as root on Debian: apt-get install containerd"):
        packages.require_node_packages()
