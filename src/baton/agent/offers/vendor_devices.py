"""Devices that a file describes: how to find them, and what a container gets with them.

    name: darwin
    resource: zju.edu.cn/darwin
    discovery:
      files: /dev/darwin*
    attributes:
      serial: {file: "/sys/class/darwin/{name}/serial"}
    container:
      environment: {DARWIN_DEVICES: "{names}"}
      device-nodes: ["{path}"]

A unit is one device. Its fields are `path`, `name` (the last part of the path), `index` (its place in the list), `id`,
and those that `attributes` or the discovery command add; `{field}` in a text stands for the field's value. The
environment of a container covers all its units, so there `{field}` joins the values of all units with commas.

For more, write a Python class with the methods of `DeviceKind` and install it under the entry point `baton.devices`.
"""

import glob
import importlib.metadata
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Meta

from baton.agent.config import Kind, Sharing, label_problem, name_problem
from baton.agent.documents import Document
from baton.agent.offers.offers import Offer, Role, Terms
from baton.agent.offers.slot_choice import Policy
from baton.agent.offers.slots import MAX_SLOTS, CardSlots, Pool, SlotId
from baton.errors import BatonError
from baton.gpu.cards import Card, VendorName
from baton.gpu.containers import ContainerEdits, DeviceNode, Mount
from baton.model.ids import CardId

_log = structlog.get_logger("baton.agent")

_FIELD = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_ID_ALLOWED = re.compile(r"[^A-Za-z0-9_.-]")
_NUMBER = re.compile(r"[0-9]{1,9}")
_LONGEST_ID = 48
_COMMAND_LIMIT_S = 5.0
_OWN_FIELDS = ("id", "index", "name", "path")

Unit = dict[str, str]
T = TypeVar("T")


class DeviceKind(Protocol):
    """One resource of devices that are no GPUs to Baton."""

    resource: str
    look_every_s: float
    unhealthy: frozenset[CardId]

    def look(self) -> bool:
        """Find the units again; True if something changed. It may block: the agent calls it in a thread."""

    def offer(self) -> Offer:
        """The present units."""

    def answer(self, slots: Sequence[str]) -> ContainerEdits:
        """What a container gets."""

    def labels(self) -> Mapping[str, str]:
        """Node labels."""


class Discovery(msgspec.Struct, frozen=True, rename="kebab"):
    """Exactly one way to find units."""

    files: str | None = None
    """A pattern; each matching path, a device file or a sysfs directory, is a unit."""
    command: tuple[str, ...] | None = None
    """Prints a JSON list with an object per unit, whose fields become the unit's. `id` or `path` is needed."""
    every_s: Annotated[float, Meta(ge=0.1, le=3600.0)] = 10.0


class Attribute(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The source of a unit's field."""

    file: str | None = None
    value: str | None = None


class HealthRule(msgspec.Struct, frozen=True, rename="kebab"):
    """When a unit is healthy. Without a rule, a unit is healthy as long as it is found."""

    file: str
    equals: tuple[str, ...] = ("ok", "healthy", "1")


class MountRule(msgspec.Struct, frozen=True, rename="kebab"):
    """A mount for the container."""

    host: str
    container: str
    read_only: bool = True


class ContainerRule(msgspec.Struct, frozen=True, rename="kebab"):
    """What a container gets."""

    environment: dict[str, str] = {}
    mounts: tuple[MountRule, ...] = ()
    device_nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


class KindFile(msgspec.Struct, frozen=True, rename="kebab"):
    """The whole file."""

    name: str
    resource: str
    discovery: Discovery
    id: str = "{name}"
    replicas: Annotated[int, Meta(ge=1, le=1000)] = 1
    policy: Policy = Policy.SPREAD
    attributes: dict[str, Attribute] = {}
    health: HealthRule | None = None
    container: ContainerRule = ContainerRule()
    labels: dict[str, str] = {}
    """Node labels from the first unit's fields; `{count}` is the number of units."""


class FileKind:
    """A device kind that a file describes."""

    def __init__(self, description: KindFile, source: str) -> None:
        self.resource = description.resource
        self.look_every_s = description.discovery.every_s
        self.unhealthy: frozenset[CardId] = frozenset()
        self._description = description
        self._source = source
        self._units: dict[CardId, Unit] = {}
        self._complaint = ""

    def look(self) -> bool:
        try:
            found = self._find()
        except BatonError as error:
            # A failed discovery says nothing about the units: the known ones stay, as unhealthy.
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.error("devices cannot be found", kind=self._description.name, reason=self._complaint)
            return self._judge(self._units, frozenset(self._units))
        self._complaint = ""
        # As with cards, a unit that has vanished stays listed as unhealthy, for the pods that hold it.
        bad = {card for card in self._units if card not in found}
        bad |= {card for card, unit in found.items() if not self._healthy(unit)}
        return self._judge({**self._units, **found}, frozenset(bad))

    def _judge(self, units: dict[CardId, Unit], bad: frozenset[CardId]) -> bool:
        changed = units != self._units or bad != self.unhealthy
        self._units, self.unhealthy = units, bad
        return changed

    def offer(self) -> Offer:
        terms: dict[CardId, Terms] = {}
        slots = []
        for number, (card, unit) in enumerate(sorted(self._units.items())):
            node = _number(unit.get("numa-node", ""))
            model = unit.get("model", self._description.name)
            memory_mib = _number(unit.get("memory-mib", "")) or 0
            vendor = VendorName(self._description.name)
            described = Card(card, number, vendor, model, memory_mib, None, "", numa_node=node)
            terms[card] = Terms(described, self._description.replicas, Sharing.CONCURRENT, 1.0)
            slots.append(CardSlots.of(card, number, self._description.replicas, node))
        return Offer(
            name=self.resource,
            role=Role.CARDS,
            kind=Kind.SLOTS if self._description.replicas > 1 else Kind.WHOLE,
            pool=Pool(slots),
            policy=self._description.policy,
            max_per_container=0,
            terms=terms,
        )

    def answer(self, slots: Sequence[str]) -> ContainerEdits:
        pool = self.offer().pool.slots
        cards = sorted({pool[SlotId(slot)].card for slot in slots})
        units = [self._units[card] for card in cards]
        rule = self._description.container
        joined = {field: ",".join(unit.get(field, "") for unit in units) for unit in units for field in unit}
        plurals = {f"{field}s": value for field, value in joined.items()}
        return ContainerEdits(
            {name: _filled(text, plurals | joined) for name, text in rule.environment.items()},
            _unique(
                Mount(_filled(mount.host, unit), _filled(mount.container, unit), mount.read_only)
                for unit in units
                for mount in rule.mounts
            ),
            _unique(DeviceNode(_filled(node, unit)) for unit in units for node in rule.device_nodes),
            _unique(_filled(name, unit) for unit in units for name in rule.cdi),
        )

    def labels(self) -> Mapping[str, str]:
        if not self._units:
            return {}
        first = {**self._units[min(self._units)], "count": str(len(self._units))}
        return {name: _filled(text, first) for name, text in self._description.labels.items()}

    def _find(self) -> dict[CardId, Unit]:
        discovery = self._description.discovery
        rows = self._from_command(discovery.command) if discovery.command else self._from_files(discovery.files or "")
        found: dict[CardId, Unit] = {}
        for index, row in enumerate(rows):
            unit = {"index": str(index), **row}
            for name, attribute in self._description.attributes.items():
                unit[name] = (
                    _read(_filled(attribute.file, unit)) if attribute.file else _filled(attribute.value or "", unit)
                )
            given = row.get("id") or _filled(self._description.id, unit)
            unit["id"] = _ID_ALLOWED.sub("-", given)[:_LONGEST_ID]
            if not unit["id"]:
                raise BatonError(f"{self._source}: device {index} has no id; give it `id` or `path`")
            if (twin := found.get(CardId(unit["id"]))) is not None:
                raise BatonError(
                    f"{self._source}: devices {twin['index']} and {index} would both be called {unit['id']}; "
                    f"the first {_LONGEST_ID} letters, digits, '-', '_' and '.' of `id` must differ"
                )
            found[CardId(unit["id"])] = unit
        if len(found) * self._description.replicas > MAX_SLOTS:
            raise BatonError(
                f"{self._source}: {len(found)} devices of {self._description.replicas} replicas each exceed "
                f"the limit of {MAX_SLOTS} slots; set replicas lower"
            )
        return found

    def _from_files(self, pattern: str) -> list[Unit]:
        return [{"path": path, "name": Path(path).name} for path in sorted(glob.glob(pattern))]

    def _from_command(self, command: tuple[str, ...]) -> list[Unit]:
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S, check=False)
            if run.returncode != 0:
                raise BatonError(f"{command[0]} exited with code {run.returncode}: {run.stderr.strip()[:200]}")
            rows = json.loads(run.stdout)
        except OSError as error:
            raise BatonError(f"{self._source}: the command {command[0]} cannot be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise BatonError(f"{self._source}: {command[0]} did not end within {_COMMAND_LIMIT_S:g} s") from None
        except ValueError as error:
            raise BatonError(f"{self._source}: {command[0]} did not print JSON: {error}") from None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise BatonError(f"{self._source}: {command[0]} must print a JSON list of objects, one per device")
        return [_unit_of_row(row) for row in rows]

    def _healthy(self, unit: Unit) -> bool:
        rule = self._description.health
        return rule is None or _read(_filled(rule.file, unit)).lower() in {word.lower() for word in rule.equals}


def _unit_of_row(row: dict[str, Any]) -> Unit:
    unit = {str(key): str(value) for key, value in row.items()}
    path = unit.get("path", "")
    return {"path": path, "name": Path(path).name or unit.get("id", ""), **unit}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _filled(text: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda match: fields.get(match[1], ""), text)


def _unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def load_kinds(paths: Sequence[str], taken: Iterable[str] = ()) -> tuple[DeviceKind, ...]:
    """The kinds of the given files and of installed entry points; `taken` names are refused. A kind offers nothing
    until its first `look`, which may block."""
    kinds: list[DeviceKind] = [load_kind(Path(path)) for path in paths]
    kinds += map(_installed, importlib.metadata.entry_points(group="baton.devices"))
    seen = set(taken)
    for kind in kinds:
        if kind.resource in seen:
            raise BatonError(
                f"a device kind offers {kind.resource}, which is already in use; a resource name can be used once"
            )
        seen.add(kind.resource)
    return tuple(kinds)


def _installed(entry: importlib.metadata.EntryPoint) -> DeviceKind:
    try:
        kind: DeviceKind = entry.load()()
    except Exception as error:  # a foreign package may raise anything
        raise BatonError(f"the device kind {entry.name} ({entry.value}) could not be loaded: {error}") from error
    return kind


def load_kind(path: Path) -> FileKind:
    """Read one file; `DocumentError` lists every mistake in it."""
    document = Document.read(path)
    kind = document.convert(KindFile)
    if kind is not None:
        if problem := name_problem(kind.resource):
            document.mistake("resource", f"is {kind.resource!r}: {problem}")
        if (kind.discovery.files is None) == (kind.discovery.command is None):
            document.mistake("discovery", "needs exactly one of files and command")
        for name, attribute in kind.attributes.items():
            if name in _OWN_FIELDS:
                document.mistake(f"attributes.{name}", "is a field of every unit; choose another name")
            if (attribute.file is None) == (attribute.value is None):
                document.mistake(f"attributes.{name}", "needs exactly one of file and value")
        for name in kind.labels:
            if problem := label_problem(name):
                document.mistake(f"labels.{name}", f"is not a label name: {problem}")
    document.close()
    assert kind is not None
    return FileKind(kind, str(path))
