"""`baton sim` as users see it: results on stdout, notes on stderr, one sentence per error."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from baton.engine.events import NodeChanged, PodChanged
from baton.engine.objects import CardGrant, CardKind, Pod, PodSpec
from baton.model.ids import NodeName, PodKey
from baton.model.names import PodPhase
from baton.sim.run.translation import engine_node
from baton.sim.traces.readers import read_jobs
from baton.sim.traces.workload import TraceNode

pytestmark = pytest.mark.process


def sim(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton.cli.main", "sim", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_generate_then_run_with_a_report(tmp_path: Path) -> None:
    trace, page = tmp_path / "jobs.csv", tmp_path / "report.html"
    made = sim("generate", trace, "--jobs", "40", "--gpus", "16", "--seed", "7")
    assert made.returncode == 0, made.stderr
    assert len(read_jobs(trace).jobs) == 40
    ran = sim("run", trace, "--gpus", "16", "--policy", "fifo", "--html", page, "-o", "json")
    assert ran.returncode == 0, ran.stderr
    (summary,) = json.loads(ran.stdout)
    assert (summary["policy"], summary["finished"], summary["unfinished"]) == ("fifo", 40, [])
    assert "40 jobs" in ran.stderr
    assert page.read_text().startswith("<!doctype html>")


def test_compare_prints_one_line_per_policy_and_seed() -> None:
    shown = sim("compare", "--jobs", "30", "--gpus", "8", "-p", "fifo", "-p", "priority", "--seeds", "2", "-q")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    lines = [line.split()[:2] for line in shown.stdout.splitlines()]
    assert lines[1:] == [["fifo", "42"], ["fifo", "43"], ["priority", "42"], ["priority", "43"]]


def test_compare_shows_its_progress_on_a_terminal() -> None:
    terminal, end = pty.openpty()
    words = ["compare", "--jobs", "30", "--gpus", "8", "-p", "fifo", "-p", "las", "--processes", "2"]
    command = [sys.executable, "-m", "baton.cli.main", "sim", *words]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, env=environment) as running:
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # a terminal reports its closed end like this
            while chunk := os.read(terminal, 4096):
                shown += chunk
        assert running.stdout is not None
        lines = running.stdout.read().decode().splitlines()
    os.close(terminal)
    assert running.returncode == 0
    assert "2/2" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert len(lines) == 3, "the bar is not among the results"


def test_fill(tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1,1,400\nb,1000,1,x,0\n")
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\n")
    shown = sim("fill", tmp_path / "pods.csv", tmp_path / "nodes.csv", "-p", "fgd", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    (result,) = json.loads(shown.stdout)
    assert result["allocated_percent"][-1] == 80.0, "two shares of 400 on each of two cards"
    assert "1 jobs, 1 rows skipped (first: line 3, num_gpu is 'x', expected a number)" in shown.stderr


def test_a_configuration_file_is_a_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.conf").write_text(
        'actions: "allocate"\ntiers:\n- plugins:\n  - name: gang\n  - name: predicates\n'
    )
    shown = sim("run", "--jobs", "10", "--gpus", "8", "-p", tmp_path / "mine.conf", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)[0]["policy"] == "mine"


def test_a_recorded_state_leaves_only_its_free_cards(tmp_path: Path) -> None:
    node = engine_node(TraceNode(name="n1", cards=2), 1)
    grant = CardGrant("main", node.cards[0].id, CardKind.WHOLE, 0, 1000)
    pod = Pod(
        key=PodKey("other/there"),
        spec=PodSpec(),
        ours=False,
        phase=PodPhase.RUNNING,
        node=NodeName("n1"),
        cards=(grant,),
    )
    record = tmp_path / "state.jsonl"
    record.write_bytes(b"\n".join(msgspec.json.encode(event) for event in (NodeChanged(node), PodChanged(pod))))
    trace = tmp_path / "jobs.csv"
    trace.write_text("name,submit_s,duration_s\na,0,10\nb,0,10\n")
    shown = sim("run", trace, "--state", record, "-o", "json")
    assert shown.returncode == 0, shown.stderr
    (summary,) = json.loads(shown.stdout)
    assert summary["makespan_s"] == 20, "one card is taken, so one job after the other"
    assert "1 nodes, 1 running pods, which stay" in shown.stderr


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["run", "-p", "fif"], 2, "baton: no policy 'fif'; did you mean 'fifo'?"),
        (["run", "none.csv"], 1, "baton: none.csv cannot be opened: No such file or directory"),
        (["run", "--load", "-1"], 2, "baton: load is -1.0, expected more than 0"),
        (["run", "--state", "none.jsonl"], 1, "baton: none.jsonl cannot be opened: No such file or directory"),
        (
            ["run", "--html", "no/such/dir.html"],
            1,
            "no/such/dir.html cannot be written: there is no directory no/such",
        ),
        (["fill", "a", "b", "-p", "fdg"], 2, "baton: no fill policy 'fdg'; there are random, dotprod"),
        (["run", "--slots", "0"], 2, "--slots"),
    ],
)
def test_an_error_is_one_sentence(words: list[str], code: int, sentence: str) -> None:
    shown = sim(*words)
    assert shown.returncode == code
    assert sentence in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1
    assert shown.stdout == ""


def test_an_invalid_record_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('\n{"type": "Nothing"}\n')
    shown = sim("run", "--state", tmp_path / "bad.jsonl")
    assert shown.returncode == 1
    assert "bad.jsonl, line 2: not an event of the engine" in shown.stderr
