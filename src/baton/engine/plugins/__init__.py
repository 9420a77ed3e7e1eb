"""The plugins that ship with the engine; a new one is a file beside these and a line in `BUILT_IN`."""

from collections.abc import Mapping
from typing import Any

from baton.engine.plugin import Plugin
from baton.engine.plugins.binpack import BinpackPlugin
from baton.engine.plugins.deviceshare import DeviceSharePlugin
from baton.engine.plugins.gang import GangPlugin
from baton.engine.plugins.predicates import PredicatesPlugin
from baton.engine.plugins.priority import PriorityPlugin

BUILT_IN: Mapping[str, type[Plugin[Any]]] = {
    plugin.name: plugin
    for plugin in (
        PriorityPlugin,
        GangPlugin,
        PredicatesPlugin,
        BinpackPlugin,
        DeviceSharePlugin,
    )
}
