"""hcclrank: the rank of each pod as an annotation, for Ascend's collective communication."""

from baton.job_plugins.plugin import Plugin, find_task
from baton.job_plugins.pod_bodies import Body
from baton.model.volcano import Job, TaskSpec


class HcclRank(Plugin):
    name = "hcclrank"
    arguments = {"master": "master", "worker": "worker"}

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        master = find_task(job, self.text("master"))
        if task.name == self.text("worker"):
            rank = index + (master.replicas if master is not None else 0)
        elif master is not None and task.name == master.name:
            rank = index
        else:
            return
        pod["metadata"]["annotations"]["hccl/rankIndex"] = str(rank)
