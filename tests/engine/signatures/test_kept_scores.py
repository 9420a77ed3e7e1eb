"""Cached and foreseen scores lead to exactly the same decisions as scores computed for every pod."""

import random

import pytest

from baton.engine.cards.fragmentation import Shape
from baton.engine.cards.fragments import Workload
from baton.engine.engine import Engine
from baton.engine.events import Event, NodeChanged, PodChanged, QueueChanged
from baton.engine.objects import AffinityTerm, LabelSelector, Pod, PreferredAffinityTerm
from baton.engine.plugins.places.fragmentation import FragmentationPlugin
from baton.engine.presets import PRESETS, configured
from tests.engine.clusters import milli, node, pod, queue, slot, spec, vgpu, whole

SPREAD = """
actions: "allocate"
tiers:
- plugins:
  - name: predicates
  - name: deviceshare
    arguments: {deviceshare.SchedulePolicy: spread}
  - name: nodeorder
"""
FRAGMENTATION = 'actions: "allocate"\ntiers:\n- plugins: [{name: predicates}, {name: fragmentation}]\n'
WEB = LabelSelector((("app", "web"),))
HOST = "kubernetes.io/hostname"
KINDS = [
    spec(cpu=2),
    spec(cpu=1, ask=[whole()]),
    spec(cpu=1, ask=[milli(300)]),
    spec(cpu=1, ask=[vgpu(memory_mib=3000, cores=10)]),
    spec(cpu=1, ask=[slot(2)]),
    spec(cpu=1, anti_affinity=(AffinityTerm(selector=WEB, topology_key=HOST),)),
    spec(cpu=1, preferred_affinity=(PreferredAffinityTerm(5, AffinityTerm(selector=WEB, topology_key=HOST)),)),
]


def cluster(conf: str) -> Engine:
    engine = Engine(configured(conf))
    nodes = [node(f"n{at}", cpu=12 + at % 3, cards=at % 5) for at in range(8)]
    engine.apply([QueueChanged(queue("default")), *(NodeChanged(item) for item in nodes)])
    return engine


def pin(engine: Engine) -> None:
    """Fix the workload of the fragmentation plugin, which would otherwise learn from different numbers of pods."""
    for plugin in engine.tiers.plugins:
        if isinstance(plugin, FragmentationPlugin):
            plugin.pin(Workload([(Shape(1000, 1000, 1), 3), (Shape(1000, 300, 1), 2), (Shape(2000, 0, 0), 1)]))


def workload(seed: int, number: int = 60) -> list[Pod]:
    """Runs of equal pods mixed with single ones, as jobs create them."""
    chance = random.Random(seed)
    pods: list[Pod] = []
    while len(pods) < number:
        what = chance.choice(KINDS)
        labels = {"app": "web"} if chance.random() < 0.3 else {}
        for _ in range(chance.choice((1, 1, 6, 15))):
            pods.append(pod(f"p{len(pods):03}", what, labels=labels, created_s=float(len(pods))))
    return pods


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("conf", ["simple", SPREAD, FRAGMENTATION], ids=["binpack", "spread", "fragmentation"])
def test_one_cycle_equals_one_fresh_cycle_per_pod(conf: str, seed: int) -> None:
    pods = workload(seed)
    kept, fresh = cluster(conf), cluster(conf)
    pin(kept)
    kept.apply([PodChanged(item) for item in pods])
    placed = {binding.pod: (binding.node, binding.cards) for binding in kept.schedule(0.0).bindings}
    expected = {}
    for item in pods:
        fresh.configure(configured(conf))
        pin(fresh)
        events: list[Event] = [PodChanged(item)]
        fresh.apply(events)
        for binding in fresh.schedule(0.0).bindings:
            expected[binding.pod] = (binding.node, binding.cards)
    assert placed == expected


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_cycles_with_cached_scores_equal_cycles_with_fresh_ones(preset: str) -> None:
    kept, fresh = cluster(preset), cluster(preset)
    pods = workload(99, 80)
    for start in range(0, len(pods), 10):
        batch = [PodChanged(item) for item in pods[start : start + 10]]
        kept.apply(batch)
        fresh.configure(configured(preset))
        pin(fresh)
        pin(kept)
        fresh.apply(batch)
        assert kept.schedule(float(start)).bindings == fresh.schedule(float(start)).bindings
