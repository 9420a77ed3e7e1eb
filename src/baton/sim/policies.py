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
