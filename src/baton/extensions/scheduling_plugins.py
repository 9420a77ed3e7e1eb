"""A scheduling policy of one's own: one Python file with one plugin class, found by entry point or by path.

An installed package offers plugins under the entry point group `baton.plugins`. A file needs no packaging: every
subclass of `Plugin` in it with a `name` is added to the catalogue, under that name. A policy may replace a built-in
one of the same name, and says so in the list it is loaded from.
"""

import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from baton.engine.framework import PerNode, Plugin
from baton.engine.plugins import BUILT_IN
from baton.errors import BatonError

ENTRY_POINTS = "baton.plugins"


class PolicyError(BatonError):
    """A policy could not be loaded."""


def catalogue(paths: Iterable[str] = (), *, entry_points: bool = True) -> dict[str, type[Plugin[Any]]]:
    """The built-in plugins, those of installed packages, and those in the files, the later replacing the earlier."""
    found: dict[str, type[Plugin[Any]]] = dict(BUILT_IN)
    if entry_points:
        found.update(_installed())
    for path in paths:
        found.update(from_file(path))
    return found


def from_file(path: str) -> Mapping[str, type[Plugin[Any]]]:
    """The plugins in one Python file."""
    module_name = f"baton_policy_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise PolicyError(f"policy {path} is not a Python file; a policy is a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise PolicyError(f"policy {path} does not exist; check the path") from None
    except Exception as error:
        raise PolicyError(f"policy {path} could not be loaded: {type(error).__name__}: {error}") from error
    classes = [item for item in vars(module).values() if _is_policy(item) and item.__module__ == module_name]
    if not classes:
        raise PolicyError(
            f"policy {path} has no plugin; it needs a subclass of Plugin or PerNode, from baton.engine.framework,"
            " with a name"
        )
    return {item.name: item for item in classes}


def _installed() -> dict[str, type[Plugin[Any]]]:
    found: dict[str, type[Plugin[Any]]] = {}
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda item: item.name):
        loaded = point.load()
        if not _is_policy(loaded):
            raise PolicyError(f"entry point {point.name} ({point.value}) is not a plugin class with a name")
        found[loaded.name] = loaded
    return found


def _is_policy(item: object) -> bool:
    return (
        inspect.isclass(item) and issubclass(item, Plugin) and item not in (Plugin, PerNode) and hasattr(item, "name")
    )
