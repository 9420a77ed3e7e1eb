"""What every command shares: formats, quietness, colours.

Conventions: results go to stdout, everything else to stderr. `-o table` is for people and may change between
versions; `-o json` and `-o yaml` are for programs and only grow. `--quiet` leaves out all but results and errors.
Colours appear only on a terminal and never with NO_COLOR. Exit codes: 0 done, 1 failed, 2 wrong usage,
3 something needed is not there.
"""

import enum
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console


class Format(enum.StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[Format, typer.Option("--output", "-o", help="How to write the result.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]


def command_app(**settings: Any) -> typer.Typer:
    """The `app` of a command module: plain help and errors, `-h` as well as `--help`, no completion of its own."""
    return typer.Typer(
        **{
            "rich_markup_mode": None,
            "pretty_exceptions_enable": False,
            "add_completion": False,
            "context_settings": {"help_option_names": ["-h", "--help"]},
            **settings,
        }
    )


def console(*, stderr: bool = False) -> "Console":
    """A console that follows the conventions; rich is imported only where something is drawn."""
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
    """Write a result for people: a plain table without borders, aligned, easy to cut with awk.

    A cell may carry rich markup; text that comes from outside goes through `rich.markup.escape` first.
    """
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.upper(), overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def note(sentence: str, *, quiet: bool = False) -> None:
    """Say something on stderr that is not a result."""
    if not quiet:
        sys.stderr.write(f"{sentence}\n")
