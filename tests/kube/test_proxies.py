"""The proxy from the environment, by kubectl's rules."""

from pathlib import Path

import pytest

from baton.kube import kubeconfig
from baton.kube.kubeconfig import KubeconfigError
from baton.kube.proxies import proxy_of
from tests.kube.test_kubeconfig import written


@pytest.fixture(autouse=True)
def _proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")


def test_the_scheme_of_the_server_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of("https://api.lab:6443") == "http://proxy:3128"
    assert proxy_of("http://api.lab") is None
    monkeypatch.setenv("http_proxy", "other:80")
    assert proxy_of("http://api.lab") == "http://other:80"


@pytest.mark.parametrize("server", ["https://localhost:6443", "https://127.64.0.1:6443", "https://[::1]:6443"])
def test_this_machine_is_never_asked_through_a_proxy(server: str) -> None:
    assert proxy_of(server) is None


@pytest.mark.parametrize(
    ("exceptions", "server", "direct"),
    [
        ("*", "https://api.lab", True),
        ("lab", "https://api.lab", True),
        ("api.lab", "https://api.lab", True),
        (".lab", "https://lab", False),
        ("*.lab", "https://api.lab", True),
        ("a, api.LAB:443", "https://api.lab", True),
        ("api.lab:443", "https://api.lab:6443", False),
        ("pi.lab", "https://api.lab", False),
        ("10.0.0.0/8", "https://10.96.0.1:443", True),
        ("10.0.0.0/8", "https://11.96.0.1", False),
        ("10.96.0.1", "https://10.96.0.1", True),
        ("10.96.0.1:6443", "https://10.96.0.1", False),
        ("fd00::1", "https://[fd00::1]:6443", True),
        ("fd00::/8", "https://[fd00::1]", True),
        (",", "https://api.lab", False),
    ],
)
def test_exceptions_are_heeded(monkeypatch: pytest.MonkeyPatch, exceptions: str, server: str, direct: bool) -> None:
    monkeypatch.setenv("NO_PROXY", exceptions)
    assert (proxy_of(server) is None) == direct


def test_the_kubeconfigs_own_proxy_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"server": "https://api.lab"}
    path = written(tmp_path, clusters=[{"name": "c", "cluster": cluster}])
    assert kubeconfig.load([path]).proxy_url == "http://proxy:3128"
    path = written(tmp_path, clusters=[{"name": "c", "cluster": {**cluster, "proxy-url": "http://own:1"}}])
    assert kubeconfig.load([path]).proxy_url == "http://own:1"
    monkeypatch.setenv("HTTPS_PROXY", "socks5://proxy:1080")
    path = written(tmp_path, clusters=[{"name": "c", "cluster": cluster}])
    with pytest.raises(KubeconfigError, match="HTTPS_PROXY or HTTP_PROXY names must begin with http://"):
        kubeconfig.load([path])
