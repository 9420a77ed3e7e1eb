"""Scheduling policies by name: an engine configuration, and what the policy is told about jobs.

A policy of one's own is a `volcano-scheduler.conf` file: it runs with the trace's queues and no foresight unless asked
otherwise. The named ones put all jobs into one queue, so that they differ in their order alone.
"""

import difflib
from pathlib import Path

import msgspec

from baton.errors import BatonError, UsageError
from baton.sim.prediction import Foresight

# Attained service is cut into levels that grow by this factor, so that jobs of one level do not take turns.
FIRST_LEVEL_GPU_S = 3600.0
LEVEL_GROWTH = 4.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How a simulation schedules."""

    name: str
    configuration: str
    foresight: Foresight = Foresight.NONE
    attained_levels: bool = False
    """Tell the engine of a job's attained service whenever it enters the next level."""
    preemptive: bool = False
    """Arrivals can change something even when no card is free."""
    trace_queues: bool = False
    trace_priorities: bool = False


_PLACEMENT = """
- plugins:
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.SchedulePolicy: binpack
  - name: binpack
"""


def _ordered(actions: str, *plugins: str) -> str:
    lines = "\n".join(f"  - {plugin}" for plugin in plugins)
    return f'actions: "{actions}"\ntiers:\n- plugins:\n{lines}{_PLACEMENT}'


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(name="fifo", configuration=_ordered("allocate", "name: gang")),
        Policy(
            name="priority", configuration=_ordered("allocate", "name: priority", "name: gang"), trace_priorities=True
        ),
    )
}


def named_policy(name_or_path: str) -> Policy:
    """A policy by name, or the configuration in a file."""
    if name_or_path in POLICIES:
        return POLICIES[name_or_path]
    path = Path(name_or_path)
    if path.suffix not in (".conf", ".yaml", ".yml") and not path.is_file():
        near = difflib.get_close_matches(name_or_path, POLICIES, n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"there are {', '.join(POLICIES)}, or the path of a configuration"
        )
        raise UsageError(f"no policy {name_or_path!r}; {hint}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BatonError(f"{path} cannot be read: {error}") from None
    return Policy(
        name=path.stem, configuration=text, trace_queues=True, trace_priorities=True, preemptive="preempt" in text
    )


def next_level(attained_gpu_s: float) -> float:
    """The least level above this service."""
    level = FIRST_LEVEL_GPU_S
    while level <= attained_gpu_s * (1 + 1e-9):
        level *= LEVEL_GROWTH
    return level


def level_floor(attained_gpu_s: float) -> float:
    """The level that this service has reached; 0 below the first."""
    level = next_level(attained_gpu_s)
    return level / LEVEL_GROWTH if level > FIRST_LEVEL_GPU_S else 0.0
