"""svc: pods of a job find each other.

A headless Service named like the job gives every pod the address `POD.JOB`; a ConfigMap `JOB-svc` lists the addresses
by task, as files under /etc/volcano and as environment variables; a NetworkPolicy blocks all other traffic.
"""

from baton.job_plugins.plugin import (
    CONFIG_MAPS,
    NETWORK_POLICIES,
    SERVICES,
    Plugin,
    PluginObject,
    add_env,
    all_containers,
    hosts_of,
)
from baton.job_plugins.pod_bodies import Body, add_mount, add_volume
from baton.model.names import JOB_NAME, JOB_NAMESPACE
from baton.model.volcano import Job, TaskSpec

MOUNT_PATH = "/etc/volcano"
_LONGEST_HOSTNAME = 63


class Svc(Plugin):
    name = "svc"
    arguments = {
        "publish-not-ready-addresses": False,
        "disable-network-policy": False,
        "inject-hosts-env": True,
    }

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        spec = pod["spec"]
        name = pod["metadata"]["name"]
        if not spec.get("hostname") and len(name) <= _LONGEST_HOSTNAME:
            spec["hostname"] = name
        if not spec.get("subdomain"):
            spec["subdomain"] = job.metadata.name
        config = config_map_name(job)
        if self.flag("inject-hosts-env"):
            names = [name for task in job.spec.tasks for name in (_hosts_key(task), _number_key(task))]
            add_env(
                all_containers(pod),
                *({"name": name, "valueFrom": {"configMapKeyRef": {"name": config, "key": name}}} for name in names),
            )
        add_volume(spec, {"name": config, "configMap": {"name": config}})
        add_mount(all_containers(pod), {"name": config, "mountPath": MOUNT_PATH})

    def objects(self, job: Job) -> list[PluginObject]:
        name = job.metadata.name
        things = [
            PluginObject(CONFIG_MAPS, config_map_name(job), lambda: {"data": hosts(job)}, renewed=True),
            PluginObject(SERVICES, name, lambda: self._service(job)),
        ]
        if not self.flag("disable-network-policy"):
            things.append(PluginObject(NETWORK_POLICIES, name, lambda: _network_policy(job)))
        return things

    def _service(self, job: Job) -> Body:
        return {
            "spec": {
                "clusterIP": "None",
                "selector": _selector(job),
                "publishNotReadyAddresses": self.flag("publish-not-ready-addresses"),
            }
        }


def config_map_name(job: Job) -> str:
    return f"{job.metadata.name}-svc"


def hosts(job: Job) -> dict[str, str]:
    """The data of the ConfigMap: for each task a file of addresses, the addresses in one line, and their number."""
    data: dict[str, str] = {}
    for task in job.spec.tasks:
        addresses = hosts_of(job, task)
        data[f"{_word(task)}.host"] = "\n".join(addresses)
        data[_hosts_key(task)] = ",".join(addresses)
        data[_number_key(task)] = str(len(addresses))
    return data


def _network_policy(job: Job) -> Body:
    mine = {"matchLabels": _selector(job)}
    return {
        "spec": {"podSelector": mine, "ingress": [{"from": [{"podSelector": mine}]}], "policyTypes": ["Ingress"]},
    }


def _selector(job: Job) -> dict[str, str]:
    return {JOB_NAME: job.metadata.name, JOB_NAMESPACE: job.metadata.namespace}


def _word(task: TaskSpec) -> str:
    return task.name.replace("-", "_")


def _hosts_key(task: TaskSpec) -> str:
    return f"VC_{_word(task).upper()}_HOSTS"


def _number_key(task: TaskSpec) -> str:
    return f"VC_{_word(task).upper()}_NUM"
