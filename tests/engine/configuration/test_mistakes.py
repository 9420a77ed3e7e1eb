"""Every mistake of a scheduler configuration: the sentence names field, value and remedy, and is in the docs.

The table in docs/operators/policies.md is the list: each of its errors is provoked here and must read as in the table.
"""

import inspect
import re
from pathlib import Path

import pytest

from baton.engine import configuration
from baton.engine.configuration import ConfigurationError
from baton.engine.presets import configured

PAGE = (Path(__file__).parents[3] / "docs" / "operators" / "policies.md").read_text()
TIERS = "\ntiers: [{plugins: [{name: gang}]}]"
ALLOCATE = "actions: allocate\n"

MISTAKES = {
    "- allocate": "is ['allocate']: expected a mapping with actions and tiers",
    f"actions: [allocate]{TIERS}": "actions is ['allocate']: expected a string such as \"enqueue, allocate, backfill\"",
    f"actions: enqueue, alocate{TIERS}": "actions[1] 'alocate' is not an action (did you mean 'allocate'?); known: ",
    f"{ALLOCATE}tiers: gang": "tiers is 'gang': expected a list, each with `plugins:`",
    f"{ALLOCATE}tiers: [{{plugins: gang}}]": "tiers[0].plugins is 'gang': expected a list such as `- name: gang`",
    f"{ALLOCATE}tiers: [{{plugins: [gang]}}]": "tiers[0].plugins[0] is 'gang': expected the name of a plugin,"
    " as in `- name: gang`",
    f"{ALLOCATE}tiers: [{{plugins: [{{name: gang}}, {{name: gang}}]}}]": "tiers[0].plugins[1].name 'gang' is already"
    " configured at tiers[0].plugins[0]; keep one of the two",
    f"{ALLOCATE}tiers: [{{plugins: [{{name: gang, enableJobOrder: perhaps}}]}}]": "tiers[0].plugins[0].enableJobOrder"
    " is 'perhaps': expected true or false",
    f"{ALLOCATE}tiers: [{{plugins: [{{name: binpack, arguments: [3]}}]}}]": "tiers[0].plugins[0].arguments is [3]:"
    " expected a mapping of arguments to values",
    f"{ALLOCATE}tiers: [{{plugins: [{{name: binpack, arguments: {{binpack.weight: heavy}}}}]}}]": "tiers[0].plugins[0]"
    ".arguments.binpack.weight is 'heavy': expected `int`, got `str`",
    f"{ALLOCATE}tiers: [{{plugins: [{{name: capacity}}, {{name: proportion}}]}}]": "tiers: proportion and capacity both"
    " set what a queue deserves; keep one of them",
    f"{ALLOCATE}tiers: [{{plugins: [{{name: drf, enableHierarchy: true}}, {{name: proportion}}]}}]": "tiers[0] has"
    " drf with enableHierarchy and proportion, which conflict; keep one of them",
    f"{ALLOCATE}configurations: preempt{TIERS}": "configurations is 'preempt': expected a list, each with the name of"
    " an action",
    f"{ALLOCATE}configurations: [preempt]{TIERS}": "configurations[0] is 'preempt': expected the name of an action,"
    " as in `- name: preempt`",
    f"{ALLOCATE}configurations: [{{name: preempt, arguments: 3}}]{TIERS}": "configurations[0].arguments is 3: expected"
    " a mapping of arguments to values",
    f"{ALLOCATE}metrics: prometheus{TIERS}": "metrics is 'prometheus': expected a mapping such as"
    " {type: prometheus, address: URL}",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_named_with_its_value_and_a_remedy_as_the_docs_say(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configured(f"{text}\n")
    (problem,) = caught.value.problems
    assert MISTAKES[text] in problem
    assert MISTAKES[text] in PAGE


def test_every_mistake_is_listed_here() -> None:
    """As many as the reader reports; problems found by plugins in their arguments, and YAML errors, are extra."""
    source = inspect.getsource(configuration._Reader)
    reported = len(re.findall(r"self\.problems\.append\(|raise ConfigurationError\(\[", source))
    assert reported == len(MISTAKES)
