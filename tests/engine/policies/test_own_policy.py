"""A user's own plugin is one short file."""

import re
from pathlib import Path

import pytest

from baton.engine.engine import Engine
from baton.engine.events import NodeChanged, PodChanged, QueueChanged
from baton.engine.plan import Plan
from baton.engine.presets import configured
from baton.extensions.scheduling_plugins import PluginError, PluginLoader
from tests.engine.clusters import node, pod, queue

DOCS = Path(__file__).parents[3] / "docs" / "contributors" / "engine.md"
CONF = """
actions: "allocate"
tiers:
- plugins:
  - name: predicates
  - name: quiet-racks
"""


def documented(word: str) -> str:
    """The Python example of the documentation that has this word in it."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return str(next(block for block in blocks if word in block))


def test_the_first_example_of_the_documentation_runs() -> None:
    names: dict[str, object] = {}
    exec(documented("engine.schedule(now_s=0.0)"), names)
    plan = names["plan"]
    assert isinstance(plan, Plan)
    assert [binding.cards[0].card for binding in plan.bindings] == ["GPU-1"]


def test_a_per_node_policy_from_a_file_filters_and_scores(tmp_path: Path) -> None:
    path = tmp_path / "quiet.py"
    path.write_text(documented("QuietRacks"))
    plugins = PluginLoader([path]).plugins()
    engine = Engine(configured(CONF, plugins))
    engine.apply(
        [
            QueueChanged(queue("default")),
            NodeChanged(node("a", labels={"rack": "broken"})),
            NodeChanged(node("b")),
            NodeChanged(node("c", labels={"rack": "quiet"}, cpu=1)),
            PodChanged(pod("p0")),
            PodChanged(pod("p1")),
            PodChanged(pod("p2")),
        ]
    )
    placed = {binding.pod: binding.node for binding in engine.schedule(0.0).bindings}
    assert placed == {"team/p0": "c", "team/p1": "b", "team/p2": "b"}


def test_a_per_node_policy_may_look_at_labels_of_pods(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        documented("QuietRacks").replace(
            '("rack", "broken") in node.labels', '("team", node.name) not in task.pod.labels'
        )
    )
    plugins = PluginLoader([path]).plugins()
    engine = Engine(configured(CONF, plugins))
    nodes = [NodeChanged(node(name)) for name in "ab"]
    pods = [PodChanged(pod(f"{name}{at}", labels={"team": name})) for at in range(3) for name in "ba"]
    engine.apply([QueueChanged(queue("default")), *nodes, *pods])
    assert {(binding.pod[5], binding.node) for binding in engine.schedule(0.0).bindings} == {("a", "a"), ("b", "b")}


def test_a_policy_of_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quiet_racks.py").write_text(documented("QuietRacks"))
    package = tmp_path / "quiet_racks-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet-racks\nVersion: 1.0\n")
    points = package / "entry_points.txt"
    points.write_text("[baton.plugins]\nquiet = quiet_racks:QuietRacks\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "quiet-racks" in PluginLoader().plugins()
    assert "quiet-racks" not in PluginLoader(entry_points=False).plugins()
    points.write_text("[baton.plugins]\nquiet = quiet_racks:NoArguments\n")
    with pytest.raises(PluginError, match=r"entry point quiet .* is not a plugin class"):
        PluginLoader().plugins()
