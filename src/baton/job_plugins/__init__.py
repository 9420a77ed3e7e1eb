"""The `plugins` of jobs: their changes to pods, and the objects that they add to a job.

A plugin is one short file with a class like `Plugin`; adding one touches that file and one line in the list below.
"""

from baton.job_plugins.env import Env
from baton.job_plugins.hcclrank import HcclRank
from baton.job_plugins.mpi import Mpi
from baton.job_plugins.plugin import Plugin
from baton.job_plugins.pytorch import Pytorch
from baton.job_plugins.ray import Ray
from baton.job_plugins.ssh import Ssh
from baton.job_plugins.svc import Svc
from baton.job_plugins.tensorflow import Tensorflow
from baton.model.volcano import JobSpec

PLUGINS: tuple[type[Plugin], ...] = (Svc, Env, Ssh, Pytorch, Tensorflow, Mpi, Ray, HcclRank)
"""In the order in which they change a pod."""

IMPLIED = {"tensorflow": ("svc",), "pytorch": ("svc",), "ray": ("svc",), "mpi": ("svc", "ssh")}
"""Plugins that need others. Admission adds them to the job; a job that bypassed admission has them nevertheless."""


def plugins_of(spec: JobSpec) -> list[Plugin]:
    """The plugins of the job in a fixed order. Unknown names, which admission refuses, are skipped."""
    asked = dict(spec.plugins)
    for name in tuple(asked):
        for needed in IMPLIED.get(name, ()):
            asked.setdefault(needed, ())
    return [plugin(asked[plugin.name]) for plugin in PLUGINS if plugin.name in asked]


__all__ = ["IMPLIED", "PLUGINS", "Plugin", "plugins_of"]
