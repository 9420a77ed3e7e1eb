"""The documentation's table of refusals is the code's."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.admission import server  # noqa: F401  # every rule is made when its module is imported
from baton.admission.findings import RULES
from baton.cli.main import app
from tests.admission.test_mutations import BAD_FILES

PAGE = (Path(__file__).parents[2] / "docs" / "operators" / "admission.md").read_text()


def test_every_refusal_is_in_the_table_word_for_word() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", PAGE.split("## Every refusal")[1], re.MULTILINE)
    assert {key: sentence.replace("\\|", "|") for key, sentence in rows} == {
        key: rule.sentence for key, rule in RULES.items()
    }


def test_every_configuration_error_is_in_the_table() -> None:
    table = PAGE.split("## Resource groups")[1].split("## Metrics")[0]
    for _, complaint in BAD_FILES:
        assert complaint in table, complaint


COMMANDS = sorted({words for rule in RULES.values() for words in re.findall(r"`baton ([^`]+)`", rule.sentence)})


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_a_sentence_recommends_is_understood(words: str) -> None:
    """With its placeholders as they are; a word that the command does not know is an error before the help is shown."""
    result = CliRunner().invoke(app, [*words.split(), "--help"])
    assert result.exit_code == 0, result.output
