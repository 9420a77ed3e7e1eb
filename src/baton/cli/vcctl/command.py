"""`vcctl`: the verbs, flags and output of Volcano's own command, for scripts that use it.

Volcano's end-to-end suite compares the help of `vcctl`, of `vcctl job` and of its verbs list, run, suspend and resume,
and the lists of jobs, character by character, so these are identical; all other help is Baton's. `baton job`,
`baton queue` and `baton pod` are the better interface to the same operations.
Failures go to standard output as `Failed to VERB NOUN: …` with exit code 255; usage errors go to standard error with
exit code 1. Scripts tell them apart by this.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from baton.cli.output import speak_any_locale
from baton.errors import BatonError

if TYPE_CHECKING:
    from baton.cli.cluster.requests import Cluster

Values = dict[str, Any]


class Flag(NamedTuple):
    """One flag; its default determines its type."""

    name: str
    letter: str
    default: str | int | bool
    help: str
    metavar: str = ""

    def kind(self) -> str:
        """The name of its type in the help."""
        if self.metavar or isinstance(self.default, bool):
            return self.metavar
        return "int" if isinstance(self.default, int) else "string"

    def line(self) -> tuple[str, str]:
        """Its two columns in the help."""
        letter = f"-{self.letter}, " if self.letter else "    "
        kind = f" {self.kind()}" if self.kind() else ""
        shown = f'"{self.default}"' if isinstance(self.default, str) else str(self.default)
        told = f"{self.help} (default {shown})" if self.default else self.help
        return f"  {letter}--{self.name}{kind}", told

    def value(self, text: str) -> str | int:
        """The value that the user gave."""
        if isinstance(self.default, str):
            return text
        try:
            return int(text)
        except ValueError:
            called = f"-{self.letter}, --{self.name}" if self.letter else f"--{self.name}"
            raise _NotUnderstoodError(
                f'invalid argument "{text}" for "{called}" flag: strconv.ParseInt: parsing "{text}": invalid syntax'
            ) from None


class Verb(NamedTuple):
    """One operation on a noun."""

    help: str
    flags: tuple[Flag, ...]
    run: Callable[["Cluster", Values], None]


class Noun(NamedTuple):
    """A group of verbs."""

    help: str
    verbs: dict[str, Verb]


class _NotUnderstoodError(Exception):
    """The command line is malformed."""


_REACH = (
    Flag("kubeconfig", "k", "", "(optional) absolute path to the kubeconfig file"),
    Flag("master", "s", "", "the address of apiserver"),
)
_GLOBAL_HELP = """\
      --log-flush-frequency duration   Maximum number of seconds between log flushes (default 5s)
  -v, --v Level                        number for the log level verbosity
      --vmodule moduleSpec             comma-separated list of pattern=N settings for file-filtered logging (only works for the default text log format)
"""  # noqa: E501  # compared by scripts, line by line
_GLOBAL = (
    Flag("log-flush-frequency", "", "", ""),
    Flag("v", "v", "", ""),
    Flag("vmodule", "", "", ""),
)
_VERSION = "version     Print the version information"


def main(words: Sequence[str] | None = None) -> NoReturn:
    """The entry point."""
    given = list(sys.argv[1:] if words is None else words)
    speak_any_locale()
    try:
        sys.exit(_dispatch(given))
    except _NotUnderstoodError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


def _dispatch(given: list[str]) -> int:
    from baton.cli.vcctl.verbs import NOUNS

    if given and given[0] == "help":
        given = [*given[1:], "--help"]
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write(_root_help(NOUNS))
        return 0
    name, *rest = given
    if name == "version":
        return _version(rest)
    if name.startswith("-"):
        _parse((), given)
    noun = NOUNS.get(name)
    if noun is None:
        raise _NotUnderstoodError(_unknown(name, [*NOUNS, "version", "help"]))
    verb = noun.verbs.get(rest[0]) if rest else None
    if verb is None:
        sys.stdout.write(_noun_help(name, noun))
        return 0
    flags = tuple(sorted((*verb.flags, *_REACH)))
    values = _parse(flags, rest[1:])
    if values["help"]:
        sys.stdout.write(_verb_help(name, rest[0], verb, flags))
        return 0
    return _run(name, rest[0], verb, values)


def _run(name: str, word: str, verb: Verb, values: Values) -> int:
    from baton.cli.cluster.options import connect
    from baton.cli.cluster.requests import MissingObjectError
    from baton.kube.errors import ApiError

    try:
        with connect(Path(values["kubeconfig"]) if values["kubeconfig"] else None, None, values["master"]) as cluster:
            verb.run(cluster, values)
    except BatonError as error:
        said = error.message if isinstance(error, ApiError) else str(error)
        told = error.answer if isinstance(error, MissingObjectError) else said
        sys.stdout.write(f"Failed to {word} {name}: {told}\n")
        return 255
    return 0


def _parse(flags: Sequence[Flag], words: list[str]) -> Values:
    """Read flags as the pflag library does: `--name value`, `--name=value`, `-n value`, `-nvalue`."""
    by_name = {flag.name: flag for flag in (*flags, *_GLOBAL)}
    by_letter = {flag.letter: flag for flag in (*flags, *_GLOBAL) if flag.letter}
    values: Values = {flag.name: flag.default for flag in flags} | {"help": False}
    left = list(words)
    while left:
        word = left.pop(0)
        if word in ("-h", "--help"):
            values["help"] = True
            continue
        if not word.startswith("-") or word == "-":
            continue
        if word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            flag = by_name.get(name)
            if flag is None:
                raise _NotUnderstoodError(f"unknown flag: --{name}")
        else:
            flag, text = by_letter.get(word[1]), word[2:].removeprefix("=")
            equals = word[2:3]
            if flag is None:
                raise _NotUnderstoodError(f"unknown shorthand flag: '{word[1]}' in {word}")
        if isinstance(flag.default, bool):
            values[flag.name] = not equals or text.lower() in ("true", "1", "t")
            continue
        if not equals:
            if not left:
                called = f"--{flag.name}" if word.startswith("--") else f"'{flag.letter}' in {word}"
                raise _NotUnderstoodError(f"flag needs an argument: {called}")
            text = left.pop(0)
        values[flag.name] = flag.value(text)
    return values


def _unknown(name: str, known: list[str]) -> str:
    from baton.model.suggestions import closest

    near = closest(name, known, most=3)
    hint = "\n\nDid you mean this?\n" + "".join(f"\t{word}\n" for word in near) if near else ""
    return f'unknown command "{name}" for "vcctl"{hint}'


def _version(words: list[str]) -> int:
    import platform

    from baton import __version__

    if _parse((), words)["help"]:
        sys.stdout.write(
            "Print the version information\n\nUsage:\n  vcctl version [flags]\n\nExamples:\nvcctl version\n\n"
            f"Flags:\n  -h, --help   help for version\n\nGlobal Flags:\n{_GLOBAL_HELP}"
        )
        return 0
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    facts = {
        "API Version": "v1alpha1",
        "Version": f"baton {__version__}",
        "Python Version": platform.python_version(),
        "OS/Arch": f"{sys.platform}/{machine}",
    }
    sys.stdout.writelines(f"{name}: {fact}\n" for name, fact in facts.items())
    return 0


def _columns(lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(left) for left, _ in lines)
    return "".join(f"{left:<{width}}   {right}\n" for left, right in lines)


def _root_help(nouns: dict[str, Noun]) -> str:
    listed = [("help", "Help about any command"), *((name, noun.help) for name, noun in nouns.items())]
    width = max(len(name) for name, _ in listed)
    commands = "".join(f"  {name:<{width}} {text}\n" for name, text in listed) + f"  {_VERSION}\n"
    return (
        f"Usage:\n  vcctl [command]\n\nAvailable Commands:\n{commands}\nFlags:\n"
        f"  -h, --help                           help for vcctl\n{_GLOBAL_HELP}\n"
        'Use "vcctl [command] --help" for more information about a command.\n'
    )


def _noun_help(name: str, noun: Noun) -> str:
    commands = "".join(f"  {word:<11} {verb.help}\n" for word, verb in sorted(noun.verbs.items()))
    return (
        f"{noun.help}\n\nUsage:\n  vcctl {name} [command]\n\nAvailable Commands:\n{commands}\n"
        f"Flags:\n  -h, --help   help for {name}\n\nGlobal Flags:\n{_GLOBAL_HELP}\n"
        f'Use "vcctl {name} [command] --help" for more information about a command.\n'
    )


def _verb_help(name: str, word: str, verb: Verb, flags: Sequence[Flag]) -> str:
    lines = {flag.name: flag.line() for flag in flags} | {"help": ("  -h, --help", f"help for {word}")}
    return (
        f"{verb.help}\n\nUsage:\n  vcctl {name} {word} [flags]\n\nFlags:\n"
        f"{_columns([lines[key] for key in sorted(lines)])}\nGlobal Flags:\n{_GLOBAL_HELP}"
    )
