"""Profiles: which card a simulated GPU imitates.

A profile is data: the shipped ones are in `profiles.yaml`, and a user's profile is a YAML file with the same fields for
one card, usually a few lines after `extends: a100-80`. Reading a file gives a `Profile`, or one error that lists every
mistake with its line.
"""

import enum
import functools
import importlib.resources
import itertools
import re
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from baton.errors import BatonError, UsageError
from baton.model.suggestions import closest, did_you_mean

_Positive = Annotated[float, Meta(gt=0, le=1_000_000)]
_Index = Annotated[int, Meta(ge=0, le=1023)]
_AtLeastOne = Annotated[int, Meta(ge=1, le=1_000_000)]
_Celsius = Annotated[int, Meta(ge=0, le=150)]
MAX_CARDS = 32

_MODEL_PATTERN = r"^[ -~]{1,63}$"
_CAPABILITY_PATTERN = r"^[1-9][0-9]?\.[0-9]$"
_PATTERNS = {_MODEL_PATTERN: "1 to 63 printable ASCII characters", _CAPABILITY_PATTERN: "major.minor, such as 8.9"}


class ProfileError(BatonError):
    """A profile cannot be used; the text lists every mistake."""


class Brand(enum.StrEnum):
    """The product line that NVML reports."""

    TESLA = "tesla"
    GEFORCE = "geforce"
    NVIDIA = "nvidia"


class Pci(msgspec.Struct, frozen=True):
    """The card's identity and link on the PCI bus."""

    device_id: Annotated[int, Meta(ge=0, le=0xFFFF)]
    generation: Annotated[int, Meta(ge=1, le=7)]
    width: Annotated[int, Meta(ge=1, le=32)]


class Clocks(msgspec.Struct, frozen=True):
    """Clock rates; under load the SMs run between base and boost, depending on temperature and power."""

    idle_mhz: _AtLeastOne
    base_mhz: _AtLeastOne
    boost_mhz: _AtLeastOne
    memory_mhz: _AtLeastOne


class Power(msgspec.Struct, frozen=True):
    """Power draw when idle, and the limits that an administrator may set."""

    idle_w: _Positive
    limit_w: _Positive
    min_limit_w: _Positive
    max_limit_w: _Positive


class Thermal(msgspec.Struct, frozen=True):
    """The temperatures at which the card settles, its thresholds, and how fast it warms up."""

    idle_c: _Celsius
    load_c: _Celsius
    slowdown_c: _Celsius
    shutdown_c: _Celsius
    time_constant_s: _Positive
    """Modelled seconds until the card is two thirds of the way to a new temperature."""


class NvLink(msgspec.Struct, frozen=True):
    """The card's links, shared evenly between the other cards of its group."""

    version: Annotated[int, Meta(ge=1, le=6)]
    links: Annotated[int, Meta(ge=1, le=18)]
    link_gb_s: _Positive
    """One link, one direction."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of card, and the place of such cards in the machine."""

    name: str
    model: Annotated[str, Meta(pattern=_MODEL_PATTERN)]
    brand: Brand = Brand.NVIDIA
    memory_mib: Annotated[int, Meta(ge=64, le=1 << 24)]
    memory_bus_bits: _AtLeastOne = 256
    sms: Annotated[int, Meta(ge=1, le=4096)]
    cores_per_sm: _AtLeastOne = 128
    compute_capability: Annotated[str, Meta(pattern=_CAPABILITY_PATTERN)]
    threads_per_sm: _AtLeastOne = 2048
    l2_kib: _AtLeastOne = 4096
    shared_kib_per_sm: _AtLeastOne = 64
    memory_gb_s: _Positive
    """Bandwidth of the card's own memory. All bandwidths are in 10^9 bytes per second, as vendors count."""
    link_gb_s: _Positive
    """Bandwidth between the card and the host's memory, one direction."""
    paging_gb_s: _Positive | None = None
    """Bandwidth of fault-driven migration in both directions together. Defaults to nine tenths of the link's."""
    pci: Pci
    clocks: Clocks
    power: Power
    thermal: Thermal
    ecc: bool = False
    mig: bool = False
    """Whether the card supports MIG. Simulated cards are never divided."""
    fans: Annotated[int, Meta(ge=0, le=8)] = 0
    nvlink: NvLink | None = None
    time_scale: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    """Modelled seconds that pass in one real second."""
    numa_nodes: Annotated[tuple[_Index, ...], Meta(min_length=1)] = (0,)
    """The NUMA node of each card, repeated if there are more cards than entries."""
    nvlink_groups: tuple[tuple[_Index, ...], ...] = ()
    """Groups of card indices; NVLink connects every pair of a group."""

    @property
    def compute_capability_pair(self) -> tuple[int, int]:
        """Major and minor number."""
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)


@functools.cache
def shipped() -> dict[str, Profile]:
    """The profiles that come with Baton, by name."""
    text = importlib.resources.files("baton.gpu").joinpath("profiles.yaml").read_text(encoding="utf-8")
    return {name: msgspec.convert({"name": name, **fields}, Profile) for name, fields in yaml.safe_load(text).items()}


def find(name_or_path: str) -> Profile:
    """A shipped profile by its name, or a user's profile by the path of its file."""
    if profile := shipped().get(name_or_path.lower()):
        return profile
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return load(path)
    hint = did_you_mean(name_or_path.lower(), shipped()) or f"there are {', '.join(shipped())}"
    raise UsageError(f"no profile {name_or_path!r}; {hint} A file of your own ends in .yaml")


def load(path: Path) -> Profile:
    """Read a user's profile; `ProfileError` lists every mistake in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"the profile {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"the profile {path} is not UTF-8 text") from None
    return parse(text, str(path), path.stem)


def parse(text: str, source: str, default_name: str) -> Profile:
    """A profile from the text of a file; `source` is its name in error messages."""
    try:
        lines = _lines(yaml.compose(text, yaml.SafeLoader))
        fields = yaml.safe_load(text)
    except RecursionError:
        raise ProfileError(f"the profile {source} refers to itself with an anchor; write the values out") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}:" if mark else ""
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise ProfileError(f"the profile {source} is not YAML:{where} {problem}") from None
    if not isinstance(fields, dict):
        raise ProfileError(f"the profile {source} must be a mapping of fields, as in `extends: a100-80`")
    mistakes: list[tuple[str, str]] = []
    inherited = _inherited(fields.pop("extends", None), mistakes)
    merged = {**inherited, "name": default_name, **_merge(inherited, fields)}
    if isinstance(merged.get("compute_capability"), int | float):
        merged["compute_capability"] = str(merged["compute_capability"])  # 8.9 without quotes is a number to YAML
    mistakes += _mistakes(Profile, merged, "")
    mistakes += _contradictions(merged)
    if mistakes:
        mistakes.sort(key=lambda mistake: lines.get(mistake[0], 0))
        listed = "".join(f"\n  {_where(field, lines)}{field} {what}" for field, what in mistakes)
        count = f"{len(mistakes)} mistakes" if len(mistakes) != 1 else "a mistake"
        raise ProfileError(f"the profile {source} has {count}:{listed}")
    return msgspec.convert(merged, Profile)


def _where(field: str, lines: dict[str, int]) -> str:
    return f"line {lines[field]}: " if field in lines else ""


def _inherited(extends: Any, mistakes: list[tuple[str, str]]) -> dict[str, Any]:
    if extends is None:
        return {}
    if isinstance(extends, str) and extends in shipped():
        builtins: dict[str, Any] = msgspec.to_builtins(shipped()[extends])
        return {key: value for key, value in builtins.items() if value is not None}
    near = closest(str(extends), shipped())
    hint = did_you_mean(str(extends), near) or f"expected one of {', '.join(shipped())}"
    mistakes.append(("extends", f"is {extends!r}; {hint}"))
    # Check the other fields against some valid base, so that all mistakes are reported at once.
    return _inherited(near[0] if near else next(iter(shipped())), mistakes)


def _merge(base: dict[str, Any], fields: dict[Any, Any]) -> dict[str, Any]:
    """The user's fields, with those of a nested section merged into the inherited section."""
    merged = {}
    for key, value in fields.items():
        below = base.get(key) if isinstance(key, str) else None
        merged[str(key)] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _mistakes(struct: type[msgspec.Struct], fields: dict[str, Any], prefix: str) -> list[tuple[str, str]]:
    """Every field that is unknown, missing or wrong, as (path, problem)."""
    found = []
    hints = get_type_hints(struct, include_extras=True)
    known = {field.name: field for field in msgspec.structs.fields(struct)}
    for name in fields:
        if name not in known:
            hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
            found.append((prefix + name, f"is no field of a profile; {hint}"))
    for name, field in known.items():
        path = prefix + name
        section = _section(hints[name])
        if name not in fields:
            if field.required:
                found.append((path, "is missing"))
        elif section is not None and isinstance(fields[name], dict):
            found += _mistakes(section, {str(k): v for k, v in fields[name].items()}, path + ".")
        else:
            try:
                msgspec.convert(fields[name], hints[name])
            except msgspec.ValidationError as error:
                found.append((path, f"is {_shown(fields[name])}; {_expectation(str(error))}"))
    return found


def _section(hint: Any) -> type[msgspec.Struct] | None:
    """The struct behind a field's type, if the field is a nested section."""
    for candidate in (hint, *getattr(hint, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _expectation(message: str) -> str:
    """msgspec's message in the wording of Baton's other errors."""
    message = re.sub(r" - at `\$(.*?)`$", r" at \1", message)
    message = re.sub(r", got `\w+`", "", message)
    for type_name, words in (("int", "an integer"), ("float", "a number"), ("str", "text"), ("bool", "true or false")):
        message = message.replace(f"`{type_name}`", words)
    message = message.replace("`array`", "a list").replace("`object`", "a section of fields")
    if message.startswith("Invalid enum value"):
        return "expected one of " + ", ".join(Brand)
    for pattern, words in _PATTERNS.items():
        if pattern in message:
            return f"expected {words}"
    return message[:1].lower() + message[1:]


def _contradictions(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """Fields that are valid alone and invalid together; `_mistakes` finds those that are invalid alone."""
    found = []

    def ascending(section: str, struct: type[msgspec.Struct], *names: str) -> None:
        values = _valid(fields.get(section), struct)
        for lower, upper in itertools.pairwise(names) if values else ():
            low, high = getattr(values, lower), getattr(values, upper)
            if low > high:
                found.append((f"{section}.{lower}", f"is {low:g}; expected at most {upper}, which is {high:g}"))

    ascending("clocks", Clocks, "idle_mhz", "base_mhz", "boost_mhz")
    ascending("power", Power, "min_limit_w", "limit_w", "max_limit_w")
    ascending("power", Power, "idle_w", "limit_w")
    ascending("thermal", Thermal, "idle_c", "load_c", "slowdown_c", "shutdown_c")
    groups = _valid(fields.get("nvlink_groups", ()), tuple[tuple[_Index, ...], ...]) or ()
    seen: dict[int, int] = {}
    for number, group in enumerate(groups):
        path = f"nvlink_groups.{number}"
        if len(set(group)) < max(len(group), 2):
            found.append((path, f"is {list(group)}; expected at least two different card indices"))
        for index in group:
            if index >= MAX_CARDS:
                found.append((path, f"names card {index}; expected at most {MAX_CARDS - 1}"))
            elif seen.setdefault(index, number) != number:
                found.append((path, f"names card {index}, which is in another group already"))
    if groups and fields.get("nvlink") is None:
        found.append(("nvlink_groups", "needs the section `nvlink` with version, links and link_gb_s"))
    return found


def _valid(value: Any, expected: Any) -> Any:
    try:
        return msgspec.convert(value, expected)
    except msgspec.ValidationError:
        return None


def _lines(node: Any, prefix: str = "") -> dict[str, int]:
    """The line of every field, by its path."""
    lines: dict[str, int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = f"{prefix}{key.value}"
            lines[path] = key.start_mark.line + 1
            lines |= _lines(value, path + ".")
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            path = f"{prefix}{number}"
            lines[path] = value.start_mark.line + 1
            lines |= _lines(value, path + ".")
    return lines
