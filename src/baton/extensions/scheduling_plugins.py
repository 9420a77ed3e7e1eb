"""User plugins for scheduling: a Python file with plugin classes, or an installed package.

A file needs no packaging: every class in it that derives from `Plugin` or `PerNode` and has a `name` is a plugin with
that name. An installed package registers its plugins under the entry point group `baton.plugins`. A plugin replaces the
built-in one with the same name. The scheduler, the simulator and `baton state replay` load plugins in the same way.

Only this module reads and executes such files; the engine gets classes.
"""

import importlib.metadata
import inspect
import sys
import traceback
import types
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from baton.engine.framework import PerNode, Plugin
from baton.engine.plugins import BUILT_IN
from baton.errors import BatonError

ENTRY_POINTS = "baton.plugins"

Plugins = Mapping[str, type[Plugin[Any]]]


class PluginError(BatonError):
    """A plugin could not be loaded."""


class PluginLoader:
    """The built-in plugins, those of installed packages and those in files; later ones replace earlier ones.

    `refresh` loads changed files again. A broken file keeps its previous plugins.
    """

    def __init__(self, files: Iterable[Path] = (), *, entry_points: bool = True) -> None:
        self.files = tuple(files)
        self._base: Plugins = {**BUILT_IN, **(_installed() if entry_points else {})}
        self._sources: dict[Path, bytes] = {}
        self._found: dict[Path, Plugins] = {}
        for path in self.files:
            self._sources[path] = _read(path)
            self._found[path] = _loaded(path, self._sources[path])
        self.problems: dict[Path, str] = {}
        """By file: why its current content is not in use."""

    def plugins(self) -> Plugins:
        """The plugins by the names used in configurations."""
        found = dict(self._base)
        for path in self.files:
            found.update(self._found[path])
        return found

    def refresh(self) -> bool:
        """Read the files again; true when a plugin changed."""
        changed = False
        for path in self.files:
            try:
                source = _read(path)
            except PluginError as error:
                self._sources.pop(path, None)
                self.problems[path] = str(error)
                continue
            if source == self._sources.get(path):
                continue
            self._sources[path] = source
            try:
                self._found[path] = _loaded(path, source)
            except PluginError as error:
                self.problems[path] = str(error)
            else:
                changed = True
                self.problems.pop(path, None)
        return changed


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise PluginError(f"plugin file {path} does not exist; check the path") from None
    except OSError as error:
        raise PluginError(f"plugin file {path} cannot be read: {error.strerror}") from None


def _loaded(path: Path, source: bytes) -> Plugins:
    """Execute the file. It is compiled here and not by an importer, whose cache has a resolution of one second."""
    if path.suffix != ".py":
        raise PluginError(f"plugin file {path} is not a Python file; a plugin file ends in .py")
    module = types.ModuleType(f"baton_plugin_{path.stem}_{zlib.crc32(bytes(path)):x}")
    module.__file__ = str(path)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102  # the user named this file as a plugin
        classes = [item for item in vars(module).values() if _is_plugin(item) and item.__module__ == module.__name__]
        if not classes:
            raise PluginError(
                f"plugin file {path} has no plugin; it needs a subclass of Plugin or PerNode, from"
                " baton.engine.framework, with a name"
            )
        return {item.name: _checked(item, f"plugin file {path}") for item in classes}
    except PluginError:
        _restore(module.__name__, before)
        raise
    except (Exception, SystemExit) as error:
        _restore(module.__name__, before)
        raise PluginError(f"plugin file {path} cannot be loaded: {_described(error, path)}") from error


def _restore(name: str, before: types.ModuleType | None) -> None:
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before


def _described(error: BaseException, path: Path) -> str:
    """The error in one line, with the line of the file."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())}"


def _installed() -> Plugins:
    found: dict[str, type[Plugin[Any]]] = {}
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda item: item.name):
        where = f"entry point {point.name} ({point.value}) of group {ENTRY_POINTS}"
        try:
            loaded = point.load()
        except Exception as error:
            raise PluginError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
        if not _is_plugin(loaded):
            raise PluginError(f"{where} is not a plugin class with a name")
        found[loaded.name] = _checked(loaded, where)
    return found


def _is_plugin(item: object) -> bool:
    return (
        inspect.isclass(item) and issubclass(item, Plugin) and item not in (Plugin, PerNode) and hasattr(item, "name")
    )


def _checked(plugin: type[Plugin[Any]], where: str) -> type[Plugin[Any]]:
    """The class, if its attributes are valid; otherwise a mistake in them would only fail much later."""
    if not isinstance(plugin.name, str) or not plugin.name:
        raise PluginError(f"{where}: the name of class {plugin.__name__} is {plugin.name!r}, expected a string")
    if not (inspect.isclass(plugin.arguments_type) and issubclass(plugin.arguments_type, msgspec.Struct)):
        raise PluginError(f"{where}: arguments_type of class {plugin.__name__} is not a msgspec.Struct")
    return plugin
