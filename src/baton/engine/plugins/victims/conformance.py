"""Protects the pods that keep the cluster alive: critical priority classes and the kube-system namespace."""

from collections.abc import Sequence

from baton.engine.framework import NoArguments, Plugin, Task

SYSTEM_NAMESPACE = "kube-system"


class ConformancePlugin(Plugin[NoArguments]):
    name = "conformance"

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task]:
        return [victim for victim in victims if not victim.pod.critical and victim.pod.namespace != SYSTEM_NAMESPACE]

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task]:
        return self.preemptable(reclaimer, victims)
