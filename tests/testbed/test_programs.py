"""Which programs are accepted, and the errors for the others."""

from pathlib import Path

import pytest

from testbed.bed import Bed, BedOptions
from testbed.errors import BedError, MissingError
from testbed.programs import ProgramSet, kubernetes, locate


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_TESTBED_PROGRAMS", str(tmp_path))
    return tmp_path


def add(directory: Path, name: str, says: str) -> None:
    program = directory / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)


def test_ready_programs_are_accepted_if_they_report_the_version(ready: Path) -> None:
    add(ready, "toy", "toy version v2.0.1 go1.26")
    assert locate(ProgramSet("toy", "2.0.1", ("toy",))) == ready


def test_a_ready_program_of_another_version_is_refused(ready: Path) -> None:
    add(ready, "toy", "toy version v2.0.0")
    with pytest.raises(BedError, match=r"toy is not version 2\.0\.1: it reports 'toy version v2\.0\.0'; rebuild it"):
        locate(ProgramSet("toy", "2.0.1", ("toy",)))


def test_a_missing_ready_program_is_named(ready: Path) -> None:
    add(ready, "here", "here v1")
    with pytest.raises(MissingError, match=rf"not built: gone not in {ready}; add them or unset"):
        locate(ProgramSet("toy", "1", ("here", "gone")))


def test_a_wrong_directory_of_ready_programs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_TESTBED_PROGRAMS", "/no/such/place")
    with pytest.raises(BedError, match="BATON_TESTBED_PROGRAMS names /no/such/place, which is not a directory"):
        locate(kubernetes())


@pytest.mark.parametrize("version", ["v1.36.4", "1.36", "latest", ""])
def test_a_kubernetes_version_has_three_numbers(version: str) -> None:
    with pytest.raises(BedError, match=r"expected three numbers without a leading v, for example 1\.36\.\d"):
        kubernetes(version)


def test_the_error_for_an_unbuilt_kubernetes_version_names_the_build_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BATON_TESTBED_PROGRAMS", raising=False)
    with pytest.raises(MissingError, match=r"`python -m testbed build kubernetes --kubernetes-version 1\.99\.0`"):
        Bed(BedOptions(kubernetes_version="1.99.0"))
