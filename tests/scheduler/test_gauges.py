"""Queues, shares and waiting jobs as a scrape sees them: shares of cards count like any other resource."""

from types import SimpleNamespace
from typing import Any

from baton.model.names import PodGroupPhase
from baton.observe.metrics import Metrics
from baton.scheduler import gauges
from tests.engine.clusters import Cluster, job, node, queue, spec, vgpu
from tests.observe.pages import Page, scrape

MEMORY, CORES = "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
PROPORTION = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: gang}, {name: predicates}, {name: proportion}]
"""


async def scraped(cluster: Cluster) -> Page:
    outcome = cluster.run()
    scheduler: Any = SimpleNamespace(
        engine=cluster.engine,
        statuses=SimpleNamespace(waiting=lambda: outcome.verdicts),
        binder=SimpleNamespace(on_the_way=0),
        recorder=SimpleNamespace(dropped=0),
        good_news=SimpleNamespace(dropped=0),
    )
    return await gauges_of(scheduler)


async def gauges_of(scheduler: Any) -> Page:
    metrics = Metrics()
    metrics.read(gauges.FAMILIES, lambda: gauges.rows(scheduler))
    return await scrape(metrics)


def queue_of(page: Page, what: str, name: str, resource: str = "") -> float | None:
    labels = {"queue": name, **({"resource": resource} if resource else {})}
    return page.value(f"baton_queue_{what}", **labels)


async def test_shares_of_cards_are_used_deserved_and_requested() -> None:
    """Two queues of weights 3 and 1 that both want all of a card; one of them has a fourth of it."""
    share = spec(cpu=0, memory_gib=0, ask=[vgpu(memory_mib=4000, cores=25)])
    cluster = Cluster(
        nodes=[node("a", cards=1, also=((MEMORY, 16_000), (CORES, 100)))],
        queues=[queue("big", weight=3), queue("small", weight=1, capability={MEMORY: 8000})],
        jobs=[
            job("first", queue="small", pods=4, on=["a"], what=share, phase=PodGroupPhase.RUNNING),
            job("second", queue="big", pods=4, what=share),
        ],
        conf=PROPORTION,
    )
    page = await scraped(cluster)
    assert queue_of(page, "weight", "big") == 3
    assert queue_of(page, "allocated", "small", MEMORY) == 4000
    assert queue_of(page, "allocated", "small", CORES) == 25
    assert queue_of(page, "requested", "small", MEMORY) == 16_000
    assert queue_of(page, "capability", "small", MEMORY) == 8000
    assert queue_of(page, "deserved", "big", MEMORY) == 12_000
    assert queue_of(page, "deserved", "small", MEMORY) == 4000
    assert queue_of(page, "allocated", "big", MEMORY) == 12_000
    assert queue_of(page, "share", "big") == 1
    assert page.value("baton_scheduler_waiting_jobs", cause="queue-share") == 2


async def test_what_a_queue_says_that_it_deserves_counts_where_no_plugin_works_it_out() -> None:
    conf = PROPORTION.replace("proportion", "capacity")
    cluster = Cluster(
        nodes=[node("a", cpu=8)],
        queues=[queue("half", deserved={"cpu": 4000})],
        jobs=[job("j", queue="half", what=spec(cpu=2))],
        conf=conf,
    )
    page = await scraped(cluster)
    assert queue_of(page, "deserved", "half", "cpu") == 4
    assert queue_of(page, "share", "half") == 0.5


async def test_a_replica_that_waits_has_no_cluster() -> None:
    page = await gauges_of(None)
    assert page.value("baton_scheduler_leading") == 0
    assert page.value("baton_queue_weight", queue="default") is None
