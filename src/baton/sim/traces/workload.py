"""The jobs and nodes that a simulation runs, as every trace format describes them.

A job is a gang of equal tasks. Each task asks for CPU, memory and cards. `milli` is its part of each card (1000 is the
whole card), `card_memory_mib` the memory that it uses on each card, and `utilisation` how busy it keeps a card when it
runs alone. The last two matter for time-shared cards; public traces rarely include them.
"""

from collections.abc import Sequence

import msgspec

from baton.engine.cards.fragmentation import WHOLE_CARD, Shape


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job of a trace. A job without a duration never ends, like the pods of a fill."""

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
        """What one task requests from a node."""
        return Shape(self.cpu_milli, self.milli if self.cards else 0, self.cards, self.models)

    @property
    def total_milli(self) -> int:
        """The request of all tasks together, in thousandths of a card."""
        return self.tasks * self.cards * self.milli

    @property
    def gpus(self) -> float:
        """The cards of all tasks together."""
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
    """The jobs of a file in order of submission, and the skipped rows."""

    source: str
    jobs: tuple[TraceJob, ...]
    skipped: tuple[Skipped, ...] = ()

    def report(self) -> str:
        """One sentence on the rows that were read and skipped."""
        return f"{self.source}: {len(self.jobs):,} jobs{skipped_rows(self.skipped, ', ')}"


def skipped_rows(skipped: Sequence[Skipped], lead: str = "") -> str:
    """How many rows were skipped, and why the first one was, after the lead; nothing when none was."""
    if not skipped:
        return ""
    return f"{lead}{len(skipped):,} rows skipped (first: line {skipped[0].line}, {skipped[0].reason})"


def uniform_cluster(gpus: int, cards_per_node: int = 8, model: str = "GPU") -> tuple[TraceNode, ...]:
    """Nodes of `cards_per_node` cards with `gpus` cards in total; the last node takes the remainder."""
    full, rest = divmod(gpus, cards_per_node)
    sizes = [cards_per_node] * full + ([rest] if rest else [])
    return tuple(
        TraceNode(name=f"node-{number:04}", cards=cards, model=model) for number, cards in enumerate(sizes, start=1)
    )


def total_cards(nodes: Sequence[TraceNode]) -> int:
    """The cards of all nodes together."""
    return sum(node.cards for node in nodes)
