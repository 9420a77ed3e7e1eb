"""The answer to "why does this wait?": from the API server's objects first, then from the scheduler's engine.

Most questions end before the engine: the pod runs, has ended, belongs to another scheduler, or its container cannot
start. The rest are questions to the engine, either of the running scheduler or of one that is built here.
"""

import time
from typing import Any, NamedTuple

import msgspec

from baton.cli.cluster import workloads
from baton.cli.cluster.requests import Cluster, MissingObjectError, Object, RightsError
from baton.cli.cluster.scheduler_link import NoSchedulerError, ask
from baton.engine.verdicts import UnknownWorkloadError, Verdict
from baton.errors import BatonError, UsageError
from baton.kube.errors import NotFoundError
from baton.model import core
from baton.model.names import JobPhase
from baton.model.volcano import JOBS, POD_GROUPS
from baton.scheduler.settings import Settings
from baton.scheduler.why import explain, settled

_OVER: dict[str, str] = {
    JobPhase.COMPLETED: "is complete",
    JobPhase.FAILED: "has failed",
    JobPhase.TERMINATED: "was terminated",
    JobPhase.ABORTED: "is suspended; `baton job resume` starts it again",
    JobPhase.ABORTING: "is being suspended",
    JobPhase.TERMINATING: "is being terminated",
    JobPhase.COMPLETING: "is completing",
    JobPhase.RESTARTING: "is restarting: its old pods are ending",
}


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer about one pod or job."""

    about: str
    """`pod NAMESPACE/NAME` or `job NAMESPACE/NAME`."""
    sentence: str
    waits: bool = False
    verdict: Verdict | None = None
    source: str = ""
    """The source of the verdict: `scheduler`; `here` if the command built it from the API server; `status` if the user
    may not list the cluster and it is the scheduler's last message on the object."""
    remark: str = ""


class _Question(NamedTuple):
    """A pod or a PodGroup that seems to wait."""

    about: str
    key: str
    status: Object
    pod: core.Pod | None = None

    @property
    def who(self) -> str:
        return self.about.partition(" ")[2]

    def answer(self, sentence: str, **details: Any) -> Answer:
        return Answer(about=self.about, sentence=sentence, **details)


def answer(cluster: Cluster, namespace: str, name: str, scheduler: str | None) -> Answer:
    """Why a pod or a job waits, or that it does not."""
    kind, slash, rest = name.partition("/")
    if slash and kind not in ("pod", "job"):
        raise UsageError(
            f"{name!r} is not a pod or a job; give NAME, pod/NAME or job/NAME, and the namespace with --namespace"
        )
    wanted = (kind,) if slash else ("pod", "job")
    called = rest if slash else name
    if "pod" in wanted and (pod := _find(cluster, "pod", called, namespace)) is not None:
        return _about_pod(cluster, pod, scheduler)
    if "job" in wanted and (job := _find(cluster, "job", called, namespace)) is not None:
        return _about_job(cluster, job, scheduler)
    raise BatonError(f"there is no {' or '.join(wanted)} {called} in namespace {namespace}")


def _find(cluster: Cluster, kind: str, name: str, namespace: str) -> Object | None:
    try:
        return cluster.get(core.PODS if kind == "pod" else JOBS, name, namespace)
    except MissingObjectError:
        return None


def _about_pod(cluster: Cluster, found: Object, scheduler: str | None) -> Answer:
    try:
        pod = msgspec.convert(found, core.Pod)
    except msgspec.ValidationError as error:
        raise BatonError(f"this pod cannot be read, and the scheduler leaves it out: {error}") from None
    verdict = settled(pod)
    if verdict is not None:
        return Answer(about=f"pod {pod.key}", sentence=verdict.sentence())
    return _asked(cluster, _Question(f"pod {pod.key}", pod.key, found.get("status", {}), pod), scheduler)


def _about_job(cluster: Cluster, job: Object, scheduler: str | None) -> Answer:
    metadata, spec, status = job["metadata"], job.get("spec", {}), job.get("status", {})
    key, phase = f"{metadata['namespace']}/{metadata['name']}", workloads.phase_of(job)
    about = f"job {key}"
    if phase in _OVER:
        state = status.get("state", {})
        words = " ".join(filter(None, (state.get("reason"), state.get("message"))))
        return Answer(about=about, sentence=f"{key} {_OVER[phase]}{f' ({words})' if words else ''}.")
    running = status.get("running", 0) + status.get("succeeded", 0)
    if phase == JobPhase.RUNNING and running >= workloads.replicas_of(job):
        return Answer(about=about, sentence=f"{key} runs with all of its {running} pods.")
    group = f"{metadata['name']}-{metadata['uid']}"
    try:
        known = cluster.get(POD_GROUPS, group, metadata["namespace"])
    except MissingObjectError:
        sentence = f"{key} waits for the job controller, which has not created its PodGroup {group} yet."
        return Answer(about=about, sentence=sentence, waits=True, remark="check that `baton controller` runs")
    question = _Question(about, f"{metadata['namespace']}/{group}", known.get("status", {}))
    found = _asked(cluster, question, scheduler)
    if found.verdict is None or phase != JobPhase.RUNNING:
        return found
    told = (
        f"{key} runs with {running} of {workloads.replicas_of(job)} pods (it starts with {spec.get('minAvailable')}). "
    )
    return msgspec.structs.replace(found, sentence=told + found.sentence)


def _asked(cluster: Cluster, question: _Question, scheduler: str | None) -> Answer:
    """The scheduler's verdict. If no scheduler answers, the verdict of an engine built here; without the rights for
    that, the scheduler's last message on the object."""
    source, remark = "scheduler", ""
    try:
        verdict = msgspec.json.decode(ask(cluster, f"/why/{question.key}", scheduler), type=Verdict)
    except NotFoundError as error:
        return question.answer(f"{question.who} waits: {error.message}.", waits=True, source=source)
    except NoSchedulerError as error:
        source, remark = "here", f"no scheduler answered ({error}); this is the answer of one that starts now"
        try:
            verdict = _built_here(cluster, question)
        except UnknownWorkloadError as unknown:
            return question.answer(f"{question.who} waits: {unknown}.", waits=True, source=source, remark=remark)
        except RightsError as rights:
            written = _written(question.status)
            if not written:
                raise
            remark = f"this is the scheduler's last message; no scheduler answered ({error}), and {rights}"
            return question.answer(f"{question.who} waits: {written}", waits=True, source="status", remark=remark)
    waits = verdict.cause.waits
    sentence = verdict.sentence(question.who)
    return question.answer(sentence, waits=waits, verdict=verdict if waits else None, source=source, remark=remark)


def _written(status: Object) -> str:
    """Why a pod or a PodGroup waits, from the scheduler's last message on it."""
    for condition in reversed(status.get("conditions") or []):
        if condition.get("type") in ("PodScheduled", "Scheduled", "Unschedulable"):
            waits = condition["type"] == "Unschedulable" or condition.get("status") == "False"
            return str(condition.get("message", "")) if waits else ""
    return ""


def _built_here(cluster: Cluster, question: _Question) -> Verdict:
    if question.pod is not None:
        verdict = settled(question.pod, Settings().scheduler_names)
        if verdict is not None:
            return verdict
    from baton.cli.cluster.observation import observe

    seen = observe(cluster)
    return explain(seen.feed, seen.record.engine(), question.key, time.time())
