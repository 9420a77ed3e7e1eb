"""The four first changes of CONTRIBUTING, made in a copy of the sources and used there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(python|diff) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(heading: str) -> dict[str, tuple[str, str]]:
    """The files below a heading: path to kind and content."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split(f"\n### {heading}\n")[1]
    section = re.split(r"^##+ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return {path: (kind, content) for kind, path, content in _BLOCK.findall(section)}


def patched(text: str, diff: str) -> str:
    """The text with every hunk of the diff applied; the lines of a hunk stand in exactly one place."""
    for hunk in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"these lines stand in {text.count(before)} places:\n{before}"
        text = text.replace(before, after)
    return text


def changed(heading: str, tree: Path) -> dict[str, tuple[str, str]]:
    """Make the change of a heading in a copy of the sources; returns the files that it touches."""
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "_native"))
    files = blocks(heading)
    for path, (kind, content) in files.items():
        if kind == "python":
            assert not (ROOT / path).exists(), f"{path} exists already"
            (tree / path).write_text(content)
        elif (tree / path).exists():
            (tree / path).write_text(patched((tree / path).read_text(), content))
        else:
            assert patched((ROOT / path).read_text(), content)
    return files


def answer(tree: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run([sys.executable, *arguments], env=environment, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


_SCHEDULE = """
from baton.engine.engine import Engine
from baton.engine.events import NodeChanged, PodChanged, QueueChanged
from baton.engine.objects import Container, Node, Pod, PodSpec, Queue
from baton.engine.presets import configured

engine = Engine(configured(CONFIGURATION))
nodes = [Node(name=name, allocatable=(("cpu", 4000), ("pods", 10)), labels=labels) for name, labels in NODES.items()]
pod = Pod(key="team/p", spec=PodSpec(containers=(Container(requests=(("cpu", 100),)),)))
engine.apply([QueueChanged(Queue(name="default")), *map(NodeChanged, nodes), PodChanged(pod)])
print(engine.schedule(0.0).bindings[0].node)
"""


def test_a_scheduling_plugin_in_two_files(tmp_path: Path) -> None:
    files = changed("A scheduling plugin", tmp_path)
    assert len(files) <= 2
    configuration = "actions: allocate\ntiers:\n- plugins: [{name: homecoming}]\n"
    nodes = "{'a': (), 'b': (('example.com/home', 'team'),), 'c': (('example.com/home', 'other'),)}"
    program = f"CONFIGURATION = {configuration!r}\nNODES = {nodes}\n{_SCHEDULE}"
    assert answer(tmp_path, "-c", program) == "b\n"
    assert answer(tmp_path, "-c", program.replace("{name: homecoming}", "{name: gang}")) == "a\n"


def test_a_job_plugin_in_two_files(tmp_path: Path) -> None:
    files = changed("A job plugin", tmp_path)
    assert len(files) <= 2
    program = """
import json, msgspec
from baton.job_plugins import plugins_of
from baton.model.volcano import Job
task = {"name": "t", "replicas": 1, "template": {"spec": {"containers": [{"name": "c"}]}}}
spec = {"tasks": [task, {**task, "name": "u"}], "plugins": {"headcount": []}}
job = msgspec.convert({"metadata": {"name": "j"}, "spec": spec}, Job)
pod = {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}
for plugin in plugins_of(job.spec):
    plugin.change_pod(job, job.spec.tasks[0], 0, pod)
from baton.admission.rules.jobs import PLUGINS
print(json.dumps([pod["spec"]["containers"][0]["env"], "headcount" in PLUGINS]))
"""
    assert json.loads(answer(tmp_path, "-c", program)) == [[{"name": "TASK_COUNT", "value": "2"}], True]


def test_a_metric_in_two_files(tmp_path: Path) -> None:
    files = changed("A metric", tmp_path)
    assert len(files) <= 2
    program = """
from types import SimpleNamespace
from baton.engine.engine import Engine
from baton.engine.events import NodeChanged
from baton.engine.objects import Node
from baton.engine.presets import configured
from baton.scheduler.gauges import FAMILIES, rows

engine = Engine(configured("simple"))
engine.apply([NodeChanged(Node(name=name, allocatable=())) for name in "abc"])
found = next(row for row in rows(SimpleNamespace(engine=engine)) if row.family.name == "baton_scheduler_nodes")
print(found.value, found.family in FAMILIES)
"""
    assert answer(tmp_path, "-c", program) == "3.0 True\n"


def test_a_command_in_two_files(tmp_path: Path) -> None:
    files = changed("A command", tmp_path)
    assert len(files) <= 2
    assert "cores" in answer(tmp_path, "-m", "baton.cli.main", "--help")
    assert answer(tmp_path, "-m", "baton.cli.main", "cores") == f"{len(os.sched_getaffinity(0))}\n"
