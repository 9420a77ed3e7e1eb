"""The scheduler configuration of a running scheduler: from a preset, a file or a ConfigMap, reloaded on change.

An invalid configuration is rejected as a whole. All its mistakes appear in the log, an event and a metric, and the
previous configuration stays in force; at the start, when there is none, the default does. Files with the user's own
plugins are reloaded in the same way: a broken file keeps its previous plugins.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from baton.engine.configuration import Configuration
from baton.engine.presets import PRESETS, configured
from baton.engine.session.tiers import Tiers
from baton.errors import BatonError, UsageError
from baton.extensions.scheduling_plugins import PluginLoader
from baton.kube.client import Client
from baton.kube.reflector import Reflector
from baton.kube.store import Delta, Store
from baton.model import core
from baton.model.meta import ObjectReference
from baton.scheduler.metrics import Metrics

_LOG = structlog.get_logger("baton.scheduler")

DEFAULT_PRESET = "simple"
KEY = "volcano-scheduler.conf"
_LOOK_S = 0.5

Tell = Callable[[ObjectReference, str, str, bool], None]
"""(about, reason, message, is a warning)."""


class ConfigMapName:
    """`namespace/name`, or `namespace/name:key` if the key is not the usual one."""

    def __init__(self, text: str) -> None:
        where, _, self.key = text.partition(":")
        self.namespace, slash, self.name = where.partition("/")
        if not (slash and self.namespace and self.name):
            raise UsageError(f"--config-map is {text!r}, expected namespace/name or namespace/name:key")

    def text_in(self, data: dict[str, str]) -> str | None:
        """The text of the named key, of the usual key, or of the only key that ends in .conf."""
        if self.key or KEY in data:
            return data.get(self.key or KEY)
        found = [text for key, text in data.items() if key.endswith(".conf")]
        return found[0] if len(found) == 1 else None


class LiveConfiguration:
    """The configuration in force."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        preset: str = DEFAULT_PRESET,
        file: Path | None = None,
        plugins: PluginLoader | None = None,
    ) -> None:
        self._metrics = metrics
        self._file = file
        self._plugins = plugins if plugins is not None else PluginLoader()
        self._text: str | None = None
        """The newest text that was read; None while there is none."""
        self._refused: dict[str, tuple[ObjectReference, str, str]] = {}
        """By file or object: the object of the event, its reason, and its message."""
        self.where = str(file) if file is not None else f"preset {preset}"
        self.problem = ""
        """Why the newest text is missing or not in force; empty when it is in force."""
        self.changed: Callable[[Configuration], None] = lambda _configuration: None
        self.tell: Tell = lambda _about, _reason, _message, _warning: None
        self.current = self._parsed(PRESETS[preset])
        self.text = PRESETS[preset]
        """The text of the configuration in force."""
        if file is not None:
            self.text = self._text = _read(file)
            self.current = self._parsed(self.text)
        self._warn(self.current)

    async def follow(self, client: Client, config_map: ConfigMapName | None) -> None:
        """Follow changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._plugins.files:
                group.create_task(self._follow_plugins())
            if config_map is not None:
                group.create_task(self._follow_map(client, config_map))
            elif self._file is not None:
                group.create_task(self._follow_file(self._file))

    async def _follow_plugins(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            changed = await asyncio.to_thread(self._plugins.refresh)
            for path in self._plugins.files:
                self._note_plugin(path)
            if changed:
                files = ", ".join(str(path) for path in self._plugins.files)
                text = self._text if self._text is not None else self.text
                self._take(text, _about_file(self._plugins.files[0]), f"{self.where} with plugins of {files}")

    def _note_plugin(self, path: Path) -> None:
        """Report a plugin file that is broken, once."""
        problem = self._plugins.problems.get(path)
        if problem is None:
            self._refused.pop(str(path), None)
            return
        message = f"refused, the plugins that it had before stay in force: {problem}"
        about = _about_file(path)
        if self._refused.get(str(path)) == (about, "PluginRefused", message):
            return
        self._refused[str(path)] = about, "PluginRefused", message
        self._metrics.reloaded("refused")
        _LOG.error("plugin file refused; the plugins that it had before stay in force", problem=problem)
        self.tell(about, "PluginRefused", message, True)

    async def _follow_file(self, path: Path) -> None:
        about = _about_file(path)
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                text = await asyncio.to_thread(_read, path)
            except BatonError as error:
                self._lost(about, str(error))
                continue
            self.take(text, about)

    async def _follow_map(self, client: Client, name: ConfigMapName) -> None:
        store: Store[core.ConfigMap] = Store()
        self.where = f"ConfigMap {name.namespace}/{name.name}"

        def about(uid: str = "") -> ObjectReference:
            return ObjectReference(
                kind="ConfigMap", namespace=name.namespace, name=name.name, uid=uid, api_version="v1"
            )

        def moved(delta: Delta[core.ConfigMap]) -> None:
            found = delta.new
            if found is None:
                self._lost(about(), f"{self.where} was deleted")
                return
            text = name.text_in(found.data)
            if text is None:
                keys = ", ".join(found.data) or "none"
                self._lost(about(found.metadata.uid), f"{self.where} has no key {name.key or KEY}; it has {keys}")
            else:
                self.take(text, about(found.metadata.uid))

        store.subscribe(moved)
        selector = f"metadata.name={name.name}"
        reflector = Reflector(client, core.CONFIG_MAPS, store, namespace=name.namespace, field_selector=selector)
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run())
            await reflector.synced.wait()
            if not len(store):
                self._lost(about(), f"{self.where} does not exist")

    def take(self, text: str, about: ObjectReference) -> None:
        """Put a text in force, or reject it."""
        if text == self._text:
            return
        self._text = text
        self._take(text, about, self.where)

    def _take(self, text: str, about: ObjectReference, what: str) -> None:
        try:
            configuration = self._parsed(text)
        except BatonError as error:
            self._refuse(about, str(error))
            return
        self.problem = ""
        self._refused.pop(self.where, None)
        self.current, self.text = configuration, text
        self._metrics.reloaded("accepted")
        self._warn(configuration)
        _LOG.info("configuration in force", where=what, actions=", ".join(configuration.actions))
        self.tell(about, "ConfigurationReloaded", f"{what} is in force", False)
        self.changed(configuration)

    def _parsed(self, text: str) -> Configuration:
        configuration = configured(_as_text(text), self._plugins.plugins(), where=self.where)
        Tiers(configuration)  # a configuration whose plugins cannot be created is rejected as well
        return configuration

    def say_again(self) -> None:
        """Repeat the current rejections as events, for a replica that begins to lead."""
        for about, reason, message in self._refused.values():
            self.tell(about, reason, message, True)

    def _lost(self, about: ObjectReference, problem: str) -> None:
        """The text is gone; if the same text comes back, it counts as new."""
        self._text = None
        self._refuse(about, problem)

    def _refuse(self, about: ObjectReference, problem: str) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        self._metrics.reloaded("refused")
        _LOG.error("configuration refused; the one before it stays in force", where=self.where, problem=problem)
        message = f"refused, the configuration before it stays in force: {problem}"
        self._refused[self.where] = about, "ConfigurationRefused", message
        self.tell(about, "ConfigurationRefused", message, True)

    @staticmethod
    def _warn(configuration: Configuration) -> None:
        for warning in configuration.warnings:
            _LOG.warning("configuration", warning=warning)


def _about_file(path: Path) -> ObjectReference:
    """An event needs an object; a file is reported as a ConfigMap, from which it usually comes."""
    return ObjectReference(kind="ConfigMap", namespace="default", name=path.name, api_version="v1")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"the scheduler configuration {path} cannot be read: {reason}") from None


def _as_text(text: str) -> str:
    """Ensure that the content of a file is never mistaken for the name of a preset."""
    return text if "\n" in text else f"{text}\n"
