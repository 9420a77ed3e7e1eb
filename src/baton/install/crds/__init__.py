"""The custom resource definitions: Volcano's kinds, with Baton's schemas. One module per API group.

This package is the only source. `baton install --crds` applies the result of `definitions()`; `make manifests` writes
the same objects to `deploy/crds/crds.yaml` for installations with kubectl, and a test compares the two.
"""

from baton.install.crds.flows import job_flow, job_template
from baton.install.crds.jobs import cron_job, job
from baton.install.crds.scheduling import command, pod_group, queue
from baton.install.crds.schemas import Schema
from baton.install.crds.topology import hyper_node


def definitions() -> list[Schema]:
    """Every CustomResourceDefinition, in the order in which people read them."""
    return [job(), cron_job(), queue(), pod_group(), command(), job_template(), job_flow(), hyper_node()]
