"""The log: one line for each event, and no exception when a line cannot be written."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from baton.observe import logs


@pytest.fixture(autouse=True)
def configuration_of_the_other_tests() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_of_json_holds_time_level_and_event(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        logs.set_up(stream, as_json=True)
        structlog.get_logger().info("pod bound", pod="ml/train-0", odd="\ud800")
        structlog.get_logger().debug("a detail")
    (line,) = path.read_text().splitlines()
    written = json.loads(line)
    assert {key: written[key] for key in ("level", "event", "pod")} == {
        "level": "info",
        "event": "pod bound",
        "pod": "ml/train-0",
    }
    assert written["timestamp"].endswith("Z")


def test_details_are_logged_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        logs.set_up(stream, verbose=True)
        structlog.get_logger().debug("a detail")
    assert "a detail" in path.read_text()


def test_a_full_disk_costs_the_line_and_nothing_else() -> None:
    with open("/dev/full", "w") as stream:
        logs.set_up(stream)
        structlog.get_logger().error("lost")


def test_a_reader_that_went_away_costs_the_line_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        logs.set_up(stream)
        structlog.get_logger().error("lost")


def test_a_stream_that_was_closed_costs_the_line_and_nothing_else(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        logs.set_up(stream)
    structlog.get_logger().error("lost")
