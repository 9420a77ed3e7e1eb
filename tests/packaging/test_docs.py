"""The documents: links and commands exist, the map is complete, facts are true, lines are not too long."""

import inspect
import re
import shlex
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
import yaml
from typer._click.core import Command
from typer.core import TyperGroup

from baton.agent import config as agent_config
from baton.cli import main as baton
from baton.cli.vcctl.verbs import NOUNS
from baton.engine.framework import Plugin
from baton.lock.core import settings as lock_settings
from bench import __main__ as bench
from testbed import __main__ as testbed
from tests.packaging import module_map

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *PAGES])
EACH_DOCUMENT = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
WIDTH = 120


def lines(document: Path) -> Iterator[tuple[int, str, str]]:
    """Every line with its number and what it is: text, table or the language of its code block."""
    fence = ""
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if line.startswith("```"):
            fence = "" if fence else line.removeprefix("```") or "code"
        elif fence:
            yield number, line, fence
        elif line.startswith("    "):
            yield number, line.strip(), "sh"
        else:
            yield number, line, "table" if line.startswith("|") else "text"


# Links


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@cache
def anchors(document: Path) -> frozenset[str]:
    return frozenset(
        slug(line.lstrip("#")) for _, line, kind in lines(document) if kind == "text" and line.startswith("#")
    )


@EACH_DOCUMENT
def test_links_lead_to_a_file_and_a_heading_that_exist(document: Path) -> None:
    text = "\n".join(line for _, line, kind in lines(document) if kind in ("text", "table"))
    for path, anchor in re.findall(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name} links to {path}"
        assert not anchor or anchor in anchors(target), f"{document.name} links to {path}#{anchor}"


def test_every_page_is_in_the_navigation() -> None:
    def pages(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            yield from pages(inner)

    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages(navigation)) == [str(path.relative_to(ROOT / "docs")) for path in PAGES]


# Commands

SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
VALUE = re.compile(r"[A-Z…{<\[]")
"""How a word begins that stands for others."""


def code(document: Path) -> Iterator[str]:
    """Every line of shell, and every piece of code in the text."""
    text: list[str] = []
    for _, line, kind in lines(document):
        if kind in ("sh", "console"):
            yield line.removeprefix("$ ")
        elif kind in ("text", "table"):
            text.append(line)
    for _, span in SPAN.findall("\n".join(text).replace("\\|", "|")):
        yield " ".join(span.split())


def commands(document: Path, *names: str) -> Iterator[list[str]]:
    """The words after each call of one of these, up to the end of the command."""
    for line in code(document):
        bare = re.sub(r"""["']?\$\(|\)["']?""", " ", line)
        for part in re.split(r"&&|;|\s\|\s|\s#\s|\s>\s", bare):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                words = part.split()
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                del words[0]
            for name in names:
                head = name.split()
                if words[: len(head)] == head:
                    yield words[len(head) :]


@cache
def baton_command(name: str) -> Command:
    """A command of `baton`, with its sub-commands; an error names those that there are."""
    root = typer.main.get_command(baton.app)
    assert isinstance(root, TyperGroup)
    _, command, _ = root.resolve_command(root.make_context("baton", [name], resilient_parsing=True), [name])
    assert isinstance(command, Command)
    return command


def check_words(command: Command, words: list[str], shown: str) -> None:
    """Sub-commands and options of a call exist; values are not looked at."""
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-") and not VALUE.match(words[0]):
        choices = words.pop(0).split("|")
        unknown = [name for name in choices if name not in command.commands]
        assert not unknown, f"`{shown}`: there is no {unknown[0]!r}; there are {', '.join(command.commands)}"
        command = command.commands[choices[0]]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h"}
    for word in words[: words.index("--")] if "--" in words else words:
        if re.match(r"--?[a-z]", word):
            assert word.split("=")[0] in known, f"`{shown}`: there is no option {word!r}"


@EACH_DOCUMENT
def test_commands_of_baton_exist(document: Path) -> None:
    for words in commands(document, "baton"):
        shown = " ".join(["baton", *words])
        if words and not words[0].startswith("-") and not VALUE.match(words[0]):
            check_words(baton_command(words[0]), words[1:], shown)


@EACH_DOCUMENT
def test_commands_of_vcctl_exist(document: Path) -> None:
    for words in commands(document, "vcctl"):
        if words:
            assert words[0] in NOUNS, f"`vcctl {' '.join(words)}`"
            assert all(word in NOUNS[words[0]].verbs for word in words[1:2])


@EACH_DOCUMENT
def test_targets_of_the_makefile_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for words in commands(document, "make"):
        for word in words:
            name, assigned, _ = word.partition("=")
            kind = r"^{} [?:]?=" if assigned else r"^{}:"
            known = re.search(kind.format(name), makefile, re.MULTILINE)
            assert known or (VALUE.match(word) and not assigned), name


@EACH_DOCUMENT
def test_benchmarks_and_beds_are_called_as_they_are(document: Path) -> None:
    for words in commands(document, "python -m bench"):
        named = {word for word in words if not word.startswith("-") and not VALUE.match(word)}
        assert named <= set(bench.names()), f"python -m bench {' '.join(words)}"
    beds = typer.main.get_command(testbed.app)
    for words in commands(document, "python -m testbed"):
        check_words(beds, words, f"python -m testbed {' '.join(words)}")


def test_commands_are_found_in_the_documents() -> None:
    """The readers above see what they are for."""
    found = [words for document in DOCUMENTS for words in commands(document, "baton")]
    assert ["why", "train"] in found
    assert ["simgpu", "start"] in found
    assert len(found) > 100
    assert ["scheduler_throughput"] in [
        words for document in DOCUMENTS for words in commands(document, "python -m bench")
    ]


@EACH_DOCUMENT
def test_environment_variables_exist(document: Path) -> None:
    for name in {name for line in code(document) for name in re.findall(r"\bBATON_[A-Z_]+\b", line)}:
        assert name in known_variables(), f"{document.name} names {name}"


@cache
def known_variables() -> frozenset[str]:
    sources = [path for folder in ("src", "native", "bench", "tests", "testbed") for path in (ROOT / folder).rglob("*")]
    texts = (path.read_text() for path in sources if path.suffix in (".py", ".c", ".h"))
    return frozenset(name for text in texts for name in re.findall(r"\bBATON_[A-Z_]+\b", text))


# The map


def test_every_module_is_on_the_map_and_nothing_else() -> None:
    mapped, modules = module_map.mapped(module_map.PAGE.read_text()), module_map.modules()
    assert mapped, "no map"
    assert sorted(set(modules) - set(mapped)) == [], "missing on the map; `make map` adds them"
    assert sorted(set(mapped) - set(modules)) == [], "on the map, but not in src/baton; `make map` removes them"


def test_modules_that_the_architecture_names_exist() -> None:
    text = module_map.PAGE.read_text().partition(module_map.HEADING)[0]
    named = set(re.findall(r"`([a-z_/]+/[a-z_]+(?:\.[a-z]+)?)`", text))
    assert len(named) > 30
    for name in named:
        places = (module_map.SOURCES / name, module_map.SOURCES / f"{name}.py", ROOT / name)
        assert any(place.exists() for place in places), name


# Facts


def test_documented_metrics_exist_with_these_labels() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    metrics = [line.split(" ") for line in (ROOT / "tests" / "observe" / "metrics.txt").read_text().splitlines()]
    real = {name: set(labels[0].split(",")) if labels else set() for _, name, _, *labels in metrics}
    documented = re.findall(r"`((?:baton|volcano)_[a-z_]+)(?:\{([a-z_,]+)\})?`", page)
    assert len(documented) > 60
    for name, labels in documented:
        known = real.get(name.removesuffix("_total"))
        assert known is not None, name
        assert not labels or set(labels.split(",")) == known, name


def test_every_hook_of_a_plugin_is_documented() -> None:
    section = (ROOT / "docs/contributors/engine.md").read_text().partition("\n## A plugin\n")[2].partition("\n## ")[0]
    documented = {
        name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall("`(.+?)`", row)
    }
    assert documented == {
        name for name in vars(Plugin) if inspect.isfunction(vars(Plugin)[name]) and not name.startswith("_")
    }


def table(page: str, first: str) -> Iterator[tuple[str, str]]:
    """The first two cells of the rows of the table whose head begins with this word."""
    text = (ROOT / "docs" / page).read_text()
    rows = text.partition(f"| {first} | default | meaning |\n|---|---|---|\n")[2].partition("\n\n")[0]
    for row in rows.splitlines():
        names, defaults, *_ = (cell.strip() for cell in row.strip("|").split("|"))
        yield from zip(re.findall(r"`([^`]+)`", names), defaults.replace("`", "").split(", "), strict=False)


def test_the_documented_defaults_of_the_lock_are_the_real_ones() -> None:
    documented = dict(table("machine/daemon.md", "setting"))
    assert len(documented) >= 10
    for name, value in documented.items():
        default = getattr(lock_settings.Settings(), name)
        assert value == ("measured" if default is None else f"{default:g}" if isinstance(default, float) else default)


def test_the_documented_defaults_of_the_agent_are_the_real_ones() -> None:
    documented = dict(table("operators/agent.md", "field"))
    numbers = {name: value for name, value in documented.items() if re.fullmatch(r"(health|lock)\.\S+", name)}
    assert len(numbers) >= 6
    for name, value in numbers.items():
        section, _, field = name.partition(".")
        default = getattr(getattr(agent_config.AgentConfig(), section), field.replace("-", "_"))
        assert value == (f"{default:g}" if isinstance(default, int | float) else "none"), name


# The form


def width(line: str) -> int:
    """In columns: a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in line)


@EACH_DOCUMENT
def test_lines_are_wrapped_and_cells_hold_facts(document: Path) -> None:
    for number, line, kind in lines(document):
        place = f"{document.relative_to(ROOT)}:{number}"
        if kind == "table":
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            assert max(map(width, cells)) <= WIDTH, f"{place} has a cell of more than {WIDTH} characters; write a list"
        elif kind == "text" and not line.startswith("!["):
            unbroken = max((width(word) for word in line.split()), default=0)
            assert width(line) <= WIDTH or unbroken > WIDTH - 20, f"{place} is {width(line)} columns wide"
