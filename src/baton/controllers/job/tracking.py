"""What the job controller remembers beside the API server, and whose job an object belongs to."""

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
"""The reason in events and in the status of a job whose pods the API server does not take."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0


class Refusal(msgspec.Struct, frozen=True):
    """Pods were not taken; they are not tried again before the pause is over, whatever wakes the job."""

    words: str
    times: int
    until_s: float

    @property
    def left_s(self) -> float:
        return max(0.0, self.until_s - time.monotonic())


class Memory(msgspec.Struct):
    """What is remembered about a job beside the API server; all of it can be lost."""

    uid: str
    shape: tuple[object, ...] = ()
    """What of the spec may change."""
    updated: bool = False
    """It did, and no policy has been asked about it, or one waits for its timeout."""
    gone: dict[str, PodView] = {}
    seen_s: dict[tuple[str, str, str], float] = {}
    due_s: float | None = None
    """When the counts are to be written."""
    said: str = ""
    done: set[str] = set()
    """Commands that were carried out, by uid."""
    refusal: Refusal | None = None

    def refused(self, error: BatonError) -> None:
        times = self.refusal.times + 1 if self.refusal is not None else 1
        pause_s = doubled(_FIRST_PAUSE_S, times - 1, _LONGEST_PAUSE_S)
        self.refusal = Refusal(_refusal_words(error), times, time.monotonic() + pause_s)

    def hurry(self) -> None:
        """What was refused may be taken now: try it at once."""
        if self.refusal is not None:
            self.refusal = msgspec.structs.replace(self.refusal, until_s=0.0)

    def forget_causes(self) -> None:
        """Policies have answered to all that happened, or have nothing to say to it."""
        self.updated = False
        self.gone.clear()
        self.seen_s.clear()


def _refusal_words(error: BatonError) -> str:
    said = error.message if isinstance(error, ApiError) else str(error)
    if isinstance(error, InvalidError | TemplateError):
        return f"pods can never be made from this template: {said}; delete the job, mend that and submit the job anew"
    return f"pods are refused and tried again: {said}"


def job_keys_of(item: Pod | PodGroup) -> Iterable[str]:
    """The key of the job that a pod or its group belongs to, if it belongs to one."""
    owner = item.metadata.controller(JOB_KIND, BATCH)
    return (f"{item.metadata.namespace}/{owner.name}",) if owner else ()


def is_of(metadata: Metadata, job: Job) -> bool:
    return any(owner.uid == job.metadata.uid for owner in metadata.owner_references)


def is_of_earlier(metadata: Metadata, job: Job) -> bool:
    """Whether it is left from an earlier job of that name, and about to be collected."""
    owner = metadata.controller(JOB_KIND, BATCH)
    return owner is not None and owner.name == job.metadata.name and owner.uid != job.metadata.uid


class NameTakenError(BatonError):
    """Something of another has the name that the job needs."""

    def __init__(self, plural: str, metadata: Metadata, job: Job) -> None:
        owner = metadata.controller()
        if is_of_earlier(metadata, job):
            words = "still belongs to an earlier job of this name; the job waits until that is gone"
        else:
            whose = f"belongs to the {owner.kind} {owner.name}" if owner is not None else "is not this job's"
            words = f"is there already and {whose}: delete it, or give the job or its task another name"
        super().__init__(f'{plural} "{metadata.name}" {words}')


def target_keys(command: Command) -> Iterable[str]:
    target = command.target
    if target is None or target.kind != JOB_KIND or not target.api_version.startswith("batch.volcano.sh/"):
        return ()
    return (f"{command.metadata.namespace}/{target.name}",)


def lost_while_away(job: Job, pods: list[PodView]) -> list[PodView]:
    """Pods that the status counts and that are not there: they went away while no controller looked."""
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
