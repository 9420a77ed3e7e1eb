"""What the job controller remembers outside the API server, and which job an object belongs to."""

import itertools
import time
from collections.abc import Iterable

import msgspec

from baton.controllers.job.census import TARGETED, phase_of
from baton.controllers.job.lifecycle import PodView
from baton.controllers.job.pods import TemplateError
from baton.errors import BatonError
from baton.job_plugins.pod_bodies import pod_name
from baton.kube.errors import ApiError, InvalidError
from baton.kube.queue import doubled
from baton.model.core import Pod
from baton.model.meta import Metadata
from baton.model.names import JobPhase
from baton.model.volcano import BATCH, JOB_KIND, Command, Job, PodGroup

REFUSED = "FailedCreate"
"""The reason in events and in the status of a job whose pods the API server refuses."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0


class Refusal(msgspec.Struct, frozen=True):
    """Pods were refused. They are not tried again before the pause is over, even if the job is synced earlier."""

    words: str
    times: int
    until_s: float

    @property
    def left_s(self) -> float:
        return max(0.0, self.until_s - time.monotonic())


class Memory(msgspec.Struct):
    """What is remembered about a job outside the API server. All of it may be lost."""

    uid: str
    shape: tuple[object, ...] = ()
    """The changeable fields of the spec."""
    updated: bool = False
    """They changed, and no policy has answered it yet, or its timeout runs."""
    gone: dict[str, PodView] = {}
    seen_s: dict[tuple[str, str, str], float] = {}
    due_s: float | None = None
    """When the counts are due to be written."""
    reported: str = ""
    """The last event about a PodGroup that waits, so that it is not repeated."""
    done: set[str] = set()
    """Uids of commands that were carried out."""
    refusal: Refusal | None = None

    def refused(self, error: BatonError) -> None:
        times = self.refusal.times + 1 if self.refusal is not None else 1
        pause_s = doubled(_FIRST_PAUSE_S, times - 1, _LONGEST_PAUSE_S)
        self.refusal = Refusal(_refusal_words(error), times, time.monotonic() + pause_s)

    def hurry(self) -> None:
        """Try refused pods again at once, because the API server may accept them now."""
        if self.refusal is not None:
            self.refusal = msgspec.structs.replace(self.refusal, until_s=0.0)

    def forget_causes(self) -> None:
        """Policies have answered all events, or none applies."""
        self.updated = False
        self.gone.clear()
        self.seen_s.clear()


def _refusal_words(error: BatonError) -> str:
    reason = error.message if isinstance(error, ApiError) else str(error)
    if isinstance(error, InvalidError | TemplateError):
        words = "no pods can be created from this template"
        return f"{words}: {reason}; delete the job, fix the template and submit the job again"
    return f"pods are refused and will be tried again: {reason}"


def job_keys_of(item: Pod | PodGroup) -> Iterable[str]:
    """The key of the job that a pod or a group belongs to, if any."""
    owner = item.metadata.controller(JOB_KIND, BATCH)
    return (f"{item.metadata.namespace}/{owner.name}",) if owner else ()


def is_of(metadata: Metadata, job: Job) -> bool:
    return any(owner.uid == job.metadata.uid for owner in metadata.owner_references)


def is_of_earlier(metadata: Metadata, job: Job) -> bool:
    """Whether it is left from an earlier job of that name and about to be garbage collected."""
    owner = metadata.controller(JOB_KIND, BATCH)
    return owner is not None and owner.name == job.metadata.name and owner.uid != job.metadata.uid


class NameTakenError(BatonError):
    """A foreign object has the name that the job needs."""

    def __init__(self, plural: str, metadata: Metadata, job: Job) -> None:
        owner = metadata.controller()
        if is_of_earlier(metadata, job):
            words = "still belongs to an earlier job of this name; the job waits until it is gone"
        else:
            whose = f"belongs to the {owner.kind} {owner.name}" if owner is not None else "is not this job's"
            words = f"already exists and {whose}: delete it, or give the job or its task another name"
        super().__init__(f'{plural} "{metadata.name}" {words}')


def target_keys(command: Command) -> Iterable[str]:
    target = command.target
    if target is None or target.kind != JOB_KIND or not target.api_version.startswith("batch.volcano.sh/"):
        return ()
    return (f"{command.metadata.namespace}/{target.name}",)


def lost_while_away(job: Job, pods: list[PodView]) -> list[PodView]:
    """Pods that the status counts and that do not exist: they disappeared while no controller ran."""
    phase, partly = phase_of(job), job.status.state.reason in TARGETED
    if phase not in (JobPhase.PENDING, JobPhase.RUNNING) and not (phase == JobPhase.RESTARTING and partly):
        return []
    lost = []
    for task in job.spec.tasks:
        counted = job.status.task_status_count.get(task.name)
        there = {pod.index for pod in pods if pod.task == task.name}
        number = min(sum(counted.phase.values()), task.replicas) - len(there) if counted is not None else 0
        missing = (index for index in range(task.replicas) if index not in there)
        lost += [
            PodView(
                name=pod_name(job.metadata.name, task.name, index),
                task=task.name,
                index=index,
                version=job.status.version,
            )
            for index in itertools.islice(missing, max(0, number))
        ]
    return lost
