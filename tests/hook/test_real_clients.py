"""NVIDIA's own bindings on the simulated driver: the same results with and without the hook, also while turns change."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton import native
from baton.gpu import profiles, simulated
from tests.hook.conftest import ROOT, finish
from tests.lock.daemons import Nursery, nursery

CLIENTS = ["allocation", "copies", "launches", "graphs", "inventory"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a machine with two simulated cards whose time runs fast."""
    directory = tmp_path_factory.mktemp("machine")
    simulated.start([profiles.find("t4")] * 2, directory, time_scale=1000)
    yield simulated.environment(directory)
    simulated.stop(directory, force=True)
