"""The Kubernetes layer against a real API server: lists, watches, cuts, restarts, elections, events."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from baton.kube import kubeconfig
from baton.kube.client import JSON_PATCH, Client
from baton.kube.election import Election
from baton.kube.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError, UnreachableError
from baton.kube.recorder import Recorder
from baton.kube.reflector import Reflector
from baton.kube.store import Delta, Store
from baton.model.meta import EVENTS, Metadata, ObjectReference
from baton.model.resource import Resource
from testbed.bed import Bed, BedOptions
from tests.waiting import until_async

pytestmark = pytest.mark.cluster


class ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


MAPS: Resource[ConfigMap] = Resource("", "v1", "configmaps", ConfigMap)
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def client_of(bed: Bed) -> Client:
    return Client(kubeconfig.load([bed.kubeconfig]))


@contextlib.asynccontextmanager
async def following(
    client: Client, namespace: str, silence_s: float = 90.0
) -> AsyncIterator[tuple[Store[ConfigMap], Reflector[ConfigMap]]]:
    """A store that follows the config maps called m-…, leaving out the one that every namespace has."""
    store: Store[ConfigMap] = Store()
    reflector = Reflector(client, MAPS, store, namespace=namespace, label_selector="of=test", silence_s=silence_s)
    task = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced.wait(), 120)
    try:
        yield store, reflector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def create(client: Client, namespace: str, *names: str) -> None:
    bodies = [{"metadata": {"name": name, "labels": {"of": "test"}}, "data": {"n": name}} for name in names]
    await asyncio.gather(*(client.create(MAPS, body, namespace) for body in bodies))


async def test_errors_of_a_real_server_have_their_types(kwok_bed: Bed, kwok_namespace: str) -> None:
    async with client_of(kwok_bed) as client:
        await create(client, kwok_namespace, "m")
        with pytest.raises(NotFoundError, match='configmaps "x" not found'):
            await client.get(MAPS, "x", kwok_namespace)
        with pytest.raises(ConflictError, match="already exists"):
            await create(client, kwok_namespace, "m")
        with pytest.raises(InvalidError, match="a lowercase RFC 1123"):
            await create(client, kwok_namespace, "No_Name")
        stale = {"metadata": {"name": "m", "resourceVersion": "1"}}
        with pytest.raises(ConflictError):
            await client.replace(MAPS, "m", stale, kwok_namespace)


@pytest.mark.parametrize("owners", [[], ["other"], ["other", "mine"]], ids=["nobody", "another", "another first"])
async def test_a_change_on_a_condition_that_does_not_hold_is_refused_as_invalid(
    kwok_bed: Bed, kwok_namespace: str, owners: list[str]
) -> None:
    """By this the job controller knows that a ConfigMap may not be its job's, without reading it first."""
    async with client_of(kwok_bed) as client:
        await create(client, kwok_namespace, "mine", "other")  # real ones, else the object is collected at once
        uids = {name: (await client.get(MAPS, name, kwok_namespace)).metadata.uid for name in ("mine", "other")}
        references = [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uids[name]} for name in owners]
        body = {"metadata": {"name": "m", "ownerReferences": references}, "data": {"n": "old"}}
        await client.create(MAPS, body, kwok_namespace)
        change = [
            {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": uids["mine"]},
            {"op": "add", "path": "/data", "value": {"n": "new"}},
        ]
        with pytest.raises(InvalidError):
            await client.patch(MAPS, "m", change, kwok_namespace, content_type=JSON_PATCH)
        assert (await client.get(MAPS, "m", kwok_namespace)).data == {"n": "old"}
        with pytest.raises(NotFoundError):
            await client.patch(MAPS, "absent", change, kwok_namespace, content_type=JSON_PATCH)


async def test_somebody_without_rights_is_told_so(kwok_bed: Bed, kwok_namespace: str) -> None:
    path = kwok_bed.plane.user_kubeconfig("nobody")
    async with Client(kubeconfig.load([path])) as client:
        with pytest.raises(ForbiddenError, match="nobody"):
            await client.list_all(MAPS, kwok_namespace)


@pytest.mark.parametrize("kind", ["token", "client certificate"])
async def test_a_credential_plugin_opens_the_door(
    kwok_bed: Bed, kwok_namespace: str, tmp_path: Path, kind: str
) -> None:
    """The plugin has been renewed when the first answer of it is refused."""
    config = yaml.safe_load(kwok_bed.kubeconfig.read_text())
    known = kubeconfig.load([kwok_bed.kubeconfig])
    assert known.client_certificate is not None
    assert known.client_key is not None
    if kind == "token":
        account = f"/api/v1/namespaces/{kwok_namespace}/serviceaccounts"
        kwok_bed.api.create(account, {"metadata": {"name": "plugin"}})
        made = kwok_bed.api.create(f"{account}/plugin/token", {"spec": {"expirationSeconds": 3600}})
        good = {"token": made["status"]["token"]}
    else:
        good = {
            "clientCertificateData": known.client_certificate.decode(),
            "clientKeyData": known.client_key.decode(),
        }
    plugin, answers = tmp_path / "plugin", []
    for number, status in enumerate(({"token": "expired"}, good)):
        answers.append(tmp_path / f"answer-{number}")
        answers[-1].write_text(json.dumps({"kind": "ExecCredential", "status": status}))
    plugin.write_text(f"#!/bin/sh\ncat {answers[0]} && cp {answers[1]} {answers[0]}\n")
    plugin.chmod(0o755)
    config["users"][0]["user"] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    async with Client(kubeconfig.load([path])) as client:
        answer = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=REVIEW)
    user = msgspec.json.decode(answer)["status"]["userInfo"]["username"]
    assert (user == f"system:serviceaccount:{kwok_namespace}:plugin") == (kind == "token")


@contextlib.asynccontextmanager
async def connect_proxy(asked: list[str]) -> AsyncIterator[str]:
    """An HTTP proxy as companies have them between people and clusters; its address, while it runs."""
    tunnels: list[asyncio.Task[None] | None] = []

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(65536):
                sink.write(chunk)
                await sink.drain()
        finally:
            sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnels.append(asyncio.current_task())
        method, target, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
        asked.append(f"{method} {target}")
        host, port = target.split(":")
        back, there = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, there), pump(back, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())
    await asyncio.gather(*(tunnel for tunnel in tunnels if tunnel))


async def test_the_way_leads_through_the_proxy_of_the_kubeconfig(
    kwok_bed: Bed, kwok_namespace: str, tmp_path: Path
) -> None:
    content = yaml.safe_load(kwok_bed.kubeconfig.read_text())
    target = content["clusters"][0]["cluster"]["server"].removeprefix("https://")
    asked: list[str] = []
    async with connect_proxy(asked) as url:
        content["clusters"][0]["cluster"]["proxy-url"] = url
        (tmp_path / "config").write_text(yaml.safe_dump(content))
        async with Client(kubeconfig.load([tmp_path / "config"])) as client:
            await create(client, kwok_namespace, "m")
            async with following(client, kwok_namespace) as (store, _):
                assert [item.metadata.name for item in store] == ["m"]
    assert asked
    assert set(asked) == {f"CONNECT {target}"}
    async with Client(kubeconfig.load([tmp_path / "config"])) as client:
        with pytest.raises(UnreachableError, match="does not answer"):
            await client.get(MAPS, "m", kwok_namespace)


async def test_a_long_list_comes_in_pages_and_complete(kwok_bed: Bed, kwok_namespace: str) -> None:
    async with client_of(kwok_bed) as client:
        names = [f"m-{number:03}" for number in range(40)]
        await create(client, kwok_namespace, *names)
        page = await client.list_page(MAPS, kwok_namespace, limit=15, label_selector="of=test")
        assert len(page.items) == 15
        seen = [item.metadata.name for item in page.items]
        while page.continue_token:
            page = await client.list_page(
                MAPS, kwok_namespace, limit=15, label_selector="of=test", continue_token=page.continue_token
            )
            seen += [item.metadata.name for item in page.items]
        assert seen == names


async def test_a_store_follows_creations_changes_and_removals(kwok_bed: Bed, kwok_namespace: str) -> None:
    async with client_of(kwok_bed) as client:
        await create(client, kwok_namespace, "m-before")
        async with following(client, kwok_namespace) as (store, _):
            told: list[Delta[ConfigMap]] = []
            store.subscribe(told.append)
            await create(client, kwok_namespace, "m-after")
            await client.patch(MAPS, "m-after", {"data": {"n": "changed"}}, kwok_namespace)
            await client.delete(MAPS, "m-before", kwok_namespace)
            await until_async(lambda: len(told) == 4)
        kinds = [(d.key.split("/")[1], d.old is not None, d.new is not None) for d in told]
        assert kinds == [
            ("m-before", False, True),
            ("m-after", False, True),
            ("m-after", True, True),
            ("m-before", True, False),
        ]


@pytest.mark.parametrize("fault", ["cut", "mute"])
async def test_a_broken_connection_loses_nothing(kwok_bed: Bed, kwok_namespace: str, fault: str) -> None:
    proxy, path = kwok_bed.proxy()
    with proxy:
        async with client_of(kwok_bed) as direct, Client(kubeconfig.load([path]), timeout_s=2) as client:
            await create(direct, kwok_namespace, "m-gone", "m-kept")
            async with following(client, kwok_namespace, silence_s=2.0) as (store, _):
                await asyncio.to_thread(getattr(proxy, fault))
                await create(direct, kwok_namespace, "m-new")
                await direct.delete(MAPS, "m-gone", kwok_namespace)
                with pytest.raises(UnreachableError):
                    await client.get(MAPS, "m-new", kwok_namespace)
                await asyncio.to_thread(proxy.heal)
                await until_async(lambda: sorted(m.metadata.name for m in store) == ["m-kept", "m-new"])


def connections_to(address: tuple[str, int]) -> int:
    """How many sockets of this process lead there."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own descriptor is gone, a listening socket has no peer
            if descriptor.is_socket():
                with socket.socket(fileno=os.dup(int(descriptor.name))) as connected:
                    found += connected.getpeername() == address
    return found


async def test_a_closed_client_waits_for_nobody_to_say_goodbye(kwok_bed: Bed, kwok_namespace: str) -> None:
    """The farewell of TLS would keep connections for half a minute where the network is gone."""
    proxy, path = kwok_bed.proxy()
    with proxy:
        async with Client(kubeconfig.load([path])) as client:
            pages = client.watch(MAPS, kwok_namespace, resource_version="")
            await create(client, kwok_namespace, "m", "n")
            await anext(pages)
            await asyncio.to_thread(proxy.mute)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.get(MAPS, "m", kwok_namespace), 0.2)
            await pages.aclose()
            assert connections_to(proxy.address) > 1
        assert connections_to(proxy.address) == 0


async def test_a_restarted_api_server_loses_nothing(new_bed: Callable[[BedOptions], Bed]) -> None:
    bed = await asyncio.to_thread(new_bed, BedOptions())
    async with client_of(bed) as client, following(client, "default") as (store, _):
        await create(client, "default", "m-1")
        await until_async(lambda: len(store) == 1)
        await asyncio.to_thread(bed.api_server.restart)
        await create(client, "default", "m-2")
        await until_async(lambda: len(store) == 2)


async def test_one_of_two_candidates_leads_and_the_other_takes_over(kwok_bed: Bed, kwok_namespace: str) -> None:
    async with client_of(kwok_bed) as client:
        leading: list[str] = []
        both = asyncio.Event()

        def lead(name: str) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                assert not leading, "two leaders at once"
                leading.append(name)
                try:
                    await both.wait()
                finally:
                    leading.remove(name)

            return work

        terms = {"duration_s": 60.0, "renew_deadline_s": 40.0, "retry_s": 0.2}
        elections = {name: Election(client, "test", kwok_namespace, name, **terms) for name in ("a", "b")}
        tasks = {name: asyncio.create_task(election.run(lead(name))) for name, election in elections.items()}
        await until_async(lambda: bool(leading))
        first = leading[0]
        await until_async(lambda: all(election.leader == first for election in elections.values()))
        tasks[first].cancel()
        await until_async(lambda: leading == [{"a": "b", "b": "a"}[first]])
        both.set()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        lease = msgspec.json.decode(
            await client.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{kwok_namespace}/leases/test")
        )
        assert lease["spec"]["leaseTransitions"] == 1
        assert lease["spec"].get("holderIdentity", "") == "", "the last leader gave the lease back"


async def test_a_leader_that_cannot_renew_stops_before_another_may_start(kwok_bed: Bed, kwok_namespace: str) -> None:
    proxy, path = kwok_bed.proxy()
    with proxy:
        async with Client(kubeconfig.load([path]), timeout_s=1) as client:
            election = Election(client, "cut", kwok_namespace, "a", duration_s=60, renew_deadline_s=2, retry_s=0.2)
            working, stopped = asyncio.Event(), asyncio.Event()

            async def lead() -> None:
                working.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.set()

            task = asyncio.create_task(election.run(lead))
            await asyncio.wait_for(working.wait(), 120)
            await asyncio.to_thread(proxy.cut)
            await asyncio.wait_for(stopped.wait(), 30)  # far less than the 60 s after which another may start
            await task


async def test_the_same_event_is_counted_and_a_storm_is_folded(kwok_bed: Bed, kwok_namespace: str) -> None:
    async with client_of(kwok_bed) as client:
        recorder = Recorder(client, "baton-test")
        task = asyncio.create_task(recorder.run())
        about = ObjectReference("ConfigMap", kwok_namespace, "m", "uid-1", "v1")
        for _ in range(3):
            recorder.record(about, "Same", "again and again", warning=True)
        for number in range(30):
            recorder.record(about, "Storm", f"no room on node-{number}")
        await asyncio.wait_for(recorder.flush(), 120)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        events = await client.list_all(EVENTS, kwok_namespace)
        same = [event for event in events if event.reason == "Same"]
        assert [(event.count, event.type) for event in same] == [(3, "Warning")]
        storm = [event for event in events if event.reason == "Storm"]
        assert len(storm) == 11
        assert max(event.count for event in storm) == 20
        assert recorder.dropped == 0
