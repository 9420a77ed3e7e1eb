"""The wheel: one for every Python of a platform, with the C libraries inside; a clear sentence without a compiler."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a source distribution holds, without anything that was built here."""
    copy = tmp_path / "checkout"
    for name in ("src", "native"):
        ignore = shutil.ignore_patterns("_native", "__pycache__")
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"],
        cwd=checkout,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_one_wheel_serves_every_python_and_carries_the_libraries(checkout: Path) -> None:
    built = build(checkout)
    assert built.returncode == 0, built.stderr
    (wheel,) = (checkout / "dist").glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "baton/_native/libbaton.so" in names
    assert "baton/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "testbed/")) or name.endswith(".stamp")]


def test_without_a_compiler_the_build_says_so_in_one_sentence(checkout: Path) -> None:
    built = build(checkout, CC="no-such-compiler")
    assert built.returncode != 0
    (line,) = [line for line in built.stderr.splitlines() if "no C compiler" in line]
    assert "tried no-such-compiler" in line
    assert "apt-get install gcc" in line
    assert "Traceback" not in built.stderr


def test_a_c_error_fails_the_build_and_names_the_library(checkout: Path) -> None:
    (checkout / "native" / "hook" / "broken.c").write_text("int broken(void) { return missing; }\n")
    built = build(checkout)
    assert built.returncode != 0
    assert "baton: compiling libbaton.so failed" in built.stderr
    assert not list(checkout.glob("src/baton/_native/libbaton.so"))
