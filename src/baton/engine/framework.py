"""Everything that a scheduling plugin needs from the engine, and the only engine module that a plugin imports.

    from baton.engine.framework import NoArguments, PerNode

    class QuietRacks(PerNode[NoArguments]):
        name = "quiet-racks"
        ...

Built-in plugins and user plugins depend on this module alone, so the rest of the engine may change.
"""

from baton.engine.cards.demands import Demand, Needs
from baton.engine.cards.fragmentation import TYPICAL_SHARE
from baton.engine.cards.fragments import Workload, card_and_node_scores
from baton.engine.cards.ledger import CLAIMS as CARD_CLAIMS
from baton.engine.cards.ledger import MEMORY as CARD_MEMORY
from baton.engine.cards.ledger import SHARE as CARD_SHARE
from baton.engine.cards.ledger import SLOT as CARD_SLOT
from baton.engine.objects import (
    Budget,
    Card,
    CardKind,
    LabelSelector,
    Node,
    Pod,
    PodGroup,
    PodSpec,
    Queue,
    Quota,
    SpreadConstraint,
    Taint,
    Toleration,
)
from baton.engine.search.domains import DomainView, tightness
from baton.engine.search.room import copies_at_most, fitting_cards
from baton.engine.search.selectors import term_holds, terms_hold
from baton.engine.session.plugin import (
    MAX_SCORE,
    Check,
    Lack,
    NoArguments,
    OrderKey,
    PerNode,
    Plugin,
    Scope,
    SessionView,
    Vote,
)
from baton.engine.session.shares import (
    SHARE_EPSILON,
    InqueueSums,
    counted,
    dominant_share,
    guaranteed_left,
    in_use,
    lacks,
    min_resources,
    own_amounts,
    real_capability,
    richer_than,
    together,
)
from baton.engine.session.surplus import surplus
from baton.engine.state.affinity import PlacedPods
from baton.engine.state.changes import Change
from baton.engine.state.columns import BOTH, FUTURE, NOW, Array, Bools, Floats, Rows
from baton.engine.state.hypernodes import Tier
from baton.engine.state.jobs import CHARGED, HELD, ON_NODE, READY, VALID, Job, QueueShare, Status, Task
from baton.engine.state.nodes import WITHHELD, NodeTable, NodeView
from baton.engine.state.resources import CPU, MEMORY, PODS, Vector
from baton.model.names import PodGroupPhase

__all__ = [
    "BOTH",
    "CARD_CLAIMS",
    "CARD_MEMORY",
    "CARD_SHARE",
    "CARD_SLOT",
    "CHARGED",
    "CPU",
    "FUTURE",
    "HELD",
    "MAX_SCORE",
    "MEMORY",
    "NOW",
    "ON_NODE",
    "PODS",
    "READY",
    "SHARE_EPSILON",
    "TYPICAL_SHARE",
    "VALID",
    "WITHHELD",
    "Array",
    "Bools",
    "Budget",
    "Card",
    "CardKind",
    "Change",
    "Check",
    "Demand",
    "DomainView",
    "Floats",
    "InqueueSums",
    "Job",
    "LabelSelector",
    "Lack",
    "Needs",
    "NoArguments",
    "Node",
    "NodeTable",
    "NodeView",
    "OrderKey",
    "PerNode",
    "PlacedPods",
    "Plugin",
    "Pod",
    "PodGroup",
    "PodGroupPhase",
    "PodSpec",
    "Queue",
    "QueueShare",
    "Quota",
    "Rows",
    "Scope",
    "SessionView",
    "SpreadConstraint",
    "Status",
    "Taint",
    "Task",
    "Tier",
    "Toleration",
    "Vector",
    "Vote",
    "Workload",
    "card_and_node_scores",
    "copies_at_most",
    "counted",
    "dominant_share",
    "fitting_cards",
    "guaranteed_left",
    "in_use",
    "lacks",
    "min_resources",
    "own_amounts",
    "real_capability",
    "richer_than",
    "surplus",
    "term_holds",
    "terms_hold",
    "tightness",
    "together",
]
