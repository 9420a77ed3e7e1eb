"""The plugins that ship with the engine; a new one is a file beside these and a line in `BUILT_IN`."""

from collections.abc import Mapping
from typing import Any

from baton.engine.plugins.binpack import BinpackPlugin
from baton.engine.plugins.capacity import CapacityPlugin
from baton.engine.plugins.cdp import CdpPlugin
from baton.engine.plugins.conformance import ConformancePlugin
from baton.engine.plugins.deviceshare import DeviceSharePlugin
from baton.engine.plugins.drf import DrfPlugin
from baton.engine.plugins.easybackfill import EasyBackfillPlugin
from baton.engine.plugins.fragmentation import FragmentationPlugin
from baton.engine.plugins.gang import GangPlugin
from baton.engine.plugins.joborder import JobOrderPlugin
from baton.engine.plugins.networktopology import NetworkTopologyPlugin
from baton.engine.plugins.nodegroup import NodeGroupPlugin
from baton.engine.plugins.nodeorder import NodeOrderPlugin
from baton.engine.plugins.overcommit import OvercommitPlugin
from baton.engine.plugins.pdb import PdbPlugin
from baton.engine.plugins.predicates import PredicatesPlugin
from baton.engine.plugins.priority import PriorityPlugin
from baton.engine.plugins.proportion import ProportionPlugin
from baton.engine.plugins.resourcequota import ResourceQuotaPlugin
from baton.engine.plugins.sla import SlaPlugin
from baton.engine.plugins.tasktopology import TaskTopologyPlugin
from baton.engine.plugins.tdm import TdmPlugin
from baton.engine.plugins.usage import UsagePlugin
from baton.engine.session.plugin import Plugin

BUILT_IN: Mapping[str, type[Plugin[Any]]] = {
    plugin.name: plugin
    for plugin in (
        PriorityPlugin,
        GangPlugin,
        ConformancePlugin,
        DrfPlugin,
        ProportionPlugin,
        CapacityPlugin,
        PredicatesPlugin,
        NodeOrderPlugin,
        BinpackPlugin,
        OvercommitPlugin,
        SlaPlugin,
        DeviceSharePlugin,
        UsagePlugin,
        ResourceQuotaPlugin,
        NodeGroupPlugin,
        TdmPlugin,
        TaskTopologyPlugin,
        NetworkTopologyPlugin,
        PdbPlugin,
        CdpPlugin,
        FragmentationPlugin,
        JobOrderPlugin,
        EasyBackfillPlugin,
    )
}
