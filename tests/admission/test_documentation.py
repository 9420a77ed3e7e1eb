"""The documented refusals equal those in the code."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.admission import server  # noqa: F401  # every rule is made when its module is imported
from baton.admission.findings import RULES
from baton.cli.main import app
from tests.admission.test_mutations import BAD_FILES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "refusals.md").read_text()


def one_line(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def test_every_refusal_is_on_the_page_word_for_word() -> None:
    items = re.findall(r"^- `([a-z-]+)`: (.+(?:\n  .+)*)", PAGE, re.MULTILINE)
    assert {rule: one_line(sentence) for rule, sentence in items} == {
        key: one_line(rule.sentence) for key, rule in RULES.items()
    }


def test_every_configuration_error_is_on_the_page() -> None:
    listed = one_line(PAGE.split("## Resource groups")[1])
    for _, complaint in BAD_FILES:
        assert complaint in listed, complaint


COMMANDS = sorted({words for rule in RULES.values() for words in re.findall(r"`baton ([^`]+)`", rule.sentence)})


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_a_sentence_recommends_is_understood(words: str) -> None:
    """Placeholders are passed as they are. An unknown word is an error before the help is shown."""
    result = CliRunner().invoke(app, [*words.split(), "--help"])
    assert result.exit_code == 0, result.output
