"""`baton doctor` on healthy and broken machines: each finding has a verdict and, if there is a problem, a remedy."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton.cli import doctor
from baton.cli.doctor import Verdict


@pytest.fixture
def api_server() -> Iterator[str]:
    """A server that answers /version like an API server."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            known = self.path == "/version"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(b'{"gitVersion": "v1.36.4"}' if known else b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def kubeconfig(folder: Path, server: str) -> str:
    path = folder / "config"
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": server}}],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_a_cluster_that_answers(tmp_path: Path, api_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, api_server))
    finding = doctor.check_cluster()
    assert finding.verdict is Verdict.OK
    assert "v1.36.4" in finding.detail


def test_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, "http://127.0.0.1:1"))
    finding = doctor.check_cluster()
    assert finding.verdict is Verdict.BROKEN
    assert "127.0.0.1:1 does not answer" in finding.detail
    assert finding.remedy


def test_a_server_that_is_not_an_api_server(tmp_path: Path, api_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, f"{api_server}/elsewhere"))
    assert "HTTP 404" in doctor.check_cluster().detail


def test_no_kubeconfig_is_not_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert doctor.check_cluster().verdict is Verdict.ABSENT


def test_a_named_kubeconfig_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    assert doctor.check_cluster().verdict is Verdict.BROKEN


def test_a_missing_compiler_matters_only_to_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor.check_compiler()
    assert finding.verdict is Verdict.ABSENT
    assert "gcc" in finding.remedy


def test_a_node_without_kubelet_sockets_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_KUBELET", tmp_path)
    assert doctor.check_kubelet().verdict is Verdict.BROKEN
    for name in ("device-plugins", "pod-resources"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kubelet.sock").touch()
    assert doctor.check_kubelet().verdict is Verdict.OK


@pytest.mark.process
def test_the_report_lists_every_check_and_decides_the_exit_code(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "baton.cli.main", "doctor", "-o", "json"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "KUBECONFIG": str(tmp_path / "gone")},
    )
    findings = {finding["check"]: finding for finding in json.loads(shown.stdout)}
    assert set(findings) == {"compiler", "hook", "gpus", "cluster", "kubelet"}
    assert findings["hook"]["verdict"] == "ok"
    assert findings["cluster"]["verdict"] == "broken"
    assert all(finding["remedy"] for finding in findings.values() if finding["verdict"] != "ok")
    assert shown.returncode == 1
