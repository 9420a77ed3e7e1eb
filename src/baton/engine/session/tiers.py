"""The plugins of a configuration in their tiers, created once and kept between sessions.

The plugins that implement a hook are determined at its first use and cached, because some hooks are called for every
job in every cycle.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from baton.engine.configuration import Configuration, PluginOption
from baton.engine.objects import LabelSelector
from baton.engine.session.hooks import FLAGS, Hook
from baton.engine.session.plugin import Plugin
from baton.errors import BatonError

P = ParamSpec("P")
R = TypeVar("R")
AnyPlugin = Plugin[Any]


class Tiers:
    """The plugins by tier and hook."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._arranged = [[(_made(option), option) for option in tier] for tier in configuration.tiers]
        self.plugins: list[AnyPlugin] = [plugin for tier in self._arranged for plugin, _ in tier]
        self._tiers: dict[Hook[..., Any], list[list[AnyPlugin]]] = {}
        self._calls: dict[Hook[..., Any], list[Any]] = {}
        self.card_exclusions: tuple[LabelSelector, ...] = tuple(
            rule for plugin in self.plugins for rule in plugin.card_exclusions
        )

    def action_arguments(self, action: str) -> Mapping[str, Any]:
        return self.configuration.action_arguments.get(action, {})

    def of(self, hook: Hook[P, R]) -> Sequence[Sequence[AnyPlugin]]:
        """The plugins that implement the hook, tier by tier."""
        tiers = self._tiers.get(hook)
        if tiers is None:
            tiers = self._tiers[hook] = [
                [plugin for plugin, option in tier if hook.taken_by(plugin) and _enabled(option, hook)]
                for tier in self._arranged
            ]
        return tiers

    def flat(self, hook: Hook[P, R]) -> Sequence[AnyPlugin]:
        """The plugins that implement the hook, in order."""
        return [plugin for tier in self.of(hook) for plugin in tier]

    def calls(self, hook: Hook[P, R]) -> Sequence[Callable[P, R]]:
        """The methods of the plugins in `flat`."""
        calls = self._calls.get(hook)
        if calls is None:
            calls = self._calls[hook] = [hook.of(plugin) for plugin in self.flat(hook)]
        return calls

    def calls_by_tier(self, hook: Hook[P, R]) -> Sequence[Sequence[Callable[P, R]]]:
        """The methods of the plugins in `of`."""
        return [[hook.of(plugin) for plugin in tier] for tier in self.of(hook)]


def _made(option: PluginOption) -> AnyPlugin:
    try:
        return option.plugin(option.arguments, hierarchy=option.hierarchy)
    except Exception as error:  # a user plugin may raise anything
        raise BatonError(f"plugin {option.name} cannot be created: {type(error).__name__}: {error}") from error


def _enabled(option: PluginOption, hook: Hook[..., Any]) -> bool:
    return all(option.flags.get(flag, True) for flag, hooks in FLAGS.items() if hook in hooks)
