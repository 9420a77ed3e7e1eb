"""Prefer nodes in quiet racks, and keep away from racks under repair.

baton scheduler --config quiet_racks.conf --plugin quiet_racks.py
baton sim run --policy quiet_racks.conf --plugin quiet_racks.py
baton state replay state.jsonl --config quiet_racks.conf --plugin quiet_racks.py
"""

from baton.engine.framework import NoArguments, Node, PerNode, Task


class QuietRacks(PerNode[NoArguments]):
    """Reads the label `rack` of nodes."""

    name = "quiet-racks"

    def fits(self, task: Task, node: Node) -> str | None:
        return "is in a rack under repair" if ("rack", "broken") in node.labels else None

    def rate(self, task: Task, node: Node) -> float:
        return 100.0 if ("rack", "quiet") in node.labels else 0.0
