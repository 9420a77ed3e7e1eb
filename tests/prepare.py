"""`python -m tests.prepare [TESTS…]`: makes ready what the chosen tests need, and nothing that they do not.

Tests marked `process` need the compiled libraries; tests marked `cluster` also need the programs and Debian packages of
the test bed. Collecting the tests tells which are among the chosen ones; the whole suite has both.
"""

import contextlib
import io
import subprocess
import sys

import pytest


class _Markers:
    """Notes which markers the collected tests carry."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.seen = {marker.name for item in session.items for marker in item.iter_markers()}


def needs(arguments: list[str]) -> set[str]:
    """The markers of the tests that pytest would run with these arguments."""
    markers = _Markers()
    with contextlib.redirect_stdout(io.StringIO()):
        # A mistake in the arguments or in a test file is reported by the run that follows.
        pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *arguments], plugins=[markers])
    return markers.seen


def main(arguments: list[str]) -> int:
    found = {"process", "cluster"} if arguments == ["tests"] else needs(arguments)
    steps = []
    if found & {"process", "cluster"}:
        steps.append(["native/build.py"])
    if "cluster" in found:
        steps += [["-m", "testbed", "packages"], ["-m", "testbed", "build"]]
    for step in steps:
        if code := subprocess.run([sys.executable, *step], check=False, stdout=subprocess.DEVNULL).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
