"""Every setting of the scheduler: an option, a line in the docs with that default, and a sentence when it is bad."""

import inspect
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from baton.cli.programs.scheduler import app, scheduler
from baton.errors import UsageError
from baton.scheduler.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "operators" / "scheduler.md"
NUMBERS = [field.name for field in msgspec.structs.fields(Settings) if isinstance(field.default, int | float)]
ZERO_IS_ALLOWED = {"window_s", "qps"}


def option(name: str) -> str:
    return name.removesuffix("_s").replace("_", "-")


def documented() -> dict[str, str]:
    """The table of settings: option to default, as written."""
    table = PAGE.read_text().partition("## Settings")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for options, defaults, why in re.findall(r"^\| (`--.+?) \| (.+?) \| (.+) \|$", table, re.MULTILINE):
        assert len(why) > 10
        found.update(zip(re.findall(r"`--([a-z-]+)`", options), defaults.split(", "), strict=True))
    return found


@pytest.mark.parametrize("name", NUMBERS)
def test_a_setting_has_an_option_and_a_line_in_the_docs_with_its_default(name: str) -> None:
    default = getattr(Settings(), name)
    assert float(documented()[option(name)].rpartition(" ")[2]) == default
    given = inspect.signature(scheduler).parameters[name.removesuffix("_s")].default
    assert given in (default, None)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("bad", [-1, 0, math.nan, math.inf])
def test_a_setting_that_cannot_work_is_refused_by_name_and_value(name: str, bad: float) -> None:
    settings = msgspec.structs.replace(Settings(), **{name: bad})
    if bad == 0 and name in ZERO_IS_ALLOWED:
        settings.check()
        return
    with pytest.raises(UsageError, match=rf"^--{option(name)} is {bad}, expected "):
        settings.check()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"scheduler_names": ()}, "--scheduler-name is empty, expected at least one name"),
        (
            {"retry_first_s": 9.0, "retry_longest_s": 3.0},
            "--retry-longest is 3.0, expected at least --retry-first, 9.0",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Settings(**given).check()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--lease", "nowhere"], "--lease is 'nowhere', expected NAMESPACE/NAME"),
        (["--lease-duration", "1"], "--lease-duration is 1, expected at least 3 seconds"),
        (["--lease-duration", "-1"], "--lease-duration is -1, expected at least 3 seconds"),
        (["--cycle-limit", "11"], "--cycle-limit is 11, expected less than two thirds of --lease-duration, 15"),
        (["--config", "a", "--config-map", "b/c"], "--config and --config-map were both given"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused_in_a_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        CliRunner().invoke(app, words, catch_exceptions=False)
