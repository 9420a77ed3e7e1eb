"""Fixtures: a new machine for each test, stopped at the end of the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu import machines


@pytest.fixture
def make_machine(tmp_path: Path) -> Iterator[Callable[..., machines.Machine]]:
    made: list[machines.Machine] = []

    def make(*settings: str, libraries: Path | None = None) -> machines.Machine:
        machine = machines.create(tmp_path / f"machine-{len(made)}", *settings, libraries=libraries)
        made.append(machine)
        return machine

    yield make
    for machine in made:
        if (machine.directory / "machine").exists():
            machine.stop()


@pytest.fixture
def machine(make_machine: Callable[..., machines.Machine]) -> machines.Machine:
    """Two small cards."""
    return make_machine("cards=2", f"*.memory_bytes={1 << 30}", "*.time_scale=10")
