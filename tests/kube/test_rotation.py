"""Certificates, keys and authorities that a kubeconfig names as files, and that are exchanged while a program runs."""

import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from baton.kube import credentials
from baton.kube.client import Client
from baton.kube.credentials import in_cluster
from baton.kube.errors import UnauthorizedError, UnreachableError
from baton.kube.kubeconfig import load
from baton.model.core import CONFIG_MAPS
from testbed.certificates import Authority

HOST = "127.0.0.1"


class Server:
    """An API server that answers with the name in the client's certificate, except to those it does not like."""

    def __init__(self) -> None:
        self.address = ""
        self.port = 0
        self.refused: set[str] = set()


@contextlib.asynccontextmanager
async def serving(trusted: Authority, own: Authority, port: int = 0) -> AsyncIterator[Server]:
    server = Server()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        told = request.transport.get_extra_info("peercert") or {}
        name = dict(pair for part in told.get("subject", ()) for pair in part).get("commonName", "nobody")
        if name in server.refused:
            return web.json_response({"code": 401, "reason": "Unauthorized"}, status=401)
        return web.json_response({"metadata": {"name": name}})

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=trusted.certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(*own.issue("server", "server", hosts=[HOST]))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, HOST, port, ssl_context=context).start()
    server.port = runner.addresses[0][1]
    server.address = f"https://{HOST}:{server.port}"
    yield server
    await runner.cleanup()


def kubeconfig(folder: Path, server: str, authority: Authority) -> Path:
    shutil.copy(authority.certificate, folder / "ca.crt")
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": "ca.crt"}}],
        "users": [{"name": "u", "user": {"client-certificate": "me.crt", "client-key": "me.key"}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(content))
    return path


def become(folder: Path, authority: Authority, name: str, *, files: tuple[str, ...] = ("crt", "key")) -> None:
    for ending, issued in zip(("crt", "key"), authority.issue(name, name), strict=True):
        if ending in files:
            shutil.copy(issued, folder / f"me.{ending}")


async def who(client: Client) -> str:
    return (await client.get(CONFIG_MAPS, "m", "n")).metadata.name


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture(params=[0.0, 3600.0], ids=["looks", "does not look yet"])
def look_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(credentials, "_LOOK_S", request.param)
    return float(request.param)


@contextlib.asynccontextmanager
async def alice(folder: Path, authority: Authority) -> AsyncIterator[tuple[Server, Client]]:
    """A server and its client, who has said who she is."""
    become(folder, authority, "alice")
    async with (
        serving(authority, authority) as server,
        Client(load([kubeconfig(folder, server.address, authority)])) as client,
    ):
        assert await who(client) == "alice"
        yield server, client


async def test_another_certificate_is_used_when_it_is_time_to_look(
    tmp_path: Path, authority: Authority, look_s: float
) -> None:
    async with alice(tmp_path, authority) as (_, client):
        become(tmp_path, authority, "bob")
        assert await who(client) == ("alice" if look_s else "bob")


async def test_one_that_is_refused_makes_it_look_at_once(tmp_path: Path, authority: Authority, look_s: float) -> None:
    async with alice(tmp_path, authority) as (server, client):
        server.refused = {"alice"}
        with pytest.raises(UnauthorizedError):
            await who(client)
        become(tmp_path, authority, "bob")
        assert await who(client) == "bob"


@pytest.mark.parametrize("files", [("crt",), ("key",)])
async def test_half_a_pair_is_waited_with(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
) -> None:
    monkeypatch.setattr(credentials, "_LOOK_S", 0.0)
    async with alice(tmp_path, authority) as (_, client):
        become(tmp_path, authority, "bob", files=files)
        assert await who(client) == "alice"
        (tmp_path / "me.key").unlink()
        assert await who(client) == "alice"
        become(tmp_path, authority, "bob")
        assert await who(client) == "bob"


async def test_requests_under_way_are_not_cut_by_another_certificate(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_LOOK_S", 0.0)
    async with alice(tmp_path, authority) as (_, client):
        session = client._session
        become(tmp_path, authority, "bob")
        assert await who(client) == "bob"
        assert client._session is session


async def test_another_authority_of_the_server_is_trusted_after_a_failure(
    tmp_path: Path, authority: Authority, look_s: float
) -> None:
    become(tmp_path, authority, "alice")
    other = Authority(tmp_path / "other")
    async with serving(authority, authority) as server:
        client = Client(load([kubeconfig(tmp_path, server.address, authority)]))
        assert await who(client) == "alice"
    async with client, serving(authority, other, server.port):
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            await who(client)
        shutil.copy(other.certificate, tmp_path / "ca.crt")
        assert await who(client) == "alice"


async def test_the_authority_of_a_service_account_is_a_file_too(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_LOOK_S", 0.0)
    other = Authority(tmp_path / "other")
    async with serving(authority, other) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", HOST)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        (tmp_path / "token").write_text("t")
        shutil.copy(authority.certificate, tmp_path / "ca.crt")
        access = in_cluster(tmp_path)
        assert access is not None
        async with Client(access) as client:
            with pytest.raises(UnreachableError):
                await who(client)
            shutil.copy(other.certificate, tmp_path / "ca.crt")
            assert await who(client) == "nobody"
