"""The plugins of a configuration, made once and kept from session to session, arranged by hook and tier."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baton.engine.configuration import FLAG_HOOKS, Configuration, PluginOption
from baton.engine.objects import LabelSelector
from baton.engine.session.plugin import Plugin, overrides

AnyPlugin = Plugin[Any]

HOOKS = (
    "queue_key",
    "job_key",
    "task_key",
    "filters",
    "scores",
    "world_filters",
    "world_scores",
    "card_scores",
    "domain_scores",
    "job_valid",
    "job_ready",
    "job_pipelined",
    "job_enqueueable",
    "job_enqueued",
    "job_starving",
    "overused",
    "allocatable",
    "preemptive",
    "preemptable",
    "reclaimable",
    "victims",
    "may_start",
    "sees_world",
    "job_started",
    "job_blocked",
    "minds_blocked",
)


class Framework:
    """Who takes part in which hook."""

    def __init__(self, configuration: Configuration, catalogue: Mapping[str, type[AnyPlugin]]) -> None:
        self.configuration = configuration
        self.action_arguments = dict(configuration.action_arguments)
        self.plugins: list[AnyPlugin] = []
        arranged: list[list[tuple[AnyPlugin, PluginOption]]] = []
        for tier in configuration.tiers:
            members = []
            for option in tier:
                plugin = catalogue[option.name](option.arguments, hierarchy=option.hierarchy)
                self.plugins.append(plugin)
                members.append((plugin, option))
            arranged.append(members)
        self._tiers: dict[str, list[list[AnyPlugin]]] = {
            hook: [
                [plugin for plugin, option in members if overrides(plugin, hook) and _enabled(option, hook)]
                for members in arranged
            ]
            for hook in HOOKS
        }
        self._flat: dict[str, list[AnyPlugin]] = {
            hook: [plugin for tier in tiers for plugin in tier] for hook, tiers in self._tiers.items()
        }
        self.calls: dict[str, list[Callable[..., Any]]] = {
            hook: [getattr(plugin, hook) for plugin in plugins] for hook, plugins in self._flat.items()
        }
        """The methods of those in `flat`, looked up once: some are called for every job of every cycle."""
        self.card_exclusions: tuple[LabelSelector, ...] = tuple(
            rule for plugin in self.plugins for rule in getattr(plugin, "card_exclusions", ())
        )

    def tiers(self, hook: str) -> Sequence[Sequence[AnyPlugin]]:
        return self._tiers[hook]

    def flat(self, hook: str) -> Sequence[AnyPlugin]:
        return self._flat[hook]

    def plugin(self, name: str) -> AnyPlugin | None:
        return next((plugin for plugin in self.plugins if plugin.name == name), None)


def _enabled(option: PluginOption, hook: str) -> bool:
    return all(option.flags.get(flag, True) for flag, hooks in FLAG_HOOKS.items() if hook in hooks)
