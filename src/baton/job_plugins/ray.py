"""ray: one head, any number of workers that join it, and a Service `JOB-head-svc` for clients and the dashboard."""

from baton.job_plugins.plugin import SERVICES, Plugin, PluginObject, containers, find_task, hosts_of, open_port
from baton.job_plugins.pod_bodies import Body
from baton.model.names import JOB_NAME, JOB_NAMESPACE, TASK_SPEC
from baton.model.volcano import Job, TaskSpec

_PORTS = {"gcs": "port", "dashboard": "dashboardPort", "client-server": "clientPort"}
"""Port names and the arguments with their numbers."""


class Ray(Plugin):
    name = "ray"
    arguments = {
        "head": "head",
        "headContainer": "head",
        "worker": "worker",
        "workerContainer": "worker",
        "port": 6379,
        "dashboardPort": 8265,
        "clientPort": 10001,
    }

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        head = find_task(job, self.text("head"))
        if head is None:
            return
        for container in containers(pod):
            if task.name == head.name and container.get("name") == self.text("headContainer"):
                for name, argument in _PORTS.items():
                    open_port(container, name, self.number(argument))
                container["command"] = ["sh", "-c", self._head_command()]
            if task.name == self.text("worker") and container.get("name") == self.text("workerContainer"):
                address = f"{next(iter(hosts_of(job, head)), '')}:{self.number('port')}"
                container["command"] = ["sh", "-c", f"ray start --block --address={address}"]

    def _head_command(self) -> str:
        return (
            "ray start --head --block --dashboard-host=0.0.0.0"
            f" --port={self.number('port')} --dashboard-port={self.number('dashboardPort')}"
            f" --ray-client-server-port={self.number('clientPort')}"
        )

    def objects(self, job: Job) -> list[PluginObject]:
        return [PluginObject(SERVICES, f"{job.metadata.name}-head-svc", lambda: self._service(job))]

    def _service(self, job: Job) -> Body:
        selector = {
            JOB_NAME: job.metadata.name,
            JOB_NAMESPACE: job.metadata.namespace,
            TASK_SPEC: self.text("head"),
        }
        ports = [
            {"name": name, "port": self.number(argument), "targetPort": name, "protocol": "TCP"}
            for name, argument in _PORTS.items()
        ]
        return {"spec": {"selector": selector, "ports": ports}}
