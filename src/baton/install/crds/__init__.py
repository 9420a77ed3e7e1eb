"""The custom resources: Volcano's kinds, with schemas written here.

This is the one source. `baton install --crds` applies what `definitions()` returns; `deploy/crds/crds.yaml` has
the same objects for those who install with kubectl, written by `make manifests` and compared by a test.
"""

from baton.install.crds.flows import job_flow, job_template
from baton.install.crds.jobs import cron_job, job
from baton.install.crds.scheduling import command, pod_group, queue
from baton.install.crds.schemas import Schema
from baton.install.crds.topology import hyper_node


def definitions() -> list[Schema]:
    """Every CustomResourceDefinition, in the order in which they are listed to people."""
    return [job(), cron_job(), queue(), pod_group(), command(), job_template(), job_flow(), hyper_node()]
