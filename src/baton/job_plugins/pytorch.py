"""pytorch: the rendezvous of torch.distributed: the master's address, the world size and the rank of each pod."""

import shlex

from baton.job_plugins.plugin import Plugin, add_env, containers, find_task, hosts_of, open_port
from baton.job_plugins.pod_bodies import Body
from baton.model.volcano import Job, TaskSpec

_PORT_NAME = "pytorchjob-port"
_WAITING = "wait-for-master"


class Pytorch(Plugin):
    name = "pytorch"
    arguments = {
        "master": "master",
        "worker": "worker",
        "port": 23456,
        "wait-master-enabled": False,
        "wait-master-timeout": 300,
        "wait-master-image": "busybox:1.36.1",
    }

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        master = find_task(job, self.text("master"))
        if master is None:
            return
        address = next(iter(hosts_of(job, master)), "")
        variables = [
            {"name": "MASTER_ADDR", "value": address},
            {"name": "MASTER_PORT", "value": str(self.number("port"))},
            {"name": "WORLD_SIZE", "value": str(job.spec.total)},
        ]
        if task.name == master.name:
            variables.append({"name": "RANK", "value": str(index)})
        elif task.name == self.text("worker"):
            variables.append({"name": "RANK", "value": str(master.replicas + index)})
            if self.flag("wait-master-enabled"):
                self._wait_for(address, pod)
        for container in containers(pod):
            open_port(container, _PORT_NAME, self.number("port"))
        add_env(containers(pod), *variables)

    def _wait_for(self, address: str, pod: Body) -> None:
        """Add an init container that waits for the master to listen, and fails after a timeout."""
        probe = f"nc -z -w 2 {shlex.quote(address)} {self.number('port')}"
        script = (
            f"left={self.number('wait-master-timeout')}; until {probe}; do "
            'left=$((left - 2)); [ "$left" -gt 0 ] || { echo "the master did not come up in time" >&2; exit 1; }; '
            "sleep 2; done"
        )
        waiting = {"name": _WAITING, "image": self.text("wait-master-image"), "command": ["sh", "-c", script]}
        pod["spec"]["initContainers"] = [*(pod["spec"].get("initContainers") or ()), waiting]
