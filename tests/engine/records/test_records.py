"""A record of a cluster is enough to reproduce the same decisions elsewhere."""

import pytest

from baton.engine import records
from baton.engine.engine import Engine
from baton.engine.presets import configured
from baton.errors import BatonError
from baton.model.ids import GroupKey
from tests.engine.clusters import Cluster, job, node, pod, running, spec, vgpu


def busy() -> Engine:
    """A gang that runs by an assumed plan, a single pod, and a gang that waits for cards."""
    cluster = Cluster(
        nodes=[node("a", cards=2, slots=2), node("b", cards=1, slots=2)],
        jobs=[job("runs", pods=2, min_member=2, what=spec(ask=[vgpu(memory_mib=9_000)]))],
        pods=[pod("alone", spec(cpu=2))],
    )
    cluster.run()
    waiting = Cluster(jobs=[job("waits", pods=4, min_member=4, what=spec(ask=[vgpu(memory_mib=9_000)]))])
    cluster.engine.apply(waiting.events)
    return cluster.engine


def rebuilt(engine: Engine) -> Engine:
    about = records.Recorded(now_s=10.0, configuration="simple")
    content = b"".join(records.lines(about, records.snapshot(engine.state)))
    return records.read(content, "a record").engine()


def test_a_replayed_record_gives_the_same_plan_and_the_same_reasons() -> None:
    engine = busy()
    again = rebuilt(engine)
    group = GroupKey("team/waits")
    assert again.explain(group, 10.0) == engine.explain(group, 10.0)
    assert again.schedule(10.0) == engine.schedule(10.0)


def test_attached_volumes_and_claims_for_one_pod_are_recorded() -> None:
    volumes = [spec(attachments=(("csi.example", name),)) for name in ("one", "two")]
    sole = spec(sole_claims=("team/data",))
    pods = [running("r", "a", volumes[0]), running("s", "a", sole), pod("p", volumes[1]), pod("q", sole)]
    engine = Cluster(nodes=[node("a", volume_limits=(("csi.example", 1),))], pods=pods).engine
    plan = rebuilt(engine).schedule(10.0)
    assert plan == engine.schedule(10.0)
    assert len(plan.verdicts) == 2


def test_planned_changes_count_as_done() -> None:
    again = rebuilt(busy())
    bound = {str(pod.key): (pod.node, bool(pod.cards)) for pod in (task.pod for task in again.state.tasks.values())}
    assert bound["team/runs-0"][0] is not None
    assert bound["team/runs-0"][1]
    assert bound["team/alone"] != (None, False)
    assert bound["team/waits-0"] == (None, False)


def test_the_configuration_is_recorded_and_can_be_replaced() -> None:
    about = records.Recorded(configuration=configured_text("allocate"), memory_overcommit=2.0)
    record = records.read(b"".join(records.lines(about, ())), "a record")
    assert record.engine().tiers.configuration.actions == ("allocate",)
    assert record.engine(configured_text("enqueue, allocate")).tiers.configuration.actions == (
        "enqueue",
        "allocate",
    )


def configured_text(actions: str) -> str:
    text = f'actions: "{actions}"\ntiers:\n- plugins:\n  - name: predicates\n'
    configured(text)
    return text


def test_an_invalid_line_is_named() -> None:
    with pytest.raises(BatonError, match=r"x\.jsonl, line 2: not an event of the engine"):
        records.read(b'{"type":"Recorded"}\n{"type":"Frob"}\n', "x.jsonl")
    with pytest.raises(BatonError, match=r"x\.jsonl, line 1: version is 9, expected 1 or older"):
        records.read(b'{"type":"Recorded","version":9}\n', "x.jsonl")
