"""A user's own scheduling plugin in the scheduler, the simulator and the replay of a recorded cluster."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from baton.engine import records
from baton.engine.events import Event, NodeChanged, PodChanged, QueueChanged
from baton.extensions.scheduling_plugins import PluginError, PluginLoader
from baton.kube.client import Client
from baton.kube.kubeconfig import Access
from baton.model.meta import ObjectReference
from baton.scheduler.loop import Scheduler
from baton.scheduler.metrics import Metrics
from baton.scheduler.reload import LiveConfiguration
from baton.scheduler.settings import Settings
from tests.engine.clusters import node, pod, queue

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugins" / "quiet_racks.py"
CONFIGURATION = EXAMPLE.with_suffix(".conf")
AVOIDS = 'name = "quiet-racks"'


def cluster(*racks: str) -> list[Event]:
    nodes = [NodeChanged(node(f"n{at}", cards=1, labels={"rack": rack})) for at, rack in enumerate(racks)]
    return [QueueChanged(queue("default")), *nodes, PodChanged(pod("p"))]


def baton(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def write(path: Path, text: str | None) -> None:
    """Change the file, or remove it."""
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


class Live:
    """A scheduler without an API server, under a configuration with plugin files."""

    def __init__(self, *files: Path, configuration: Path = CONFIGURATION) -> None:
        self.metrics = Metrics()
        self.live = LiveConfiguration(self.metrics, file=configuration, plugins=PluginLoader(files))
        client = Client(Access(server="http://nowhere", context="none"))
        self.scheduler = Scheduler(client, self.live.current, Settings(), self.metrics)
        self.live.changed = self.scheduler.configure
        self.live.tell = self._tell
        self.said: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def _tell(self, _about: ObjectReference, reason: str, message: str, _warning: bool) -> None:
        self.said.append((reason, message))
        self._news.set()

    async def news(self) -> tuple[str, str]:
        async with asyncio.timeout(30):
            await self._news.wait()
        self._news.clear()
        return self.said[-1]

    def follow(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.live.follow(self.scheduler._client, None))

    def placed(self, *racks: str) -> list[str]:
        """Where one new pod goes among nodes in these racks."""
        engine = self.scheduler.engine
        number = len(engine.state.tasks)
        engine.apply([*cluster(*racks)[:-1], PodChanged(pod(f"p{number}"))])
        return [str(binding.node) for binding in engine.schedule(0.0).bindings]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_bytes(EXAMPLE.read_bytes())
    return path


async def test_the_scheduler_runs_the_example() -> None:
    assert Live(EXAMPLE).placed("broken", "", "quiet") == ["n2"]


async def test_a_changed_file_is_in_force_and_a_broken_one_keeps_the_last_good_plugin(own: Path) -> None:
    live = Live(own)
    following = live.follow()
    try:
        write(own, EXAMPLE.read_text().replace('"quiet"', '"busy"'))
        assert (await live.news())[0] == "ConfigurationReloaded"
        assert live.placed("broken", "quiet", "busy") == ["n2"]
        write(own, "class Half(")
        reason, sentence = await live.news()
        assert reason == "PluginRefused"
        assert sentence.endswith(f"plugin file {own} cannot be loaded: line 1: '(' was never closed")
        assert live.placed("broken", "quiet", "busy") == ["n2"]
        write(own, None)
        assert "does not exist" in (await live.news())[1]
        write(own, EXAMPLE.read_text())
        assert (await live.news())[0] == "ConfigurationReloaded"
        assert live.placed("broken", "quiet", "busy") == ["n1"]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_plugin_that_cannot_be_made_is_refused_like_a_wrong_configuration(own: Path) -> None:
    live = Live(own)
    following = live.follow()
    try:
        write(own, f"{EXAMPLE.read_text()}\n    def __init__(self, *_, **__):\n        raise ValueError('no racks')\n")
        reason, sentence = await live.news()
        assert reason == "ConfigurationRefused"
        assert sentence.endswith("plugin quiet-racks cannot be created: ValueError: no racks")
        assert live.placed("broken", "", "quiet") == ["n2"]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def test_an_unchanged_file_is_not_loaded_again(own: Path) -> None:
    loader = PluginLoader([own])
    plugins = loader.plugins()
    assert not loader.refresh()
    assert loader.plugins()["quiet-racks"] is plugins["quiet-racks"]


@pytest.mark.process
def test_the_replay_of_a_recorded_cluster_runs_the_example(tmp_path: Path) -> None:
    record = tmp_path / "state.jsonl"
    configuration = CONFIGURATION.read_text()
    record.write_bytes(
        b"".join(records.lines(records.Recorded(configuration=configuration), cluster("broken", "", "quiet")))
    )
    with_plugin = baton("state", "replay", record, "--plugin", EXAMPLE, "-o", "json")
    assert with_plugin.returncode == 0, with_plugin.stderr
    assert [item["node"] for item in json.loads(with_plugin.stdout)["bindings"]] == ["n2"]
    without = baton("state", "replay", record, "-o", "json")
    assert "'quiet-racks' is not a plugin and skipped" in without.stderr
    assert [item["node"] for item in json.loads(without.stdout)["bindings"]] == ["n0"]


@pytest.mark.process
def test_the_simulator_runs_the_example(tmp_path: Path) -> None:
    finished = {}
    for rack in ("quiet", "broken"):
        record = tmp_path / f"{rack}.jsonl"
        record.write_bytes(b"".join(records.lines(records.Recorded(), cluster(rack)[:-1])))
        ran = baton(
            *("sim", "compare", "--state", record, "--jobs", "5", "--seeds", "2", "-o", "json", "--fractions", "1"),
            *("--policy", CONFIGURATION, "--plugin", EXAMPLE, "--gpus", "1", "--cards-per-node", "1"),
        )
        assert ran.returncode == 0, ran.stderr
        finished[rack] = [summary["finished"] for summary in json.loads(ran.stdout)]
    assert all(finished["quiet"])
    assert finished["broken"] == [0, 0]


@pytest.mark.process
@pytest.mark.parametrize("command", [["scheduler"], ["sim", "run"], ["state", "replay", "STATE"]])
def test_each_command_says_in_one_sentence_what_is_wrong_with_a_plugin(tmp_path: Path, command: list[str]) -> None:
    state, missing = tmp_path / "state.jsonl", tmp_path / "none.py"
    state.touch()
    failed = baton(*[state if word == "STATE" else word for word in command], "--plugin", missing)
    assert failed.returncode != 0
    assert f"plugin file {missing} does not exist; check the path" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("x = 1", "has no plugin; it needs a subclass of Plugin or PerNode, from baton.engine.framework, with a name"),
        ("\nimport nothing_like_this", "line 2: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("x = (", "line 1: '(' was never closed"),
        ("raise SystemExit(3)", "line 1: SystemExit: 3"),
        (b"\xff\xfe\x00", "cannot be loaded"),
        (f"{{}}\n    {AVOIDS}\n".replace(AVOIDS, "name = 7"), "the name of class Own is 7, expected a string"),
        (f"{{}}\n    {AVOIDS}\n    arguments_type = dict\n", "arguments_type of class Own is not a msgspec.Struct"),
    ],
)
def test_a_file_that_is_no_plugin_gets_one_sentence(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    path = tmp_path / "own.py"
    own = "from baton.engine.framework import NoArguments, Plugin\n\n\nclass Own(Plugin[NoArguments]):"
    path.write_bytes(content if isinstance(content, bytes) else content.replace("{}", own).encode())
    with pytest.raises(PluginError) as caught:
        PluginLoader([path])
    assert str(caught.value).startswith(f"plugin file {path}")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_files_of_the_same_name_do_not_mix(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.append(tmp_path / name / "own.py")
        files[-1].write_text(EXAMPLE.read_text().replace("quiet-racks", name))
    plugins = PluginLoader(files).plugins()
    assert plugins["one"].__module__ != plugins["two"].__module__
