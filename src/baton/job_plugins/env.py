"""env: tells every container the index of its replica in the task."""

from baton.job_plugins.plugin import Plugin, add_env, all_containers
from baton.job_plugins.pod_bodies import Body
from baton.model.volcano import Job, TaskSpec


class Env(Plugin):
    name = "env"

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        variables = [{"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
        add_env(all_containers(pod), *variables)
