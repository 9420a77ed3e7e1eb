"""The builder: one build at a time, all or nothing, and an error with the remedy if it cannot build."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import building
from testbed.building import Workshop, build
from testbed.errors import BedError, MissingError
from testbed.programs import ProgramSet, kubernetes, locate

ROOT = Path(__file__).parents[2]
TOY = ProgramSet("toy", "1.2.3", ("left", "right"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BATON_TESTBED_PROGRAMS", raising=False)
    monkeypatch.setattr(building, "find_go", lambda _progress: Path("/usr/bin/false"))
    return tmp_path / "baton" / "testbed"


def script(path: Path, words: str) -> None:
    path.write_text(f"#!/bin/sh\necho {words}\n")
    path.chmod(0o755)


def recipe(
    version: str = "1.2.3", programs: tuple[str, ...] = ("left", "right")
) -> Callable[[Workshop, ProgramSet], None]:
    def make(shop: Workshop, _: ProgramSet) -> None:
        for name in programs:
            script(shop.out / name, f"{name} v{version}")

    return make


def test_a_built_set_is_found_and_not_built_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(building.RECIPES, "toy", recipe())
    lines: list[str] = []
    assert build(TOY, progress=lines.append) == cache / "toy-1.2.3"
    assert locate(TOY) == cache / "toy-1.2.3"
    assert lines[-1].startswith("toy-1.2.3: ready in ")
    lines.clear()
    build(TOY, progress=lines.append)
    assert lines == []


def test_a_failed_build_leaves_nothing_that_looks_ready(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_half_way(shop: Workshop, _: ProgramSet) -> None:
        script(shop.out / "left", "left v1.2.3")
        raise BedError("compiling right failed: out of paper; buy some")

    monkeypatch.setitem(building.RECIPES, "toy", fail_half_way)
    with pytest.raises(BedError, match="out of paper"):
        build(TOY, progress=lambda _: None)
    assert sorted(path.name for path in cache.iterdir()) == ["toy-1.2.3.lock"]
    with pytest.raises(MissingError, match="run `python -m testbed build toy`"):
        locate(TOY)


def test_a_program_with_another_version_stamp_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(building.RECIPES, "toy", recipe(version="1.2.30"))
    with pytest.raises(BedError, match=r"left is not version 1\.2\.3: it reports 'left v1\.2\.30'"):
        build(TOY, progress=lambda _: None)
    assert not (cache / "toy-1.2.3").exists()


def test_the_next_build_removes_leftovers_of_a_killed_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remnant = cache / ".toy-1.2.3.dead" / "out"
    remnant.mkdir(parents=True)
    monkeypatch.setitem(building.RECIPES, "toy", recipe())
    build(TOY, progress=lambda _: None)
    assert sorted(path.name for path in cache.iterdir()) == ["toy-1.2.3", "toy-1.2.3.lock"]


def test_of_two_concurrent_builds_one_builds_and_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, may_finish, waiting = threading.Event(), threading.Event(), threading.Event()
    builds: list[int] = []

    def slow(shop: Workshop, program_set: ProgramSet) -> None:
        builds.append(1)
        at_work.set()
        assert may_finish.wait(120)
        recipe()(shop, program_set)

    def second_progress(line: str) -> None:
        if "waiting for another build" in line:
            waiting.set()

    monkeypatch.setitem(building.RECIPES, "toy", slow)
    first = threading.Thread(target=build, args=(TOY,), kwargs={"progress": lambda _: None})
    second = threading.Thread(target=build, args=(TOY,), kwargs={"progress": second_progress})
    first.start()
    assert at_work.wait(120)
    second.start()
    assert waiting.wait(120)
    may_finish.set()
    first.join()
    second.join()
    assert builds == [1]
    assert locate(TOY)


FAKE_GO = """#!/bin/sh
case "$1 $2" in
"mod download") echo '{{"Error": "server response: not found"}}'; exit 1 ;;
"list -m") echo {versions} ;;
esac
"""


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        (
            "k8s.io/kubernetes v1.35.4 v1.36.1 v1.36.3",
            r"v1\.36\.99 is not on .* it has these 1\.36 versions: v1\.36\.1, v1\.36\.3",
        ),
        (
            "k8s.io/kubernetes v1.35.4 v1.36.0-rc.1",
            r"v1\.36\.99 is not on .* nor is any 1\.36; the newest version is v1\.35\.4",
        ),
        ("", r"v1\.36\.99 cannot be fetched \(server response: not found\); set GOPROXY to a proxy"),
    ],
)
def test_an_unknown_kubernetes_version_is_rejected_with_a_list_of_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: str, sentence: str
) -> None:
    go = tmp_path / "go"
    go.write_text(FAKE_GO.format(versions=versions))
    go.chmod(0o755)
    monkeypatch.setattr(building, "find_go", lambda _progress: go)
    with pytest.raises(BedError, match=sentence):
        build(kubernetes("1.36.99"), progress=lambda _: None)


def test_nothing_is_compiled_into_a_directory_of_ready_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_TESTBED_PROGRAMS", str(tmp_path))
    with pytest.raises(
        MissingError, match=r"left, right of toy-1\.2\.3 missing in .* add it or unset BATON_TESTBED_PROGRAMS"
    ):
        build(TOY)


def offline(cache: Path, **environment: str) -> dict[str, str]:
    """An environment with empty caches in which nothing can be downloaded."""
    without = {"CI", "BATON_TESTBED_PROGRAMS"}
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {
        **kept,
        "XDG_CACHE_HOME": str(cache),
        "GOPROXY": "off",
        "GOMODCACHE": str(cache / "modules"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        **environment,
    }


@pytest.mark.parametrize(("environment", "code"), [({}, 0), ({"CI": "true"}, 3)])
def test_without_a_proxy_the_build_is_one_line_and_a_failure_only_in_ci(
    tmp_path: Path, environment: dict[str, str], code: int
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "testbed", "build"],
        env=offline(tmp_path, **environment),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    told = [line for line in result.stderr.splitlines() if "downloading" not in line]
    assert len(told) == 1, result.stderr
    assert told[0].startswith("testbed: ")
    assert result.returncode == code
    if not environment:
        assert told[0].endswith("the tests on a real Kubernetes are skipped")


@pytest.mark.parametrize(("environment", "code"), [({}, 0), ({"CI": "true"}, 1)])
def test_without_programs_the_cluster_tests_are_skipped_in_one_line_and_fail_in_ci(
    tmp_path: Path, environment: dict[str, str], code: int
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cluster"],
        env=offline(tmp_path, **environment),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == code, result.stdout
    lines = result.stdout.splitlines()
    if environment:
        assert "passed" not in lines[-1]
        assert "a test of the test bed may not be skipped in CI: " in result.stdout
    else:
        (line,) = [line for line in lines if line.startswith("SKIPPED")]
        assert "etcd 3.6.8 is not built" in line
        assert "run `python -m testbed build etcd`" in line
