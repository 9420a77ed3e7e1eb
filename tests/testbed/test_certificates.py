"""The bed's CA: servers are verified by name and address, clients are identified by their certificate."""

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.certificates import Authority, write_kubeconfig


def shake_hands(
    authority: Authority, server: tuple[Path, Path], client: tuple[Path, Path], host: str
) -> dict[str, str]:
    """The subject of the client's certificate as the server sees it."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*server)
    serving.load_verify_locations(authority.certificate)
    serving.verify_mode = ssl.CERT_REQUIRED
    asking = ssl.create_default_context(cafile=str(authority.certificate))
    asking.load_cert_chain(*client)
    left, right = socket.socketpair()
    seen: dict[str, str] = {}

    def serve() -> None:
        try:
            with serving.wrap_socket(left, server_side=True) as connection:
                certificate: dict[str, Any] = connection.getpeercert() or {}
                seen.update({name: value for part in certificate["subject"] for name, value in part})
                connection.sendall(b".")
        except OSError:
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with asking.wrap_socket(right, server_hostname=host) as connection:
            connection.recv(1)
    finally:
        right.close()
        thread.join()
    return seen


def test_a_server_is_verified_by_name_and_address_and_identifies_its_clients(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue("server", "server", hosts=["127.64.0.1", "kubernetes.default"])
    client = authority.issue("node", "system:node:one", organizations=["system:nodes"])
    for host in ("127.64.0.1", "kubernetes.default"):
        seen = shake_hands(authority, server, client, host)
        assert seen == {"organizationName": "system:nodes", "commonName": "system:node:one"}
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(authority, server, client, "127.64.0.2")


def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    server = theirs.issue("server", "server", hosts=["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ours, server, ours.issue("client", "client"), "localhost")


def test_keys_and_kubeconfigs_are_read_by_their_owner_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    certificate, key = authority.issue("admin", "admin")
    path = write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", authority.certificate, certificate, key)
    assert key.stat().st_mode & 0o077 == 0
    assert path.stat().st_mode & 0o077 == 0
    config = yaml.safe_load(path.read_text())
    assert config["current-context"] == "bed"
    assert config["users"][0]["user"] == {"client-certificate": str(certificate), "client-key": str(key)}
