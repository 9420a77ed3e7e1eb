"""The output that all commands share: formats, notes and colours.

Conventions: results go to stdout, everything else to stderr. `-o table` is for people and may change between versions;
`-o json` and `-o yaml` are for programs, and fields are only added. `--quiet` prints only results and errors. Colours
appear only on a terminal and never with NO_COLOR. Exit codes: 0 for success, 1 for failure, 2 for wrong usage, 3 when
a prerequisite is missing.
"""

import enum
import io
import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


class Format(enum.StrEnum):
    """The format of a command's result."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


_GAP = 2
_SENTENCE = 24
"""A cell of several words with more letters than this is a sentence, and its column is never narrower than this."""

FormatOption = Annotated[Format, typer.Option("--output", "-o", help="Output format.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]


def command_app(**settings: Any) -> typer.Typer:
    """The `app` of a command module: plain help and errors, `-h` as well as `--help`, no completion options."""
    return typer.Typer(
        **{
            "rich_markup_mode": None,
            "pretty_exceptions_enable": False,
            "add_completion": False,
            "context_settings": {"help_option_names": ["-h", "--help"]},
            **settings,
        }
    )


def speak_any_locale() -> None:
    """Escape characters that the terminal's encoding lacks, as on stderr, so that they do not end the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> "Console":
    """A console that follows the conventions; rich is imported only when a command draws with it."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() else 200
    return Console(file=stream, highlight=False, soft_wrap=not stream.isatty(), width=wide)


def write_data(value: Any, output: Format) -> None:
    """Write a result for programs, as JSON or YAML; structs become mappings."""
    if output is Format.JSON:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
    else:
        sys.stdout.write(msgspec.yaml.encode(msgspec.to_builtins(value)).decode())


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a result for people: a plain, aligned table without borders, easy to cut with awk.

    On a terminal, sentences wrap within their columns. Names and numbers never wrap, and without a terminal no cell
    does: the terminal itself breaks a long line, as with kubectl.
    A cell may contain rich markup; callers pass text from outside through `rich.markup.escape` first. Rich's own table
    is not used because it takes seconds for a few thousand rows.
    """
    from rich.text import Text

    table = [[Text(column.upper(), "bold") for column in columns]]
    table += [[Text.from_markup(cell, emoji=False) for cell in row] for row in rows]
    out = console()
    widths = _widths(table, out.width if out.is_terminal else None)
    for row in table:
        cells = [
            cell.wrap(out, width) if cell.cell_len > width else [cell] for cell, width in zip(row, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*cells):
            line = Text()
            for part, width in zip(parts, widths, strict=True):
                found = part or Text()
                line.append_text(found).append(" " * (width - found.cell_len + _GAP))
            line.rstrip()
            out.print(line, soft_wrap=True)


def _widths(table: "Sequence[Sequence[Text]]", room: int | None) -> list[int]:
    """The width of each column: that of its widest cell, except that sentences share the room that the others leave."""
    by_column = list(zip(*table, strict=True))
    widths = [max(cell.cell_len for cell in column) for column in by_column]
    if room is None:
        return widths
    sentences = [
        place
        for place, column in enumerate(by_column)
        if widths[place] > _SENTENCE and any(" " in cell.plain for cell in column)
    ]
    left = room - sum(widths) - _GAP * (len(widths) - 1) + sum(widths[place] for place in sentences)
    for number, place in enumerate(sorted(sentences, key=lambda place: widths[place])):
        widths[place] = min(widths[place], max(_SENTENCE, left // (len(sentences) - number)))
        left -= widths[place]
    return widths


def note(sentence: str, *, quiet: bool = False) -> None:
    """Print a sentence that is not a result to stderr."""
    if not quiet:
        sys.stderr.write(f"{sentence}\n")
