"""Higher priority goes first, and only lower priority is preempted."""

from collections.abc import Sequence

from baton.engine.framework import Job, NoArguments, OrderKey, Plugin, Task


class PriorityPlugin(Plugin[NoArguments]):
    name = "priority"

    def job_key(self, job: Job) -> OrderKey:
        return (-job.priority,)

    def task_key(self, task: Task) -> OrderKey:
        return (-task.priority,)

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task]:
        if preemptor.job is None:
            return []
        mine = preemptor.job
        return [
            victim
            for victim in victims
            if (
                victim.priority < preemptor.priority
                if victim.job is mine
                else victim.job is not None and victim.job.priority < mine.priority
            )
        ]

    def job_starving(self, job: Job) -> bool:
        return job.ready_count() + job.pipelined_count() < len(job.tasks)
