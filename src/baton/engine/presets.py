"""Ready-made configurations, in the format of the configuration file.

In presets with reclaim, all plugins that vote on victims are in one tier: inside a tier, victims are the intersection
of the votes, and later tiers vote only if a tier finds none. With the queue plugin in a later tier than gang and
conformance, as in many published examples, the deserved share of a queue would never limit its victims.
"""

from baton.engine.actions import ACTIONS
from baton.engine.configuration import Catalogue, Configuration, ConfigurationError, parse
from baton.engine.plugins import BUILT_IN

SIMPLE = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.SchedulePolicy: binpack
  - name: nodeorder
    arguments:
      leastrequested.weight: 0
  - name: binpack
"""

BATCH = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
  - name: pdb
- plugins:
  - name: sla
    arguments:
      sla-waiting-time: 24h
  - name: overcommit
  - name: easy-backfill
    arguments:
      easy-backfill.min-wait: 14400
  - name: job-order
    arguments:
      job-order.policy: sjf
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.SchedulePolicy: binpack
  - name: nodeorder
    arguments:
      leastrequested.weight: 0
  - name: binpack
"""

MULTI_TENANT = """
actions: "enqueue, allocate, backfill, reclaim, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
  - name: pdb
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: capacity
    enableHierarchy: true
  - name: resourcequota
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.SchedulePolicy: binpack
  - name: nodeorder
    arguments:
      leastrequested.weight: 0
  - name: binpack
"""

HIGH_PERFORMANCE = """
actions: "enqueue, allocate, backfill, reclaim, preempt, shuffle"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
  - name: pdb
  - name: overcommit
  - name: proportion
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.SchedulePolicy: binpack
  - name: fragmentation
    arguments:
      fragmentation.weight: 10
  - name: usage
    arguments:
      usage.weight: 1
configurations:
- name: shuffle
  arguments:
    maxMoves: 2
"""

PRESETS = {"simple": SIMPLE, "batch": BATCH, "multi-tenant": MULTI_TENANT, "high-performance": HIGH_PERFORMANCE}


def configured(
    name_or_text: str, catalogue: Catalogue = BUILT_IN, *, where: str = "scheduler configuration"
) -> Configuration:
    """A preset by name, or the text of a configuration file."""
    text = PRESETS.get(name_or_text)
    if text is None:
        if "\n" not in name_or_text and ":" not in name_or_text:
            raise ConfigurationError([f"{name_or_text!r} is not a preset; known: {', '.join(PRESETS)}"])
        return parse(name_or_text, catalogue, ACTIONS, where=where)
    return parse(text, catalogue, ACTIONS, where=f"preset {name_or_text}")
