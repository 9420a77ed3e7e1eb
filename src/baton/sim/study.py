"""A study: the trace, cluster and settings, read once from files and options and shared by every run."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from baton.engine.objects import Node, Pod
from baton.sim.run.metrics import Summary
from baton.sim.run.replay import Replay
from baton.sim.run.settings import Settings
from baton.sim.run.translation import engine_node
from baton.sim.scheduling_policies import Policy
from baton.sim.traces.readers import read_jobs, read_nodes
from baton.sim.traces.recorded import read_state
from baton.sim.traces.synthetic import SyntheticSettings, generate
from baton.sim.traces.workload import TraceJob, skipped_rows, uniform_cluster


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What to simulate. Without a trace, each seed generates its own jobs."""

    source: str
    jobs: tuple[TraceJob, ...] | None
    made_up: SyntheticSettings
    nodes: tuple[Node, ...]
    background: tuple[Pod, ...]
    settings: Settings
    remarks: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        *,
        trace: Path | None,
        nodes: Path | None,
        state: Path | None,
        first_jobs: int | None,
        gpus: int,
        cards_per_node: int,
        made_up: SyntheticSettings,
        settings: Settings,
    ) -> "Study":
        """Read the named files; a uniform cluster and a generated trace replace those that are not given."""
        remarks: list[str] = []
        background: tuple[Pod, ...] = ()
        if state is not None:
            found, background = read_state(state)
            remarks.append(f"{state}: {len(found):,} nodes, {len(background):,} running pods, which stay")
        elif nodes is not None:
            listed, skipped = read_nodes(nodes)
            found = tuple(engine_node(node, settings.slots_per_card) for node in listed)
            remarks.append(f"{nodes}: {len(found):,} nodes{skipped_rows(skipped, ', ')}")
        else:
            found = tuple(engine_node(node, settings.slots_per_card) for node in uniform_cluster(gpus, cards_per_node))
        jobs: tuple[TraceJob, ...] | None = None
        source = f"generated ({made_up.jobs:,} jobs, load {made_up.load:g})"
        if trace is not None:
            widest = max((len(node.cards) for node in found), default=cards_per_node)
            read = read_jobs(trace, cards_per_node=widest or cards_per_node)
            remarks.append(read.report())
            jobs, source = read.jobs[:first_jobs], read.source
        else:
            made_up.check()
        return cls(
            source=source,
            jobs=jobs,
            made_up=made_up,
            nodes=found,
            background=background,
            settings=settings,
            remarks=tuple(remarks),
        )

    def described(self) -> dict[str, str]:
        """The facts that a report shows above its results."""
        cards = sum(len(node.cards) for node in self.nodes)
        facts = {"trace": self.source, "cluster": f"{len(self.nodes):,} nodes, {cards:,} cards"}
        if self.settings.slots_per_card > 1:
            facts["sharing"] = f"{self.settings.slots_per_card} jobs per card"
        if self.settings.node_mtbf_s:
            facts["node failures"] = f"every {self.settings.node_mtbf_s / 3600:g} h"
        facts["restart"] = f"{self.settings.restart_s:g} s"
        return facts


def simulate(study: Study, task: tuple[Policy, int], progress: Callable[[int, int], None] | None = None) -> Summary:
    """Run the study once, under one policy and with one seed."""
    policy, seed = task
    jobs = study.jobs if study.jobs is not None else generate(msgspec.structs.replace(study.made_up, seed=seed))
    settings = msgspec.structs.replace(study.settings, seed=seed)
    return Replay(jobs, study.nodes, policy, settings, study.background).run(progress)
