"""Whatever the API server may hold, the scheduler goes on: odd numbers, foreign words, things that name each other.

Pods, queues and annotations are written by anybody, and what stops the scheduler once stops it after each start. The
worlds are the same in every run; BATON_TEST_EFFORT asks for more of them than usual, as for a hunt.
"""

import random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from baton.engine.configuration import Configuration
from baton.engine.engine import Engine
from baton.engine.presets import PRESETS, configured
from baton.kube.client import Client
from baton.kube.kubeconfig import Access
from baton.kube.store import Store, key_of
from baton.model import core, volcano
from baton.model.workloads import Workload
from baton.scheduler.feed.feed import Feed
from tests.effort import scaled
from tests.scheduler.odd_objects import SHAPES, made

EVERYTHING = """
actions: "enqueue, allocate, backfill, gangreclaim, reclaim, gangpreempt, preempt, shuffle"
tiers:
- plugins:
  - {name: priority}
  - {name: gang}
  - {name: conformance}
  - {name: pdb}
  - {name: cdp}
  - {name: tdm, arguments: {tdm.revocable-zone.a: "0:00-23:59"}}
- plugins:
  - {name: sla, arguments: {sla-waiting-time: 1h}}
  - {name: overcommit}
  - {name: drf}
  - {name: proportion}
  - {name: resourcequota}
  - {name: nodegroup}
  - {name: task-topology}
  - {name: network-topology-aware}
  - {name: predicates}
  - {name: deviceshare, arguments: {deviceshare.SchedulePolicy: spread, deviceshare.GPUExclusiveRules: [{app: a}]}}
  - {name: usage}
  - {name: fragmentation}
  - {name: nodeorder}
  - {name: binpack}
"""
HIERARCHICAL = """
actions: "enqueue, allocate, backfill, reclaim, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins:
  - {name: drf, enableHierarchy: true}
  - {name: predicates}
  - {name: easy-backfill}
  - {name: job-order, arguments: {job-order.policy: round-robin}}
"""
CONFIGURATIONS = {**{name: name for name in PRESETS}, "everything": EVERYTHING, "hierarchical": HIERARCHICAL}
OFTEN = [*[core.Pod] * 8, *[core.Node] * 3, *[volcano.PodGroup] * 3, *[volcano.Queue] * 3, *SHAPES]
THINGS = 40
WORLDS = scaled(100)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_scheduler_goes_on(name: str) -> None:
    for seed in range(WORLDS):
        try:
            _live(configured(CONFIGURATIONS[name]), random.Random(seed))
        except Exception as error:
            error.add_note(f"in world {seed}")
            raise


def _live(configuration: Configuration, chance: random.Random) -> None:
    client = Client(Access(server="http://nowhere", context="none"))
    feed = Feed(client, ("volcano",), ("nvshare.com/gpu",), lambda: None)
    feed.with_load = True
    engine = Engine(configuration)
    stores: dict[Any, Store[Any]] = {
        core.Pod: feed.pods,
        core.Node: feed.nodes,
        core.Budget: feed.budgets,
        core.Quota: feed.quotas,
        core.Namespace: feed.namespaces,
        core.PriorityClass: feed.classes,
        volcano.PodGroup: feed.groups,
        volcano.Queue: feed.queues,
        volcano.HyperNode: feed.hyper_nodes,
        Workload: feed.owners["apps/v1", "ReplicaSet"],
        **{resource.kind: store for resource, store in feed.volumes.stores()},
    }
    with capture_logs() as logs:
        for version in range(chance.randint(1, THINGS)):
            kind = chance.choice(OFTEN)
            body = made(SHAPES[kind], chance)
            item = msgspec.convert({**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}, kind)
            if chance.random() < 0.1:
                stores[kind].remove(key_of(item))
            else:
                stores[kind].put(item)
            if chance.random() < 0.2:
                _look(feed, engine, version)
        _look(feed, engine, 10**9)
    assert not [log for log in logs if log["event"].startswith("internal error")]


def _look(feed: Feed, engine: Engine, now_s: float) -> None:
    """One cycle, and everything that is asked about what waits."""
    engine.apply(feed.take())
    plan = engine.schedule(now_s)
    state = engine.state
    assert all(binding.node in state.table.row_of for binding in plan.bindings)
    assert all(verdict.paragraph() for verdict in plan.verdicts)
    for group, job in state.jobs.items():
        assert engine.explain(group, now_s).paragraph()
        assert all(engine.explain(pod, now_s).paragraph() for pod in list(job.pending))
    engine.credits(now_s)
