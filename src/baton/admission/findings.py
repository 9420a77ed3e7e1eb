"""Mistakes in an object: rules, the fields that break them, and the resulting sentences.

Every refusal is a `Rule`: a key and a sentence with placeholders. Rules are registered, so that the page of refusals
can be compared with the code. A sentence names the field, its value and what is expected. It contains the words of
Volcano's refusal where users match on them.

A webhook sees objects before their types are checked, so `Field` is careful: a value of the wrong type becomes a
finding, and reading continues as if it were not set. All findings of an object are reported at once.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_LONGEST_VALUE = 80
_SHELL = frozenset("|&;<>$`*\"'")

RULES: dict[str, "Rule"] = {}
"""Every rule by its key, in the order of definition."""


class Rule:
    """One reason to refuse an object. The placeholders of the sentence are filled when it applies."""

    def __init__(self, key: str, sentence: str) -> None:
        if key in RULES:
            raise ValueError(f"two rules are called {key!r}")
        self.key = key
        self.sentence = sentence
        RULES[key] = self

    def __repr__(self) -> str:
        return f"Rule({self.key!r})"


class Finding(NamedTuple):
    """A broken rule and its sentence."""

    rule: Rule
    sentence: str


class Findings:
    """All mistakes in one object, and warnings for its owner."""

    def __init__(self) -> None:
        self.refusals: list[Finding] = []
        self.warnings: list[str] = []

    def add(self, rule: Rule, field: "Field", **gaps: object) -> None:
        """Refuse because of a field."""
        filled = {name: str(value) for name, value in gaps.items()}
        self.refusals.append(Finding(rule, rule.sentence.format(field=field.path, value=show(field.value), **filled)))

    def warn(self, sentence: str) -> None:
        """Accept with a warning, which kubectl prints."""
        self.warnings.append(sentence)

    def forgive(self, known: "Findings") -> None:
        """Drop the findings that the object had before a change, so that objects older than a rule can be changed."""
        self.refusals = [one for one in self.refusals if one not in known.refusals]

    @property
    def keys(self) -> list[str]:
        """The keys of the broken rules, for tests and metrics."""
        return [finding.rule.key for finding in self.refusals]

    def message(self) -> str:
        """All sentences in one line, as kubectl shows them."""
        return "; ".join(dict.fromkeys(finding.sentence for finding in self.refusals))


NOT_A_MAPPING = Rule("not-a-mapping", "{field} is {value}, expected a mapping (`key: value` lines)")
NOT_A_LIST = Rule(
    "not-a-list", "{field} is {value}, expected a list: write `{name}: [{example}]`, or one `- ` line per item"
)
NOT_A_NUMBER = Rule("not-a-number", "{field} is {value}, expected a whole number without quotes")
NOT_A_TEXT = Rule("not-a-text", "{field} is {value}, expected text: put it in quotes")


class Field:
    """A value with its path from the root of the object. Reading it never raises."""

    __slots__ = ("path", "value")

    def __init__(self, path: str, value: Any) -> None:
        self.path = path
        self.value = value

    def __getitem__(self, key: str) -> "Field":
        """A field of this mapping. A missing one has the value None."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        if "/" in key or "." in key:
            return Field(f"{self.path}[{key}]", value)
        return Field(f"{self.path}.{key}" if self.path else key, value)

    def __bool__(self) -> bool:
        """Whether the field is set."""
        return self.value is not None

    def mapping(self, findings: Findings) -> dict[str, Any]:
        if isinstance(self.value, dict):
            return self.value
        if self.value is not None:
            findings.add(NOT_A_MAPPING, self)
        return {}

    def fields(self, findings: Findings) -> Iterator[tuple[str, "Field"]]:
        """Keys and values of this mapping."""
        for key in self.mapping(findings):
            yield key, self[key]

    def items(self, findings: Findings) -> list["Field"]:
        """The items of this list."""
        if isinstance(self.value, list):
            return [Field(f"{self.path}[{place}]", item) for place, item in enumerate(self.value)]
        if self.value is not None:
            name = self.path.rpartition(".")[2]
            findings.add(NOT_A_LIST, self, name=name, example=_as_list(name, self.value))
        return []

    def number(self, findings: Findings) -> int | None:
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return self.value
        if self.value is not None:
            findings.add(NOT_A_NUMBER, self)
        return None

    def text(self, findings: Findings) -> str:
        if isinstance(self.value, str):
            return self.value
        if self.value is not None:
            findings.add(NOT_A_TEXT, self)
        return ""

    def texts(self, findings: Findings) -> list[str]:
        """The items of this list of texts."""
        return [item.text(findings) for item in self.items(findings)]


def _as_list(name: str, value: object) -> str:
    """The list that the author of a bare value probably meant. A line with shell syntax becomes a shell command."""
    if not isinstance(value, str) or not value.strip():
        return "…"
    words = ["sh", "-c", value] if name == "command" and _SHELL.intersection(value) else value.split()
    return ", ".join(json.dumps(word, ensure_ascii=False) for word in words)


def show(value: object) -> str:
    """A value in the notation of its author, shortened to a line."""
    if value is None:
        return "not set"
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}…"
