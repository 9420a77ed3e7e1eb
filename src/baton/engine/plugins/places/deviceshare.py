"""GPU sharing: which sharing modes are enabled, and whether to fill cards or to spread over them.

The ledger ensures that no card is overcommitted; this cannot be configured. This plugin scores nodes by the state of
their cards after placement, and orders the cards inside a node by the same policy. Volcano needs an explicit weight
before a policy has any effect; here a policy without a weight has weight 1, and a weight of 0 in the file disables node
scoring but keeps the order of cards.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from baton.engine.framework import (
    CARD_CLAIMS,
    CARD_MEMORY,
    CARD_SHARE,
    CARD_SLOT,
    MAX_SCORE,
    Demand,
    Floats,
    LabelSelector,
    NodeView,
    Plugin,
    Task,
    fitting_cards,
)

POLICIES = ("binpack", "spread")


class DeviceShareArguments(msgspec.Struct, frozen=True):
    gpu_sharing: bool = msgspec.field(default=False, name="deviceshare.GPUSharingEnable")
    gpu_number: bool = msgspec.field(default=False, name="deviceshare.GPUNumberEnable")
    vgpu: bool = msgspec.field(default=False, name="deviceshare.VGPUEnable")
    node_lock: bool = msgspec.field(default=False, name="deviceshare.NodeLockEnable")
    """Volcano's device plugins need a lock on the node; Baton's ledger does not."""
    policy: str = msgspec.field(default="", name="deviceshare.SchedulePolicy")
    weight: int | None = msgspec.field(default=None, name="deviceshare.ScheduleWeight")
    geometries_name: str = msgspec.field(default="volcano-vgpu-device-config", name="deviceshare.KnownGeometriesCMName")
    geometries_namespace: str = msgspec.field(default="kube-system", name="deviceshare.KnownGeometriesCMNamespace")
    exclusive_rules: list[dict[str, str]] = msgspec.field(default_factory=list, name="deviceshare.GPUExclusiveRules")
    """Pods that match the same rule never share a card."""
    mindcluster: bool = msgspec.field(default=False, name="deviceshare.AscendMindClusterVNPUEnable")
    hami_npu: bool = msgspec.field(default=False, name="deviceshare.AscendHAMiVNPUEnable")

    def problems(self) -> Iterator[str]:
        if self.gpu_sharing and self.gpu_number:
            yield "deviceshare.GPUSharingEnable and deviceshare.GPUNumberEnable are both true; keep one of the two"
        if self.vgpu and (self.gpu_sharing or self.gpu_number):
            yield "deviceshare.VGPUEnable is true together with legacy sharing; keep one of the two"


class DeviceSharePlugin(Plugin[DeviceShareArguments]):
    name = "deviceshare"
    arguments_type = DeviceShareArguments

    def __init__(self, arguments: DeviceShareArguments, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self.card_order = arguments.policy if arguments.policy in POLICIES else ""
        self.locks_nodes = arguments.node_lock
        self.weight = 1 if arguments.weight is None else arguments.weight
        self.card_exclusions = tuple(LabelSelector(tuple(sorted(rule.items()))) for rule in arguments.exclusive_rules)

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        if not self.card_order or not self.weight or not task.needs.cards.demands:
            return None
        total = np.zeros(nodes.size)
        cards_wanted = 0
        for demand in task.needs.cards.demands:
            if demand.init is not None:
                continue
            total += self._demand_score(task, demand, nodes)
            cards_wanted += demand.cards
        return total * (MAX_SCORE * self.weight / max(cards_wanted, 1))

    def _whole_cards(self, demand: Demand, nodes: NodeView) -> Floats:
        """Empty cards are all equal, so nodes score by how many of their cards are in use afterwards."""
        present = nodes.column(nodes.ledger.kinds) != 0
        in_use = ((nodes.card_usage()[CARD_CLAIMS] > 0) & present).sum(axis=0, dtype=np.int32) + demand.cards
        fullness = np.minimum(in_use / np.maximum(present.sum(axis=0, dtype=np.int16), 1), 1.0)
        result: Floats = demand.cards * (1.0 - fullness if self.card_order == "spread" else fullness)
        return result

    def _demand_score(self, task: Task, demand: Demand, nodes: NodeView) -> Floats:
        """The sum over the cards that would be granted of how full (binpack) or how empty (spread) they are."""
        usage, capacity = nodes.card_usage(), nodes.card_capacity()
        if demand.exclusive:
            return self._whole_cards(demand, nodes)
        fitting = fitting_cards(task, demand, nodes)
        if self.card_order == "spread":
            value = 1.0 / (1.0 + usage[CARD_CLAIMS])
        elif demand.share_milli and not demand.memory_mib and not demand.memory_percent:
            value = (usage[CARD_SHARE] + demand.share_milli) / np.maximum(capacity[CARD_SHARE], 1)
        elif demand.slots and not demand.memory_mib and not demand.memory_percent:
            value = (usage[CARD_SLOT] + 1) / np.maximum(capacity[CARD_SLOT], 1)
        else:
            need = demand.memory_need(nodes.column(nodes.ledger.physical_mib))
            value = (usage[CARD_MEMORY] + (0 if need is None else need)) / np.maximum(capacity[CARD_MEMORY], 1)
        value = np.where(fitting, value, -1.0)
        if demand.cards == 1:
            best: Floats = value.max(axis=0)
            return np.maximum(best, 0.0)
        count = min(demand.cards, value.shape[0])
        top: Floats = -np.partition(-value, count - 1, axis=0)[:count]
        total: Floats = np.maximum(top, 0.0).sum(axis=0)
        return total
