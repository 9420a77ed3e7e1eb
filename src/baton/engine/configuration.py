"""`volcano-scheduler.conf`, read verbatim: actions, tiers of plugins with their flags and arguments, action arguments.

All problems are reported at once, each with its path in the file and, for a name, the closest valid one. A file that
Volcano accepts never fails: an unknown plugin, flag or argument is a warning, while an unknown action or a value of the
wrong type is an error.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import yaml

from baton.engine.session.hooks import FLAGS
from baton.engine.session.plugin import Plugin
from baton.errors import BatonError
from baton.model.suggestions import did_you_mean

HIERARCHY_FLAG = "enableHierarchy"
TOP_KEYS = ("actions", "tiers", "configurations", "metrics")

NOT_SUPPORTED = {"extender": "Baton calls no HTTP extenders; load your own plugin instead (--plugin FILE)"}
"""Volcano plugins that Baton does not support on purpose."""

_SHOWN = 60
"""How many characters of an invalid value an error shows."""

Catalogue = Mapping[str, type[Plugin[Any]]]


class ConfigurationError(BatonError):
    """All problems of the file, one per line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class PluginOption(msgspec.Struct, frozen=True):
    plugin: type[Plugin[Any]]
    arguments: msgspec.Struct
    flags: dict[str, bool] = {}
    hierarchy: bool = False

    @property
    def name(self) -> str:
        return self.plugin.name


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    actions: tuple[str, ...]
    tiers: tuple[tuple[PluginOption, ...], ...]
    action_arguments: dict[str, dict[str, Any]] = {}
    metrics: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()


def parse(
    text: str, catalogue: Catalogue, actions: Iterable[str], *, where: str = "scheduler configuration"
) -> Configuration:
    """Parse the text of a configuration file, or raise an error with all problems."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError([f"{where} is not YAML: {' '.join(str(error).split())}"]) from None
    return _Reader(catalogue, tuple(actions), where).read(document)


class _Reader:
    """One pass over the document, collecting problems and warnings."""

    def __init__(self, catalogue: Catalogue, actions: tuple[str, ...], where: str) -> None:
        self.catalogue = catalogue
        self.actions = actions
        self.where = where
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def read(self, document: object) -> Configuration:
        if not isinstance(document, dict):
            raise ConfigurationError([f"{self.where} is {_shown(document)}: expected a mapping with actions and tiers"])
        for key in document:
            if key not in TOP_KEYS:
                self.warnings.append(f"{self.where}: {key} is unknown and ignored{_meant(str(key), TOP_KEYS)}")
        actions = self._actions(document.get("actions", ""))
        tiers = self._tiers(document.get("tiers", []))
        action_arguments = self._action_arguments(document.get("configurations") or [])
        metrics = document.get("metrics") or {}
        if not isinstance(metrics, dict):
            self.problems.append(
                f"metrics is {_shown(metrics)}: expected a mapping such as {{type: prometheus, address: URL}}"
            )
            metrics = {}
        self._conflicts(tiers)
        if self.problems:
            raise ConfigurationError(f"{self.where}: {problem}" for problem in self.problems)
        return Configuration(
            actions=actions,
            tiers=tiers,
            action_arguments=action_arguments,
            metrics=metrics,
            warnings=tuple(self.warnings),
        )

    def _actions(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, str) or not value.strip():
            self.problems.append(f'actions is {_shown(value)}: expected a string such as "enqueue, allocate, backfill"')
            return ()
        names = [name.strip() for name in value.strip().strip('"').split(",")]
        known = []
        for place, name in enumerate(names):
            if name in self.actions:
                known.append(name)
            else:
                self.problems.append(
                    f"actions[{place}] {name!r} is not an action{_meant(name, self.actions)};"
                    f" known: {', '.join(self.actions)}"
                )
        return tuple(known)

    def _tiers(self, value: object) -> tuple[tuple[PluginOption, ...], ...]:
        if not isinstance(value, list):
            self.problems.append(f"tiers is {_shown(value)}: expected a list, each with `plugins:`")
            return ()
        tiers = []
        seen: dict[str, str] = {}
        for place, tier in enumerate(value):
            path = f"tiers[{place}]"
            plugins = tier.get("plugins") if isinstance(tier, dict) else None
            if not isinstance(plugins, list):
                self.problems.append(f"{path}.plugins is {_shown(plugins)}: expected a list such as `- name: gang`")
                continue
            options = [self._plugin(f"{path}.plugins[{at}]", plugin, seen) for at, plugin in enumerate(plugins)]
            tiers.append(tuple(option for option in options if option is not None))
        return tuple(tiers)

    def _plugin(self, path: str, value: object, seen: dict[str, str]) -> PluginOption | None:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            self.problems.append(f"{path} is {_shown(value)}: expected the name of a plugin, as in `- name: gang`")
            return None
        name = value["name"]
        plugin = self.catalogue.get(name)
        if plugin is None:
            why = NOT_SUPPORTED.get(name)
            problem = f"is not a plugin and skipped{_meant(name, self.catalogue)}"
            self.warnings.append(
                f"{self.where}: {path}.name {name!r} {f'is not supported and skipped: {why}' if why else problem}"
            )
            return None
        if name in seen:
            self.problems.append(f"{path}.name {name!r} is already configured at {seen[name]}; keep one of the two")
            return None
        seen[name] = path
        flags: dict[str, bool] = {}
        for key, given in value.items():
            if key in ("name", "arguments"):
                continue
            if key != HIERARCHY_FLAG and key not in FLAGS:
                known = (*FLAGS, HIERARCHY_FLAG)
                self.warnings.append(f"{self.where}: {path}.{key} is not a flag and ignored{_meant(str(key), known)}")
                continue
            try:
                flags[key] = msgspec.convert(given, bool, strict=False)
            except msgspec.ValidationError:
                self.problems.append(f"{path}.{key} is {_shown(given)}: expected true or false")
        arguments = self._arguments(f"{path}.arguments", plugin, value.get("arguments") or {})
        if arguments is None:
            return None
        return PluginOption(plugin, arguments, flags, flags.get(HIERARCHY_FLAG, False))

    def _arguments(self, path: str, plugin: type[Plugin[Any]], given: object) -> msgspec.Struct | None:
        if not isinstance(given, dict):
            self.problems.append(f"{path} is {_shown(given)}: expected a mapping of arguments to values")
            return None
        fields = {field.encode_name: field for field in msgspec.structs.fields(plugin.arguments_type)}
        families = plugin.argument_prefixes
        values: dict[str, Any] = {}
        before = len(self.problems)
        for key, value in given.items():
            family = next((prefix for prefix in families if str(key).startswith(prefix) and key not in fields), None)
            if family is not None:
                member = next(field for field in fields.values() if field.name == families[family])
                element = member.type.__args__[1]
                converted = self._convert(f"{path}.{key}", value, element)
                values.setdefault(member.name, {})[str(key)[len(family) :]] = converted
            elif key in fields:
                values[fields[key].name] = self._convert(f"{path}.{key}", value, fields[key].type)
            else:
                self.warnings.append(
                    f"{self.where}: {path}.{key} is not an argument of {plugin.name}"
                    f" and ignored{_meant(str(key), fields)}"
                )
        if len(self.problems) > before:
            return None
        arguments = plugin.arguments_type(**values)
        problems = getattr(arguments, "problems", None)
        if problems is not None:
            found = list(problems())
            self.problems += [f"{path}.{problem}" for problem in found]
            if found:
                return None
        return arguments

    def _convert(self, path: str, value: object, wanted: Any) -> Any:
        try:
            return msgspec.convert(value, wanted, strict=False)
        except msgspec.ValidationError as error:
            expected = str(error).partition(" - at")[0]
            self.problems.append(f"{path} is {value!r}: {expected[0].lower()}{expected[1:]}")
            return None

    def _action_arguments(self, value: object) -> dict[str, dict[str, Any]]:
        if not isinstance(value, list):
            self.problems.append(f"configurations is {_shown(value)}: expected a list, each with the name of an action")
            return {}
        result: dict[str, dict[str, Any]] = {}
        for place, item in enumerate(value):
            path = f"configurations[{place}]"
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                self.problems.append(
                    f"{path} is {_shown(item)}: expected the name of an action, as in `- name: preempt`"
                )
                continue
            name = item["name"]
            if name not in self.actions:
                self.warnings.append(f"{self.where}: {path}.name {name!r} is not an action{_meant(name, self.actions)}")
            arguments = item.get("arguments") or {}
            if not isinstance(arguments, dict):
                self.problems.append(
                    f"{path}.arguments is {_shown(arguments)}: expected a mapping of arguments to values"
                )
                continue
            result[name] = arguments
        return result

    def _conflicts(self, tiers: tuple[tuple[PluginOption, ...], ...]) -> None:
        for place, tier in enumerate(tiers):
            names = {option.name for option in tier}
            if "proportion" in names and any(option.name == "drf" and option.hierarchy for option in tier):
                self.problems.append(
                    f"tiers[{place}] has drf with enableHierarchy and proportion, which conflict; keep one of them"
                )
        everywhere = {option.name for tier in tiers for option in tier}
        if {"proportion", "capacity"} <= everywhere:
            self.problems.append("tiers: proportion and capacity both set what a queue deserves; keep one of them")


def _shown(value: object) -> str:
    """A value as the user wrote it, truncated if it is long."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _meant(name: str, known: Iterable[str]) -> str:
    hint = did_you_mean(name, known)
    return f" ({hint})" if hint else ""
