"""Tokens and certificates: from a file that is rotated, from a plugin that is asked anew, and one sentence when there
is none."""

import asyncio
import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest

from baton.errors import BatonError
from baton.kube.credentials import Credentials, in_cluster
from baton.kube.kubeconfig import Access
from tests.waiting import until_async

pytestmark = pytest.mark.process


def plugin(folder: Path, body: str) -> Access:
    """An access whose exec plugin is a small shell script; each call is noted in `calls`."""
    script = folder / "plugin"
    script.write_text(f"#!/bin/sh\necho called >> {folder}/calls\n{body}\n")
    script.chmod(0o755)
    return Access(
        "x",
        "https://x",
        exec_command=(str(script), "--x"),
        exec_environment=(("WHO", "me"),),
        exec_cluster={"server": "https://x"},
    )


def credential(**status: Any) -> str:
    return f"echo '{json.dumps({'kind': 'ExecCredential', 'status': status})}'"


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


async def test_a_token_that_does_not_expire_is_asked_for_once(tmp_path: Path) -> None:
    credentials = Credentials(plugin(tmp_path, credential(token="t")))
    assert [await credentials.headers() for _ in range(3)] == [{"Authorization": "Bearer t"}] * 3
    assert calls(tmp_path) == 1


async def test_a_refused_token_is_asked_for_again(tmp_path: Path) -> None:
    credentials = Credentials(plugin(tmp_path, credential(token="t")))
    assert credentials.refused(await credentials.headers())
    await credentials.headers()
    assert calls(tmp_path) == 2


@pytest.mark.parametrize(("left_s", "asked"), [(3600, 1), (-3600, 2)])
async def test_a_token_that_expires_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: int, asked: int
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("baton.kube.credentials.time.monotonic", lambda: clock[0])
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=left_s)
    credentials = Credentials(plugin(tmp_path, credential(token="t", expirationTimestamp=until.isoformat())))
    await credentials.headers()
    clock[0] += 60
    await credentials.headers()
    assert calls(tmp_path) == asked


async def test_a_plugin_may_give_a_client_certificate(tmp_path: Path) -> None:
    credentials = Credentials(plugin(tmp_path, credential(clientCertificateData="crt", clientKeyData="key")))
    assert await credentials.headers() == {}
    assert credentials.pair == (b"crt", b"key")


async def test_the_plugin_gets_its_environment_and_the_request(tmp_path: Path) -> None:
    access = plugin(tmp_path, f'echo "$WHO $KUBERNETES_EXEC_INFO" > {tmp_path}/seen\n' + credential(token="t"))
    await Credentials(access).headers()
    who, info = (tmp_path / "seen").read_text().split(" ", 1)
    assert who == "me"
    assert json.loads(info)["kind"] == "ExecCredential"
    assert json.loads(info)["spec"] == {"interactive": False, "cluster": {"server": "https://x"}}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("echo no such profile >&2; exit 3", "ended with 3: no such profile"),
        ("echo hi", "printed no ExecCredential"),
        (credential(), "returned neither a token nor a client certificate"),
        (credential(clientCertificateData="only"), "returned neither a token nor a client certificate"),
        (credential(token="t", expirationTimestamp="soon"), "expirationTimestamp 'soon', expected a time such as"),
    ],
)
async def test_a_plugin_that_fails_is_one_sentence(tmp_path: Path, body: str, sentence: str) -> None:
    with pytest.raises(BatonError, match=sentence):
        await Credentials(plugin(tmp_path, body)).headers()


async def test_a_plugin_that_is_not_there() -> None:
    access = Access("x", "https://x", exec_command=("/no/such/plugin",), exec_install_hint="get it from us")
    with pytest.raises(BatonError, match="cannot be run: No such file or directory; get it from us"):
        await Credentials(access).headers()


async def test_a_token_file_is_read_again_when_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    credentials = Credentials(Access("x", "https://x", token_file=tmp_path / "token"))
    first = await credentials.headers()
    assert first["Authorization"] == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert credentials.refused(first)
    assert (await credentials.headers())["Authorization"] == "Bearer two"


async def test_a_fixed_token_cannot_be_renewed() -> None:
    credentials = Credentials(Access("x", "https://x", token="t"))
    assert not credentials.refused(await credentials.headers())


def test_inside_a_pod_the_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("token", "t"), ("ca.crt", "CA"), ("namespace", "ml")):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = in_cluster(tmp_path)
    assert access is not None
    assert (access.server, access.namespace, access.token_file) == ("https://[fd00::1]:443", "ml", tmp_path / "token")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert in_cluster(tmp_path) is None


async def test_a_plugin_that_is_not_waited_for_any_more_is_ended(tmp_path: Path) -> None:
    """A request that is given up must not leave one behind each time."""
    os.mkfifo(tmp_path / "started")
    access = plugin(tmp_path, f"echo $$ > {tmp_path}/started\nexec sleep 600")
    asked = asyncio.create_task(Credentials(access).headers())
    pid = int(await asyncio.to_thread((tmp_path / "started").read_text))
    asked.cancel()
    await until_async(lambda: not alive(pid))


async def test_requests_that_are_refused_together_ask_for_one_new_token(tmp_path: Path) -> None:
    credentials = Credentials(plugin(tmp_path, credential(token="t")))
    first = await credentials.headers()
    for _ in range(3):
        assert credentials.refused(first)
        await credentials.headers()
    assert calls(tmp_path) == 2
