"""What a simulation runs: jobs and nodes, as any trace format describes them.

A job is a gang of equal tasks. Each task asks for CPU, memory and cards; `milli` is the part of each card (1000 is the
whole card), `card_memory_mib` what it keeps in each card's memory and `utilisation` how busy it keeps a card when it
runs there alone. The last two are for time-shared cards; public traces rarely carry them.
"""

from collections.abc import Sequence

import msgspec

from baton.engine.cards.fragmentation import WHOLE_CARD, Shape


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job of a trace. Without a duration it never ends, as the pods of a fill do."""

    name: str
    submit_s: float = 0.0
    duration_s: float | None = None
    tasks: int = 1
    cards: int = 1
    milli: int = WHOLE_CARD
    cpu_milli: int = 0
    memory_mib: int = 0
    card_memory_mib: int = 0
    models: tuple[str, ...] = ()
    tenant: str = "default"
    queue: str = "default"
    priority: int = 0
    restartable: bool = True
    utilisation: float = 1.0
    family: str = ""

    @property
    def shape(self) -> Shape:
        """What one task asks of a node."""
        return Shape(self.cpu_milli, self.milli if self.cards else 0, self.cards, self.models)

    @property
    def total_milli(self) -> int:
        """Milli-cards of all tasks together."""
        return self.tasks * self.cards * self.milli

    @property
    def gpus(self) -> float:
        """Cards of all tasks together."""
        return self.total_milli / WHOLE_CARD


class TraceNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node of a cluster."""

    name: str
    cards: int
    cpu_milli: int = 96_000
    memory_mib: int = 786_432
    model: str = "GPU"
    card_memory_mib: int = 32_768


class Skipped(msgspec.Struct, frozen=True):
    """A row that a reader could not use, and why."""

    line: int
    reason: str


class Trace(msgspec.Struct, frozen=True):
    """The jobs of a file in order of submission, with the rows that were left out."""

    source: str
    jobs: tuple[TraceJob, ...]
    skipped: tuple[Skipped, ...] = ()

    def report(self) -> str:
        """One sentence on what was read and what was not."""
        read = f"{self.source}: {len(self.jobs):,} jobs"
        if not self.skipped:
            return read
        first = self.skipped[0]
        return f"{read}, {len(self.skipped):,} rows skipped (first: line {first.line}, {first.reason})"


def uniform_cluster(gpus: int, cards_per_node: int = 8, model: str = "GPU") -> tuple[TraceNode, ...]:
    """Nodes of `cards_per_node` cards that hold `gpus` cards together; the last node takes the rest."""
    full, rest = divmod(gpus, cards_per_node)
    sizes = [cards_per_node] * full + ([rest] if rest else [])
    return tuple(
        TraceNode(name=f"node-{number:04}", cards=cards, model=model) for number, cards in enumerate(sizes, start=1)
    )


def total_cards(nodes: Sequence[TraceNode]) -> int:
    """Cards of all nodes together."""
    return sum(node.cards for node in nodes)
