"""The documentation's table of refusals is the code's."""

import re
from pathlib import Path

from baton.jobs.admission import server  # noqa: F401  # every rule is made when its module is imported
from baton.jobs.admission.findings import RULES
from tests.jobs.admission.test_mutations import BAD_FILES

PAGE = (Path(__file__).parents[3] / "docs" / "admission.md").read_text()


def test_every_refusal_is_in_the_table_word_for_word() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", PAGE.split("## Every refusal")[1], re.MULTILINE)
    assert {key: sentence.replace("\\|", "|") for key, sentence in rows} == {
        key: rule.sentence for key, rule in RULES.items()
    }


def test_every_configuration_error_is_in_the_table() -> None:
    table = PAGE.split("## Resource groups")[1].split("## Metrics")[0]
    for _, complaint in BAD_FILES:
        assert re.search(complaint, table), complaint
