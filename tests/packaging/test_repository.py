"""What a newcomer meets first: the targets of the Makefile, and the image."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.process
def test_make_help_lists_the_jobs() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in shown.stdout.splitlines()}
    assert listed >= {"setup", "demo", "test", "lint", "bench", "docs", "clean"}


def test_the_lock_file_names_no_registry() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()


def instructions(word: str) -> list[str]:
    """The Dockerfile's lines of this kind, without the word."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.removeprefix(word).strip() for line in text.splitlines() if line.startswith(f"{word} ")]


def test_the_image_is_built_from_files_that_are_there_and_not_left_out() -> None:
    sources = {name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]}
    assert sources
    assert {name for name in sources if not (ROOT / name).exists()} == set()
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == kept


def test_the_image_uses_the_same_tools_as_the_makefile() -> None:
    (version,) = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line for line in instructions("RUN") if f"uv=={version}" in line]
    assert len({line.split()[0] for line in instructions("FROM")}) == 1, "the packages are for the Python that runs"


def test_the_image_starts_as_the_user_of_the_manifests() -> None:
    (user,) = instructions("USER")
    for name in ("scheduler", "controller", "admission"):
        text = (ROOT / "src/baton/install/manifests" / f"{name}.yaml").read_text()
        assert re.findall(r"runAs(?:User|Group): (\d+)", text) == user.split(":")
    assert instructions("ENTRYPOINT") == ['["baton"]']
