"""Reading a YAML document into typed structs with every mistake reported at once, each with its line.

`msgspec` stops at the first mistake. Here each field of each struct is converted separately, so that a wrong number in
one resource does not hide a misspelt name in the next. The caller checks rules that concern several fields, and adds
`Mistake`s under the same field paths; all are reported in the order of the file.
"""

import enum
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from baton.errors import BatonError
from baton.model.suggestions import did_you_mean

T = TypeVar("T", bound=msgspec.Struct)


class DocumentError(BatonError):
    """A document cannot be used; the text lists every mistake."""


class Mistake(msgspec.Struct, frozen=True):
    """One mistake: where, as a path such as `resources[0].replicas`, and what."""

    field: str
    what: str


class Document:
    """The text of one file, parsed: plain values, the line of every field, and the mistakes found so far."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.mistakes: list[Mistake] = []
        try:
            node = yaml.compose(text, yaml.SafeLoader)
            self.value: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" line {mark.line + 1}:" if mark else ""
            problem = getattr(error, "problem", None) or " ".join(str(error).split())
            raise DocumentError(f"{source} is not YAML:{where} {problem}") from None
        except ValueError as error:
            # The text looks like a date or a number, but is not a valid one, such as 2026-13-01.
            raise DocumentError(f"{source} has a value that YAML cannot read: {error}; put it in quotes") from None
        except RecursionError:
            raise DocumentError(f"{source} is nested too deeply") from None
        if self.value is None:
            self.value = {}
        if not isinstance(self.value, dict):
            raise DocumentError(f"{source} must be a mapping of fields, got {_kind(self.value)}")
        self._lines: dict[str, int] = {}
        if node is not None:
            self._note_lines(node, "", set())

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Parse the file at `path`."""
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise DocumentError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise DocumentError(f"{path} is not UTF-8 text") from None

    def convert(self, kind: type[T]) -> T | None:
        """The whole document as `kind`; None if there are mistakes, which `close` then raises."""
        return typing.cast("T | None", self._struct(kind, self.value, ""))

    def mistake(self, field: str, what: str) -> None:
        """Add a mistake that only the caller can detect."""
        self.mistakes.append(Mistake(field, what))

    def close(self) -> None:
        """Raise `DocumentError` with all mistakes in the order of the file, if there are any."""
        if not self.mistakes:
            return
        ordered = sorted(self.mistakes, key=lambda mistake: self._line(mistake.field) or 0)
        listed = []
        for mistake in ordered:
            line = self._line(mistake.field)
            listed.append(f"\n  {f'line {line}: ' if line else ''}{mistake.field} {mistake.what}".rstrip())
        count = f"{len(listed)} mistakes" if len(listed) != 1 else "a mistake"
        raise DocumentError(f"{self.source} has {count}:{''.join(listed)}")

    def _line(self, field: str) -> int | None:
        """The line of a field, or of the nearest field around it that is in the file."""
        while field and field not in self._lines:
            cut = max(field.rfind("."), field.rfind("["))
            field = field[:cut] if cut > 0 else ""
        return self._lines.get(field)

    def _note_lines(self, node: yaml.Node, path: str, seen: set[int]) -> None:
        """Visit each node once: an alias may lead back to its own place, or to the same list a million times."""
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below = f"{path}.{key.value}" if path else str(key.value)
                self._lines[below] = key.start_mark.line + 1
                self._note_lines(value, below, seen)
        elif isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._lines[f"{path}[{number}]"] = item.start_mark.line + 1
                self._note_lines(item, f"{path}[{number}]", seen)

    def _struct(self, kind: type[msgspec.Struct], value: Any, path: str) -> msgspec.Struct | None:
        if not isinstance(value, dict):
            self.mistake(path, f"must be a mapping of fields, got {_kind(value)}")
            return None
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        before = len(self.mistakes)
        for key in value:
            if key not in fields:
                hint = did_you_mean(str(key), fields) or f"there are {', '.join(fields)}"
                self.mistake(_join(path, key), f"is not a field here; {hint}")
        converted: dict[str, Any] = {}
        for name, field in fields.items():
            if name in value:
                converted[field.name] = self._value(hints[field.name], value[name], _join(path, name))
            elif field.required:
                self.mistake(_join(path, name), "is missing")
        return kind(**converted) if len(self.mistakes) == before else None

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        origin, arguments = typing.get_origin(bare), typing.get_args(bare)
        if origin in (types.UnionType, typing.Union) and type(None) in arguments:
            if value is None:
                return None
            rest = [argument for argument in arguments if argument is not type(None)]
            if len(rest) == 1:
                return self._value(rest[0], value, path)
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            return self._struct(bare, value, path)
        if origin is tuple and arguments[-1] is Ellipsis and _holds_structs(arguments[0]):
            if not isinstance(value, list):
                self.mistake(path, f"must be a list, got {_kind(value)}")
                return None
            return tuple(self._value(arguments[0], item, f"{path}[{number}]") for number, item in enumerate(value))
        if isinstance(bare, type) and issubclass(bare, enum.Enum):
            allowed = [str(member.value) for member in bare]
            if value not in allowed:
                guess = did_you_mean(str(value), allowed, lead="; ")
                self.mistake(path, f"is {value!r}: expected one of {', '.join(allowed)}{guess}")
                return None
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            # msgspec appends the place within the value, which only adds to this path for lists.
            self.mistake(path, f"is {value!r}: {_lower(str(error))}")
            return None


def _holds_structs(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
