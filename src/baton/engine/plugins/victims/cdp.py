"""Cooldown protection: a pod that has just started is not evicted during its cooldown time."""

from collections.abc import Sequence

from baton.engine.framework import NoArguments, Plugin, SessionView, Task


class CdpPlugin(Plugin[NoArguments]):
    name = "cdp"

    def open(self, session: SessionView) -> None:
        self._now_s = session.now_s

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task]:
        return [victim for victim in victims if self._cooled(victim)]

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task]:
        return [victim for victim in victims if self._cooled(victim)]

    def _cooled(self, victim: Task) -> bool:
        pod = victim.pod
        if not pod.cooldown_s or pod.started_s is None:
            return True
        return self._now_s >= pod.started_s + pod.cooldown_s
