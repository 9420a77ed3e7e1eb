"""Volcano's own end-to-end suite against Baton: the numbers of docs/reference/volcano.md, with one command.

Each package of the suite is a program (`python -m testbed build volcano-suite`) that reads only a kubeconfig. It gets
its own cluster (`testbed.suite_cluster`), so leftovers of one package cannot affect the next, and writes a report, from
which the table is made. Cases run in the order of a fixed seed, so failures are reproducible.

The results folder contains for each package `report.json`, `output.log`, the logs of Baton's programs and, for packages
that save them, the suite's dumps of the namespaces of failed cases.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from testbed.building import say
from testbed.errors import BedError
from testbed.processes import Component, last_lines
from testbed.programs import TEST_PROGRAM, VOLCANO_SUITE, locate
from testbed.suite_cluster import SuiteCluster

SEED = 1
TIME_LIMIT = "2h"

_TELL_S = 60.0
_POLL_S = 0.2
# Ginkgo's marker of a finished case, at the start of a line.
_OVER = re.compile(r"^(?:•|[SP] \[)", re.MULTILINE)
_FAILED = re.compile(r"^• \[(?:FAILED|PANICKED|TIMEDOUT|INTERRUPTED|ABORTED)\]", re.MULTILINE)
_PLANNED = re.compile(r"^Will run (\d+) of \d+ specs", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """What a package of the suite needs from its cluster, and which of its cases cannot run on it."""

    start_after_s: float = 1.5
    hyper_nodes: bool = False
    skip: str = ""


PACKAGES = {
    "admission": Package(),
    "jobp": Package(),
    # Its cases do more work before they look for a Pending job.
    "jobseq": Package(start_after_s=3.0),
    "cronjob": Package(),
    "vcctl": Package(),
    # The volume cases run commands on the nodes.
    "schedulingbase": Package(skip="Volume Binding Test"),
    "schedulingaction": Package(),
    # Volcano also runs it on KWOK nodes, which start pods at once; a delay would look like a pod that has to wait.
    "hypernode": Package(start_after_s=0.0, hyper_nodes=True),
}


class Failure(NamedTuple):
    """A failed case, and the first line of the reason."""

    case: str
    message: str


@dataclass(frozen=True)
class Tally:
    """The result of one package; `switched_off` counts cases that the suite itself disables."""

    package: str
    passed: int
    failed: tuple[Failure, ...]
    switched_off: int
    taken_s: float = 0.0

    @property
    def cases(self) -> int:
        """All cases except those that we left out."""
        return self.passed + len(self.failed) + self.switched_off

    def row(self) -> list[str]:
        """The package's row in the table."""
        numbers = (self.cases, self.passed, len(self.failed), self.switched_off)
        return [self.package, *map(str, numbers), f"{self.taken_s / 60:.1f} min"]


COLUMNS = ("package", "cases", "passed", "failed", "switched off", "taken")


def read_report(package: str, report: Sequence[dict[str, Any]]) -> Tally:
    """The tally of a package from Ginkgo's JSON report.

    Cases excluded by a filter and cases disabled by the suite are both "skipped"; only the latter have a reason. Nodes
    that are not cases (such as the setup of the whole suite) are reported if they failed.
    """
    passed, switched_off, failed = 0, 0, []
    for spec in (spec for suite in report for spec in suite["SpecReports"] or ()):
        state, message = spec["State"], (spec.get("Failure") or {}).get("Message", "")
        if spec["LeafNodeType"] != "It" and state in ("passed", "skipped"):
            continue
        if state == "passed":
            passed += 1
        elif state == "pending" or (state == "skipped" and message):
            switched_off += 1
        elif state != "skipped":
            failed.append(Failure(_name(spec), _first_words(message) or state))
    return Tally(package, passed, tuple(failed), switched_off, sum(suite["RunTime"] for suite in report) / 1e9)


def _name(spec: dict[str, Any]) -> str:
    words = [*(spec.get("ContainerHierarchyTexts") or ()), spec.get("LeafNodeText") or spec["LeafNodeType"]]
    return " ".join(word.strip() for word in words)


def _first_words(message: str) -> str:
    """The first informative line of a message; Gomega puts a heading and the type of an error before it."""
    lines = (line.strip() for line in message.splitlines())
    return next((line[:200] for line in lines if line and line != "Unexpected error:" and line[0] != "<"), "")


def progress_of(output: str) -> str:
    """A package's progress, from its program's output so far."""
    planned = _PLANNED.search(output)
    over, failed = len(_OVER.findall(output)), len(_FAILED.findall(output))
    line = f"{over} of {planned[1]} cases" if planned else f"{over} cases"
    return f"{line}, {failed} failed" if failed else line


def check_packages(names: Iterable[str]) -> list[str]:
    """The packages to run, all of them if none was named; raises for an unknown name and lists the known ones."""
    wanted = list(dict.fromkeys(names)) or list(PACKAGES)
    if unknown := [name for name in wanted if name not in PACKAGES]:
        raise BedError(f"unknown package '{unknown[0]}' of the suite; choose from {', '.join(PACKAGES)}")
    return wanted


def run(names: Iterable[str], results: Path, *, focus: str = "") -> list[Tally]:
    """Run packages one after the other, each on its own cluster; `focus` selects cases by a regular expression."""
    wanted = check_packages(names)
    programs = locate(VOLCANO_SUITE)
    tallies = []
    for name in wanted:
        folder = results.absolute() / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        say(f"{name}: starting a cluster")
        tally = _run_package(name, programs, folder, focus)
        say(f"{name}: {tally.passed} of {tally.cases} passed, {len(tally.failed)} failed; see {folder}")
        tallies.append(tally)
    return tallies


def _run_package(name: str, programs: Path, folder: Path, focus: str) -> Tally:
    package = PACKAGES[name]
    report, output = folder / "report.json", folder / "output.log"
    words = [f"-ginkgo.seed={SEED}", f"-ginkgo.timeout={TIME_LIMIT}", "-ginkgo.v", "-ginkgo.no-color"]
    words.append(f"-ginkgo.json-report={report}")
    if package.skip:
        words.append(f"-ginkgo.skip={package.skip}")
    if focus:
        words.append(f"-ginkgo.focus={focus}")
    with SuiteCluster(programs, start_after_s=package.start_after_s, hyper_nodes=package.hyper_nodes) as cluster:
        program = Component(
            f"the suite's {name}",
            [str(programs / f"{name}{TEST_PROGRAM}"), *words],
            cluster.bed.id,
            output,
            environment={
                "KUBECONFIG": str(cluster.bed.kubeconfig),
                "VC_BIN": str(Path(sys.executable).parent),
                "ARTIFACTS_PATH": str(folder / "artifacts"),
            },
        )
        program.start()
        try:
            _follow(name, program, output)
        finally:
            cluster.keep_logs(folder)
    if not report.exists():
        raise BedError(f"the suite's {name} ended without a report; end of its output {output}: {last_lines(output)}")
    return read_report(name, json.loads(report.read_text()))


def _follow(name: str, program: Component, output: Path) -> None:
    """Wait for the end of a package and print its progress at intervals."""
    began = told = time.monotonic()
    while program.is_running:
        time.sleep(_POLL_S)
        if time.monotonic() - told > _TELL_S:
            told = time.monotonic()
            say(f"{name}: {progress_of(output.read_text(errors='replace'))} after {(told - began) / 60:.0f} min")
