"""The hook on the host: one file per build, written once."""

from pathlib import Path

import pytest

from baton.agent.node import hook_versions
from baton.errors import UnavailableError


def test_the_hook_is_installed_once_per_build_and_older_ones_stay(tmp_path: Path) -> None:
    library = tmp_path / "libbaton.so"
    library.write_bytes(b"one")
    first = hook_versions.install(library, tmp_path / "store")
    inode = first.stat().st_ino
    assert hook_versions.install(library, tmp_path / "store").stat().st_ino == inode, "not written a second time"
    library.write_bytes(b"two")
    second = hook_versions.install(library, tmp_path / "store")
    assert second != first
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")


def test_a_hook_that_cannot_be_installed_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, not a directory")
    (tmp_path / "libbaton.so").write_bytes(b"x")
    with pytest.raises(UnavailableError, match=r"the hook cannot be installed in .*store"):
        hook_versions.install(tmp_path / "libbaton.so", tmp_path / "store")
