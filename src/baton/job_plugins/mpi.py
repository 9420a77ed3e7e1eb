"""mpi: the master knows its workers, and all pods open a port for ssh."""

from baton.job_plugins.plugin import Plugin, add_env, all_containers, find_task, hosts_of, open_port
from baton.job_plugins.pod_bodies import Body
from baton.model.volcano import Job, TaskSpec

_PORT_NAME = "mpijob-port"


class Mpi(Plugin):
    name = "mpi"
    arguments = {"master": "master", "worker": "worker", "port": 22}

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        for container in all_containers(pod):
            open_port(container, _PORT_NAME, self.number("port"))
        workers = find_task(job, self.text("worker"))
        if task.name == self.text("master") and workers is not None:
            add_env(all_containers(pod), {"name": "MPI_HOST", "value": ",".join(hosts_of(job, workers))})
