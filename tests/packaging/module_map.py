"""The map in docs/architecture.md: one line for each module. `make map` brings it up to date.

A line that is there stays as it is written. A new module gets the first sentence of its docstring, and the line of a
module that is gone goes.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "baton"
PAGE = ROOT / "docs" / "architecture.md"
HEADING = "## The map\n"
WIDTH = 120

ROOM = re.compile(r"^### `([a-z_/]+)`: (.+)$", re.MULTILINE)
MODULE = re.compile(r"^- `([a-z_0-9]+)`: (.+(?:\n  .+)*)", re.MULTILINE)


def modules() -> dict[str, str]:
    """Folders and modules by their paths, such as `engine/plan`, with the first sentence of their docstrings."""
    found: dict[str, str] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        if path.stem.endswith("_pb2") or path == SOURCES / "__init__.py":
            continue
        place = path.parent if path.stem == "__init__" else path.with_suffix("")
        first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
        found[place.relative_to(SOURCES).as_posix()] = " ".join(first.split()).rstrip(".")
    return found


def is_room(name: str) -> bool:
    """Whether this is a folder."""
    return (SOURCES / name).is_dir()


def mapped(page: str) -> dict[str, str]:
    """The folders and modules on the page, with what it says of them."""
    found: dict[str, str] = {}
    _, *rooms = re.split(r"^(?=### )", page.partition(HEADING)[2], flags=re.MULTILINE)
    for section in rooms:
        heading = ROOM.search(section)
        if heading is None:
            raise ValueError(f"{PAGE.name}: {section.splitlines()[0]!r} is no heading of a folder")
        room = heading[1]
        if room != "baton":
            found[room] = heading[2]
        for name, text in MODULE.findall(section):
            found[name if room == "baton" else f"{room}/{name}"] = " ".join(text.split())
    return found


def drawn(said: Mapping[str, str]) -> str:
    """The lists of the map."""
    lines: list[str] = []
    rooms = sorted(name for name in said if is_room(name))
    for room in ("baton", *rooms):
        lines += ["", f"### `{room}`: {said.get(room, 'the package')}", ""]
        inside = room if room != "baton" else "."
        for name in sorted(said):
            if not is_room(name) and Path(name).parent.as_posix() == inside:
                lines += wrapped(f"- `{Path(name).name}`: {said[name]}")
    return "\n".join(lines) + "\n"


def wrapped(item: str) -> Iterable[str]:
    """A list item on lines that are not too long."""
    line, *rest = item.split(" ")
    for word in rest:
        if len(line) + 1 + len(word) > WIDTH:
            yield line
            line = f"  {word}"
        else:
            line += f" {word}"
    yield line


def main() -> None:
    page = PAGE.read_text()
    written = mapped(page)
    said = {name: written.get(name, first) for name, first in modules().items()}
    before, heading, rest = page.partition(HEADING)
    introduction = rest.partition("\n### ")[0].rstrip("\n")
    PAGE.write_text(before + heading + introduction + "\n" + drawn(said))


if __name__ == "__main__":
    main()
