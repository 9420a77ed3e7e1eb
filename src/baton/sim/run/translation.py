"""A trace as the engine's objects: nodes with their cards, jobs as groups of pods.

There is one spec per shape of task, because the engine recognises equal tasks by their spec and reuses its results for
them. Card models are matched by a node label and not by a rule about cards: a trace names the exact model, whereas a
rule also accepts a part of the name.
"""

from functools import lru_cache

from baton.engine.cards.fragmentation import WHOLE_CARD
from baton.engine.objects import (
    Card,
    CardGrant,
    CardKind,
    CardRequest,
    Container,
    Node,
    NodeTerm,
    Pod,
    PodGroup,
    PodSpec,
    Requirement,
)
from baton.model.ids import CardId, GroupKey, NodeName, PodKey, QueueName
from baton.model.names import PodPhase
from baton.sim.traces.workload import TraceJob, TraceNode

MODEL_LABEL = "baton.dev/card-model"
MIB = 1024 * 1024
_PODS_PER_NODE = 1000


def engine_node(node: TraceNode, slots_per_card: int) -> Node:
    """The node with its cards; each card serves `slots_per_card` jobs at once."""
    return Node(
        name=NodeName(node.name),
        allocatable=(("cpu", node.cpu_milli), ("memory", node.memory_mib * MIB), ("pods", _PODS_PER_NODE)),
        labels=((MODEL_LABEL, node.model),),
        cards=tuple(
            Card(
                id=CardId(f"{node.name}/{position}"),
                memory_mib=node.card_memory_mib,
                slots=slots_per_card,
                model=node.model,
            )
            for position in range(node.cards)
        ),
    )


def model_of(node: Node) -> str:
    """The model in the node's label, or else the model of its first card."""
    labelled = dict(node.labels).get(MODEL_LABEL)
    if labelled is not None:
        return labelled
    return node.cards[0].model if node.cards else ""


@lru_cache(maxsize=4096)
def _spec(
    cpu_milli: int, memory_mib: int, cards: int, milli: int, card_memory_mib: int, models: tuple[str, ...], slots: bool
) -> PodSpec:
    request: tuple[CardRequest, ...] = ()
    if cards:
        if slots:
            request = (CardRequest(kind=CardKind.SLOT, count=cards),)
        elif milli < WHOLE_CARD:
            request = (CardRequest(kind=CardKind.FRACTION, count=cards, share_milli=milli, memory_mib=card_memory_mib),)
        else:
            request = (CardRequest(kind=CardKind.WHOLE, count=cards),)
    terms: tuple[NodeTerm, ...] = ()
    if models:
        terms = (NodeTerm(expressions=(Requirement(MODEL_LABEL, "In", models),)),)
    requests = (("cpu", cpu_milli), ("memory", memory_mib * MIB))
    return PodSpec(containers=(Container(requests=requests, cards=request),), node_terms=terms)


def engine_group(
    job: TraceJob, queue: str, *, priority: int, expected_s: float | None, attained_gpu_s: float = 0.0
) -> PodGroup:
    """The job as the engine's pod group."""
    return PodGroup(
        key=GroupKey(f"{job.tenant}/{job.name}"),
        queue=QueueName(queue),
        min_member=job.tasks,
        priority=priority,
        created_s=job.submit_s,
        expected_duration_s=expected_s,
        attained_gpu_s=attained_gpu_s,
    )


def engine_pods(job: TraceJob, *, priority: int, attempt: int, slots: bool, enforce_memory: bool) -> tuple[Pod, ...]:
    """The job's pending pods; a new attempt makes new pods with the same names."""
    card_memory_mib = job.card_memory_mib if enforce_memory else 0
    spec = _spec(job.cpu_milli, job.memory_mib, job.cards, job.milli, card_memory_mib, job.models, slots)
    return tuple(
        Pod(
            key=PodKey(f"{job.tenant}/{job.name}-{index}"),
            uid=f"{job.name}-{index}-{attempt}",
            spec=spec,
            group=GroupKey(f"{job.tenant}/{job.name}"),
            index=index,
            priority=priority,
            preemptable=job.restartable,
            created_s=job.submit_s,
        )
        for index in range(job.tasks)
    )


def running_pod(pod: Pod, node: NodeName, cards: tuple[CardGrant, ...], now_s: float) -> Pod:
    """The pod after it has started on the node."""
    return Pod(
        key=pod.key,
        uid=pod.uid,
        spec=pod.spec,
        group=pod.group,
        index=pod.index,
        priority=pod.priority,
        preemptable=pod.preemptable,
        phase=PodPhase.RUNNING,
        node=node,
        cards=cards,
        created_s=pod.created_s,
        started_s=now_s,
    )
