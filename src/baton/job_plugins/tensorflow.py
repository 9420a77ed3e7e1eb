"""tensorflow: TF_CONFIG, with the cluster by role and the position of each pod in it."""

import msgspec

from baton.job_plugins.plugin import Plugin, add_env, containers, hosts_of
from baton.job_plugins.pod_bodies import Body
from baton.model.volcano import Job, TaskSpec

_ROLES = ("ps", "worker", "chief", "evaluator")


class Tensorflow(Plugin):
    name = "tensorflow"
    arguments = {
        **{role: role for role in _ROLES},
        "port": 2222,
    }

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        if job.spec.total == 1:
            return  # a single program needs no cluster
        roles = {self.text(role): role for role in _ROLES}
        cluster = {
            roles[other.name]: [f"{host}:{self.number('port')}" for host in hosts_of(job, other)]
            for other in job.spec.tasks
            if other.name in roles and other.replicas
        }
        ordered = {role: cluster[role] for role in _ROLES if role in cluster}
        config = {"cluster": ordered, "task": {"type": roles.get(task.name, task.name), "index": index}}
        add_env(containers(pod), {"name": "TF_CONFIG", "value": msgspec.json.encode(config).decode()})
