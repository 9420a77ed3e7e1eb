"""A policy of one's own is one short file."""

from pathlib import Path

import pytest

from baton.engine.engine import Engine
from baton.engine.events import NodeChanged, PodChanged, QueueChanged
from baton.engine.policies import PolicyError, catalogue
from baton.engine.presets import configured
from tests.engine.clusters import node, pod, queue

NIGHT_OWLS = '''
from baton.engine.plugin import NoArguments, PerNode


class QuietRacks(PerNode[NoArguments]):
    """Prefer nodes in quiet racks, and keep away from racks under repair."""

    name = "quiet-racks"

    def fits(self, task, node):
        return "is in a rack under repair" if ("rack", "broken") in node.labels else None

    def rate(self, task, node):
        return 100.0 if ("rack", "quiet") in node.labels else 0.0
'''
CONF = """
actions: "allocate"
tiers:
- plugins:
  - name: predicates
  - name: quiet-racks
"""


def test_a_per_node_policy_from_a_file_filters_and_scores(tmp_path: Path) -> None:
    path = tmp_path / "quiet.py"
    path.write_text(NIGHT_OWLS)
    plugins = catalogue([str(path)])
    engine = Engine(configured(CONF, plugins), catalogue=plugins)
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


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("x = 1", "has no plugin"), ("import nothing_like_this", "could not be loaded"), (None, "does not exist")],
)
def test_a_file_that_is_no_policy_gets_one_sentence(tmp_path: Path, content: str | None, sentence: str) -> None:
    path = tmp_path / "policy.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PolicyError, match=sentence):
        catalogue([str(path)])
