"""The built-in plugins, in packages by what they decide.

A new plugin is a file in one of these packages and a line in `BUILT_IN`.
"""

from collections.abc import Mapping
from typing import Any

from baton.engine.framework import Plugin
from baton.engine.plugins.jobs.drf import DrfPlugin
from baton.engine.plugins.jobs.easybackfill import EasyBackfillPlugin
from baton.engine.plugins.jobs.gang import GangPlugin
from baton.engine.plugins.jobs.joborder import JobOrderPlugin
from baton.engine.plugins.jobs.priority import PriorityPlugin
from baton.engine.plugins.jobs.sla import SlaPlugin
from baton.engine.plugins.places.binpack import BinpackPlugin
from baton.engine.plugins.places.deviceshare import DeviceSharePlugin
from baton.engine.plugins.places.fragmentation import FragmentationPlugin
from baton.engine.plugins.places.networktopology import NetworkTopologyPlugin
from baton.engine.plugins.places.nodegroup import NodeGroupPlugin
from baton.engine.plugins.places.nodeorder import NodeOrderPlugin
from baton.engine.plugins.places.predicates import PredicatesPlugin
from baton.engine.plugins.places.tasktopology import TaskTopologyPlugin
from baton.engine.plugins.places.tdm import TdmPlugin
from baton.engine.plugins.places.usage import UsagePlugin
from baton.engine.plugins.queues.capacity import CapacityPlugin
from baton.engine.plugins.queues.overcommit import OvercommitPlugin
from baton.engine.plugins.queues.proportion import ProportionPlugin
from baton.engine.plugins.queues.resourcequota import ResourceQuotaPlugin
from baton.engine.plugins.victims.cdp import CdpPlugin
from baton.engine.plugins.victims.conformance import ConformancePlugin
from baton.engine.plugins.victims.pdb import PdbPlugin

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
