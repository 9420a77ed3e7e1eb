"""Kubeconfig files: kubectl's rules for finding things, and one sentence for each thing that is wrong."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.kube import kubeconfig
from baton.kube.kubeconfig import Access, KubeconfigError


def config(**changes: Any) -> dict[str, Any]:
    """A kubeconfig with one of each; a change replaces a top-level field."""
    return {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443/"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        **changes,
    }


def written(folder: Path, name: str = "config", **changes: Any) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(config(**changes)))
    return path


def test_the_current_context_is_taken(tmp_path: Path) -> None:
    access = kubeconfig.load([written(tmp_path)])
    assert (access.server, access.namespace, access.token) == ("https://127.0.0.1:6443", "ml", "secret")


def test_the_first_file_that_names_a_thing_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(tmp_path, "first", users=[], clusters=[{"name": "c", "cluster": {"server": "https://first"}}])
    second = written(tmp_path, "second", clusters=[{"name": "c", "cluster": {"server": "https://second"}}])
    (tmp_path / "empty").touch()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'empty'}:{first}:{second}:{tmp_path / 'absent'}")
    access = kubeconfig.load()
    assert access.server == "https://first"
    assert access.token == "secret"  # only the second file has users


def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    (tmp_path / "ca.crt").write_bytes(b"CA")
    path = written(
        tmp_path,
        clusters=[{"name": "c", "cluster": {"server": "https://x", "certificate-authority": "ca.crt"}}],
        users=[{"name": "u", "user": {"tokenFile": "token"}}],
    )
    access = kubeconfig.load([path])
    assert (access.ca_data, access.token_file) == (b"CA", tmp_path / "token")


def test_inline_data_is_decoded(tmp_path: Path) -> None:
    user = {
        "client-certificate-data": base64.b64encode(b"crt").decode(),
        "client-key-data": base64.b64encode(b"k").decode(),
    }
    access = kubeconfig.load([written(tmp_path, users=[{"name": "u", "user": user}])])
    assert (access.client_certificate, access.client_key) == (b"crt", b"k")


def test_an_exec_plugin_is_kept_with_its_arguments(tmp_path: Path) -> None:
    user = {"exec": {"command": "get-token", "args": ["--cluster", 7], "env": [{"name": "QUIET"}]}}
    access = kubeconfig.load([written(tmp_path, users=[{"name": "u", "user": user}])])
    assert access.exec_command == ("get-token", "--cluster", "7")
    assert access.exec_environment == (("QUIET", ""),)
    assert access.exec_cluster is None


def test_a_plugin_that_wants_to_know_the_cluster_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"CA")
    cluster = {
        "server": "https://a:1",
        "certificate-authority": "ca.pem",
        "extensions": [
            {"name": "other", "extension": {}},
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}},
        ],
    }
    user = {"exec": {"command": "get-token", "provideClusterInfo": True, "installHint": "see\nexample.com"}}
    clusters, users = [{"name": "c", "cluster": cluster}], [{"name": "u", "user": user}]
    access = kubeconfig.load([written(tmp_path, clusters=clusters, users=users)])
    assert access.exec_cluster == {
        "server": "https://a:1",
        "certificate-authority-data": "Q0E=",
        "config": {"audience": "x"},
    }
    assert access.exec_install_hint == "see example.com"


def test_a_user_may_act_as_another(tmp_path: Path) -> None:
    user = {
        "as": "bob",
        "as-uid": "7",
        "as-groups": ["dev", "ml"],
        "as-user-extra": {"example.com/why": ["audit"]},
    }
    access = kubeconfig.load([written(tmp_path, users=[{"name": "u", "user": user}])])
    assert access.impersonation == (
        ("Impersonate-User", "bob"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ml"),
        ("Impersonate-Extra-example.com%2Fwhy", "audit"),
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"ca_data": b"none"}, "context x: its certificate authority is no certificate"),
        ({"client_certificate": b"none", "client_key": b"none"}, "context x: its client certificate and key cannot"),
    ],
)
def test_certificates_that_are_none_are_named(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(KubeconfigError, match=sentence):
        Access("x", "https://a:1", **content).ssl_context()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"current-context": ""}, "current-context is not set"),
        ({"current-context": "prod"}, "contexts has no 'prod'; it has lab"),
        ({"clusters": []}, "clusters has no 'c'; it has nothing"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://a:1", "proxy-url": "socks5://b:2"}}]},
            "cluster c: proxy-url must begin with http:// or https://, got 'socks5://b:2'",
        ),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "server must be a non-empty string, got None"),
        ({"users": [{"name": "u", "user": {"client-key-data": "%%"}}]}, "client-key-data is not valid base64"),
        ({"users": [{"name": "u", "user": {"client-key": "gone"}}]}, "gone cannot be read"),
        ({"users": [{"name": "u", "user": {"exec": {"args": ["x"]}}}]}, "command must be a non-empty string"),
        ({"users": {"u": {}}}, "users must be a list of mappings, each with a name$"),
        (
            {"users": [{"name": "u", "user": {"exec": {"command": "x", "env": [{"value": "1"}]}}}]},
            "exec.env: name must be a non-empty string, got None",
        ),
        ({"users": [{"name": "u", "user": {"as-groups": ["dev"]}}]}, "user u: as must be a non-empty string, got None"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(KubeconfigError, match=sentence):
        kubeconfig.load([written(tmp_path, **changes)])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a: [", "not valid YAML"), ("- 1", "expected a mapping"), ("", "current-context is not set")],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeconfigError, match=sentence):
        kubeconfig.load([path])


def test_no_file_at_all_names_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=str(tmp_path / "none")):
        kubeconfig.load([tmp_path / "none"])


def test_a_user_without_a_home_has_no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is only a number."""

    def nobody(_uid: int) -> None:
        raise KeyError

    for name in ("KUBECONFIG", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(KubeconfigError, match="no kubeconfig at ~/"):
        kubeconfig.load()
