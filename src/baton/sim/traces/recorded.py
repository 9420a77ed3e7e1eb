"""A recorded cluster state: the engine's events as JSON lines, as `baton state dump` writes them.

Nodes keep their labels, taints and cards. Running pods stay in place for the whole simulation, because a record does
not say when they would have ended; the trace gets the room that they leave. Waiting pods are left out.
"""

from pathlib import Path

from baton.engine import records
from baton.engine.events import NodeChanged, NodeRemoved, PodChanged, PodRemoved
from baton.engine.objects import Node, Pod
from baton.errors import BatonError
from baton.model.ids import NodeName, PodKey
from baton.model.names import PodPhase


def read_state(path: Path) -> tuple[tuple[Node, ...], tuple[Pod, ...]]:
    """The nodes and the running pods at the end of the record."""
    nodes: dict[NodeName, Node] = {}
    pods: dict[PodKey, Pod] = {}
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BatonError(f"{path} cannot be opened: {error.strerror or error}") from None
    for event in records.read(content, str(path)).events:
        if isinstance(event, NodeChanged):
            nodes[event.node.name] = event.node
        elif isinstance(event, NodeRemoved):
            nodes.pop(event.name, None)
        elif isinstance(event, PodChanged):
            pods[event.pod.key] = event.pod
        elif isinstance(event, PodRemoved):
            pods.pop(event.key, None)
    if not nodes:
        raise BatonError(f"{path} has no node; expected at least one NodeChanged event")
    running = tuple(
        pod for pod in pods.values() if pod.node in nodes and pod.phase in (PodPhase.RUNNING, PodPhase.PENDING)
    )
    return tuple(nodes.values()), running
