"""What is wrong with an object: rules, the fields they are about, and the sentences that come of both.

Every refusal is a `Rule`: a key and a sentence with gaps. Making one registers it, so that the table in the
documentation can be compared with the code. A sentence names the field, its value and what would be right; where
Volcano's users match on words of Volcano's refusals, those words are in the sentence.

A webhook sees objects before anything has checked their types, so `Field` reads them with suspicion: a value of the
wrong type becomes a finding, and reading goes on with nothing in its place. All findings of an object are told at once.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_LONGEST_VALUE = 80
_SHELL = frozenset("|&;<>$`*\"'")

RULES: dict[str, "Rule"] = {}
"""Every rule by its key, in the order in which they are written down."""


class Rule:
    """One reason to refuse an object. The gaps of the sentence are filled when it applies."""

    def __init__(self, key: str, sentence: str) -> None:
        if key in RULES:
            raise ValueError(f"two rules are called {key!r}")
        self.key = key
        self.sentence = sentence
        RULES[key] = self

    def __repr__(self) -> str:
        return f"Rule({self.key!r})"


class Finding(NamedTuple):
    """A rule that applies, and the sentence it made."""

    rule: Rule
    sentence: str


class Findings:
    """All that is wrong with one object, and what its owner should merely know."""

    def __init__(self) -> None:
        self.refusals: list[Finding] = []
        self.warnings: list[str] = []

    def add(self, rule: Rule, field: "Field", **gaps: object) -> None:
        """Refuse because of a field."""
        filled = {name: str(value) for name, value in gaps.items()}
        self.refusals.append(Finding(rule, rule.sentence.format(field=field.path, value=show(field.value), **filled)))

    def warn(self, sentence: str) -> None:
        """Accept, but say something: kubectl prints it."""
        self.warnings.append(sentence)

    def forgive(self, known: "Findings") -> None:
        """Refuse no change for what was wrong before it: an object from before us, or before a rule, can be changed."""
        self.refusals = [one for one in self.refusals if one not in known.refusals]

    @property
    def keys(self) -> list[str]:
        """The rules that apply, for tests and metrics."""
        return [finding.rule.key for finding in self.refusals]

    def message(self) -> str:
        """Everything in one line, as kubectl shows it."""
        return "; ".join(dict.fromkeys(finding.sentence for finding in self.refusals))


NOT_A_MAPPING = Rule("not-a-mapping", "{field} is {value}, expected a mapping (`key: value` lines)")
NOT_A_LIST = Rule(
    "not-a-list", "{field} is {value}, expected a list: write `{name}: [{example}]`, or one `- ` line per item"
)
NOT_A_NUMBER = Rule("not-a-number", "{field} is {value}, expected a whole number without quotes")
NOT_A_TEXT = Rule("not-a-text", "{field} is {value}, expected text: put it in quotes")


class Field:
    """A value with its path from the object's root; reading it never raises."""

    __slots__ = ("path", "value")

    def __init__(self, path: str, value: Any) -> None:
        self.path = path
        self.value = value

    def __getitem__(self, key: str) -> "Field":
        """A field of this mapping; one that is missing has the value None."""
        value = self.value.get(key) if isinstance(self.value, dict) else None
        if "/" in key or "." in key:
            return Field(f"{self.path}[{key}]", value)
        return Field(f"{self.path}.{key}" if self.path else key, value)

    def __bool__(self) -> bool:
        """Whether something is written there."""
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
        """The items of this list, each a text."""
        return [item.text(findings) for item in self.items(findings)]


def _as_list(name: str, value: object) -> str:
    """What the writer of a bare value probably meant; a line that only a shell understands goes to a shell."""
    if not isinstance(value, str) or not value.strip():
        return "…"
    words = ["sh", "-c", value] if name == "command" and _SHELL.intersection(value) else value.split()
    return ", ".join(json.dumps(word, ensure_ascii=False) for word in words)


def show(value: object) -> str:
    """A value as its writer would recognise it, not longer than a line."""
    if value is None:
        return "not set"
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}…"
