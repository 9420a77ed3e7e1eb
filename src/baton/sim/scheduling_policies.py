"""Scheduling policies: an engine configuration, and what the policy knows about jobs.

A user's own policy is a `volcano-scheduler.conf` file, which runs with the trace's queues and without foresight. The
named policies put all jobs into one queue, so that they differ only in their order.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from baton.engine.actions import ACTIONS
from baton.engine.configuration import Configuration
from baton.engine.presets import configured
from baton.errors import BatonError, UsageError
from baton.extensions.scheduling_plugins import PluginLoader
from baton.model.suggestions import did_you_mean
from baton.sim.run.prediction import Foresight

# Each level of attained service is this many times the one before, so that jobs of one level do not take turns.
FIRST_LEVEL_GPU_S = 3600.0
LEVEL_GROWTH = 4.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How a simulation schedules."""

    name: str
    configuration: str
    foresight: Foresight = Foresight.NONE
    attained_levels: bool = False
    """A job's priority falls by one with every level of attained service."""
    preemptive: bool = False
    """Arrivals can change something even when no card is free."""
    patience_s: float = 0.0
    """After this wait a job goes first, regardless of its place in line."""
    lines_by_duration: bool = False
    """Lines of equal jobs are split by expected duration: first come, first served, except that short jobs overtake."""
    strict: bool = False
    """Queues are in strict order: no job passes one that does not fit."""
    trace_queues: bool = False
    trace_priorities: bool = False
    plugin_files: tuple[Path, ...] = ()
    """Scheduling plugins of the user, loaded by every process that simulates."""

    def parsed(self) -> Configuration:
        """The engine's configuration."""
        return configured(self.configuration, PluginLoader(self.plugin_files).plugins(), where=self.name)


_PLACEMENT = """
- plugins:
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.SchedulePolicy: binpack
  - name: binpack
"""


# The first job that has waited this long reserves nodes, or goes before all levels, so that no order starves a job.
# One at a time: promoting all of them at once would turn a full cluster into first come, first served.
PATIENCE_S = 14 * 86_400


def _ordered(actions: str, *plugins: str) -> str:
    lines = "\n".join(f"  - {plugin}" for plugin in plugins)
    return f'actions: "{actions}"\ntiers:\n- plugins:\n{lines}{_PLACEMENT}'


def _job_order(policy: str) -> str:
    arguments = f"job-order.policy: {policy}, job-order.promote-after: 0"
    return f"{{name: job-order, arguments: {{{arguments}}}}}"


def _backfill(min_wait_s: float) -> str:
    return f"{{name: easy-backfill, arguments: {{easy-backfill.min-wait: {min_wait_s}}}}}"


_GANG = "name: gang"
# A gang is preempted whole or not at all; the plugin's own rule would protect every gang.
_GANG_GIVES_WAY = "{name: gang, enablePreemptable: false}"

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(name="fifo", configuration=_ordered("allocate", _GANG)),
        Policy(name="strict-fifo", configuration=_ordered("allocate", _GANG), strict=True),
        Policy(name="round-robin", configuration=_ordered("allocate", _job_order("round-robin"), _GANG)),
        Policy(
            name="priority",
            configuration=_ordered("allocate", "name: priority", _GANG),
            trace_priorities=True,
        ),
        Policy(
            name="backfill",
            configuration=_ordered("allocate", _backfill(0), _GANG),
            foresight=Foresight.PREDICTED,
            lines_by_duration=True,
        ),
        Policy(
            name="sjf",
            configuration=_ordered("allocate", _job_order("sjf"), _GANG),
            foresight=Foresight.PERFECT,
        ),
        Policy(
            name="sjf-predicted",
            configuration=_ordered("allocate", _backfill(PATIENCE_S), _job_order("sjf"), _GANG),
            foresight=Foresight.PREDICTED,
            patience_s=PATIENCE_S,
        ),
        Policy(
            name="las",
            configuration=_ordered("allocate, preempt", "name: priority", _GANG_GIVES_WAY),
            attained_levels=True,
            preemptive=True,
            patience_s=PATIENCE_S,
        ),
    )
}


def named_policy(name_or_path: str, plugin_files: Iterable[Path] = ()) -> Policy:
    """A policy by name, or the configuration in a file, with the user's plugins."""
    if name_or_path in POLICIES:
        return msgspec.structs.replace(POLICIES[name_or_path], plugin_files=tuple(plugin_files))
    path = Path(name_or_path)
    if path.suffix not in (".conf", ".yaml", ".yml") and not path.is_file():
        known = f"there are {', '.join(POLICIES)}, or the path of a configuration"
        hint = did_you_mean(name_or_path, POLICIES) or known
        raise UsageError(f"no policy {name_or_path!r}; {hint}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BatonError(f"{path} cannot be read: {error}") from None
    policy = Policy(
        name=path.stem,
        configuration=text,
        trace_queues=True,
        trace_priorities=True,
        plugin_files=tuple(plugin_files),
    )
    return msgspec.structs.replace(policy, preemptive=any(ACTIONS[name].evicts for name in policy.parsed().actions))


def next_level(attained_gpu_s: float) -> float:
    """The service at which the next level begins."""
    return float(FIRST_LEVEL_GPU_S * LEVEL_GROWTH ** level_of(attained_gpu_s))


def level_of(attained_gpu_s: float) -> int:
    """How many levels this service has passed."""
    level, bound = 0, FIRST_LEVEL_GPU_S
    while bound <= attained_gpu_s * (1 + 1e-9):
        level, bound = level + 1, bound * LEVEL_GROWTH
    return level
