"""A configuration that changes while the scheduler runs: which one is in force, rejections, and their events."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton.engine.configuration import Configuration, ConfigurationError
from baton.errors import UsageError
from baton.kube.decoding import Page, WatchEvent
from baton.model import core
from baton.model.meta import ObjectReference
from baton.scheduler.metrics import Metrics
from baton.scheduler.reload import ConfigMapName, LiveConfiguration

GOOD = 'actions: "enqueue, allocate"\ntiers:\n- plugins: [{name: gang}]\n'
ABOUT = ObjectReference(kind="ConfigMap", name="c")


class Listener:
    def __init__(self, live: LiveConfiguration) -> None:
        self.changes: list[Configuration] = []
        self.said: list[tuple[str, str]] = []
        self.heard = asyncio.Event()
        live.changed = self.changes.append
        live.tell = self._tell

    def _tell(self, _about: ObjectReference, reason: str, message: str, _warning: bool) -> None:
        self.said.append((reason, message))
        self.heard.set()


@pytest.fixture
def live() -> LiveConfiguration:
    return LiveConfiguration(Metrics())


def test_a_good_text_is_in_force_at_once(live: LiveConfiguration) -> None:
    listener = Listener(live)
    live.take(GOOD, ABOUT)
    assert [change.actions for change in listener.changes] == [("enqueue", "allocate")]
    assert (live.text, live.problem) == (GOOD, "")


def test_a_bad_text_is_refused_with_all_its_mistakes_and_the_one_before_stays(live: LiveConfiguration) -> None:
    listener = Listener(live)
    live.take(GOOD, ABOUT)
    before = live.current
    live.take('actions: "enqueu"\ntiers: 3\n', ABOUT)
    assert live.current is before
    assert live.text == GOOD
    assert len(listener.changes) == 1
    reason, message = listener.said[-1]
    assert reason == "ConfigurationRefused"
    assert "did you mean 'enqueue'?" in message
    assert "expected a list" in message


def test_the_same_text_again_is_no_news(live: LiveConfiguration) -> None:
    listener = Listener(live)
    live.take(GOOD, ABOUT)
    live.take(GOOD, ABOUT)
    assert len(listener.changes) == 1


def test_a_repaired_text_is_taken(live: LiveConfiguration) -> None:
    live.take("tiers: 3\n", ABOUT)
    assert live.problem
    live.take(GOOD, ABOUT)
    assert live.problem == ""


def test_a_file_that_is_wrong_at_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "conf"
    path.write_text("simple")
    with pytest.raises(ConfigurationError, match="expected a mapping"):
        LiveConfiguration(Metrics(), file=path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        LiveConfiguration(Metrics(), file=tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a/b", {"volcano-scheduler.conf": "1", "other.conf": "2"}, "1"),
        ("a/b:other.conf", {"volcano-scheduler.conf": "1", "other.conf": "2"}, "2"),
        ("a/b", {"volcano-scheduler-ci.conf": "3", "note": ""}, "3"),
        ("a/b", {"x.conf": "1", "y.conf": "2"}, None),
        ("a/b:gone.conf", {"volcano-scheduler.conf": "1"}, None),
    ],
)
def test_which_key_of_a_config_map_counts(name: str, data: dict[str, str], text: str | None) -> None:
    assert ConfigMapName(name).text_in(data) == text


def test_a_config_map_without_a_namespace_is_refused() -> None:
    with pytest.raises(UsageError, match="--config-map is 'b', expected namespace/name"):
        ConfigMapName("b")


class Maps:
    """An API server with one ConfigMap, or none, whose watch brings what the test puts there."""

    def __init__(self, *first: dict[str, str]) -> None:
        self._first = first
        self._version = 1
        self.events: asyncio.Queue[WatchEvent[core.ConfigMap]] = asyncio.Queue()

    def made(self, data: dict[str, str]) -> core.ConfigMap:
        self._version += 1
        metadata = {"name": "c", "namespace": "n", "uid": "u", "resourceVersion": str(self._version)}
        return msgspec.convert({"metadata": metadata, "data": data}, core.ConfigMap)

    def put(self, kind: str, **data: str) -> None:
        named = {name.replace("_", "-") + ".conf": text for name, text in data.items()}
        self.events.put_nowait(WatchEvent(kind, str(self._version), self.made(named)))

    async def list_page(self, *_: Any, **__: Any) -> Page[core.ConfigMap]:
        return Page([self.made(data) for data in self._first], "1", "")

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[list[WatchEvent[core.ConfigMap]]]:
        while True:
            yield [await self.events.get()]
            self.events.task_done()


async def test_a_config_map_that_is_gone_and_comes_back(live: LiveConfiguration) -> None:
    """The configuration stays in force all the time, and each time somebody hears why."""
    listener = Listener(live)
    maps = Maps({})
    client: Any = maps
    work = asyncio.create_task(live.follow(client, ConfigMapName("n/c")))
    await asyncio.wait_for(listener.heard.wait(), 30)
    for _ in range(2):
        maps.put("MODIFIED", volcano_scheduler=GOOD)
        maps.put("MODIFIED", other=GOOD, another=GOOD)
        maps.put("MODIFIED", volcano_scheduler=GOOD)
        maps.put("DELETED")
    async with asyncio.timeout(30):
        await maps.events.join()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    reloaded, refused = "ConfigurationReloaded", "ConfigurationRefused"
    assert [reason for reason, _ in listener.said] == [refused, *([reloaded, refused] * 4)]
    assert [message.rpartition("force: ")[2] for reason, message in listener.said if reason == refused] == [
        "ConfigMap n/c has no key volcano-scheduler.conf; it has none",
        *(
            [
                "ConfigMap n/c has no key volcano-scheduler.conf; it has other.conf, another.conf",
                "ConfigMap n/c was deleted",
            ]
            * 2
        ),
    ]
    assert live.text == GOOD


async def test_a_config_map_that_does_not_exist_is_missed(live: LiveConfiguration) -> None:
    listener = Listener(live)
    client: Any = Maps()
    work = asyncio.create_task(live.follow(client, ConfigMapName("n/c")))
    await asyncio.wait_for(listener.heard.wait(), 30)
    client.put("ADDED", volcano_scheduler=GOOD)
    async with asyncio.timeout(30):
        await client.events.join()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert "ConfigMap n/c does not exist" in listener.said[0][1]
    assert (live.text, live.problem) == (GOOD, "")


def test_a_new_leader_repeats_what_is_wrong(live: LiveConfiguration) -> None:
    live.take("tiers: 3\n", ABOUT)
    listener = Listener(live)
    live.say_again()
    assert [reason for reason, _ in listener.said] == ["ConfigurationRefused"]
    live.take(GOOD, ABOUT)
    live.say_again()
    assert len(listener.said) == 2, "what is in force is said once"
