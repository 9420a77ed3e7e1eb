"""`baton version`: the versions of Baton, its native libraries and Python."""

import ctypes
import platform

import msgspec
import typer

from baton import __version__
from baton.cli.output import Format, FormatOption, command_app, write_data
from baton.errors import UnavailableError
from baton.native import library

app = command_app()


class Version(msgspec.Struct):
    """The installed versions."""

    baton: str
    hook: str | None
    python: str
    platform: str


def hook_version() -> str | None:
    """The version that the preload library reports; None when it is not built."""
    try:
        hook = ctypes.CDLL(str(library("libbaton.so")))
    except (UnavailableError, OSError):
        return None
    hook.baton_hook_version.restype = ctypes.c_char_p
    return str(hook.baton_hook_version().decode())


@app.command()
def version(output: FormatOption = Format.TABLE) -> None:
    """Show the version of Baton and of its native libraries."""
    found = Version(__version__, hook_version(), platform.python_version(), platform.platform(terse=True))
    if output is Format.TABLE:
        hook = found.hook or "not built"
        typer.echo(f"baton {found.baton} (hook {hook}, Python {found.python}, {found.platform})")
    else:
        write_data(found, output)
