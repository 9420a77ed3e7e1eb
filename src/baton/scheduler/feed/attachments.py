"""Which volume a node attaches for a claim, through which CSI driver, and how many volumes each node can attach.

Only drivers with a limit on some node matter. Volumes of other drivers are left out, so that pods that differ in
nothing more stay equal for the engine. A claim without a volume counts under its own name, for the driver that will
provision it. Volumes of the types before CSI count for the drivers that serve them today.
"""

from collections import Counter
from collections.abc import Callable

from baton.kube.store import Delta, Store
from baton.model import core
from baton.model.ids import Key
from baton.model.quantities import Amounts

EBS, PD, AZURE_DISK = "ebs.csi.aws.com", "pd.csi.storage.gke.io", "disk.csi.azure.com"
_SERVED_BY = {"kubernetes.io/aws-ebs": EBS, "kubernetes.io/gce-pd": PD, "kubernetes.io/azure-disk": AZURE_DISK}
"""Provisioners from before CSI."""

Attachment = tuple[str, str]
"""Driver and volume."""


class DriverLimits:
    """The limits from CSINodes. `changed` is called with a node whose limits changed, or None if the set of drivers
    did."""

    def __init__(self, changed: Callable[[str | None], None]) -> None:
        self._changed = changed
        self.nodes: Store[core.CsiNode] = Store()
        self._nodes_with: Counter[str] = Counter()
        self.nodes.subscribe(self._node_moved)

    def on(self, node: str) -> Amounts:
        """How many volumes the node can attach, by driver."""
        return _limits(self.nodes.get(Key(node)))

    def __contains__(self, driver: str) -> bool:
        """Whether any node has a limit for it."""
        return driver in self._nodes_with

    def _node_moved(self, delta: Delta[core.CsiNode]) -> None:
        before, after = _limits(delta.old), _limits(delta.new)
        if before == after:
            return
        known = set(self._nodes_with)
        self._nodes_with += Counter(driver for driver, _ in after)
        self._nodes_with -= Counter(driver for driver, _ in before)
        self._changed(delta.key)
        if set(self._nodes_with) != known:
            self._changed(None)


def attached_as(volume: core.PersistentVolume) -> Attachment | None:
    """None for a volume that no CSI driver serves."""
    spec = volume.spec
    if spec.csi is not None:
        return spec.csi.driver, spec.csi.volume_handle
    if spec.aws_elastic_block_store is not None:
        return EBS, spec.aws_elastic_block_store.volume_id
    if spec.gce_persistent_disk is not None:
        return PD, spec.gce_persistent_disk.pd_name
    if spec.azure_disk is not None:
        return AZURE_DISK, spec.azure_disk.disk_name
    return None


def to_be_attached(claim: core.Claim, kind: core.StorageClass) -> Attachment:
    """The name under which a claim counts until it has a volume."""
    driver = _SERVED_BY.get(kind.provisioner, kind.provisioner)
    return driver, f"claim {claim.metadata.namespace}/{claim.metadata.name}"


def _limits(node: core.CsiNode | None) -> Amounts:
    if node is None:
        return ()
    counts = {driver.name: driver.allocatable.count for driver in node.spec.drivers if driver.allocatable is not None}
    return tuple(sorted((name, count) for name, count in counts.items() if count is not None))
