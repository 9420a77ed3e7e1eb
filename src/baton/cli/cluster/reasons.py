"""The answer to "why does this wait?": what the API server says about it, then what the scheduler's engine says.

Most questions end before the engine: the pod runs, has ended, belongs to another scheduler, or its container cannot
start. What is left is a question to the engine, of the running scheduler or of one that is built here.
"""

import time

import msgspec

from baton.cli.cluster import workloads
from baton.cli.cluster.requests import Cluster, MissingObjectError, Object, RightsError
from baton.cli.cluster.scheduler_link import NoSchedulerError, ask
from baton.engine.verdicts import Cause, Verdict
from baton.errors import BatonError, UsageError
from baton.kube.errors import NotFoundError
from baton.model.core import PODS
from baton.model.ids import GroupKey
from baton.model.volcano import JOBS, POD_GROUPS
from baton.scheduler.settings import Settings

_OVER = {
    "Completed": "is complete",
    "Failed": "has failed",
    "Terminated": "was terminated",
    "Aborted": "is suspended; `baton job resume` starts it again",
    "Aborting": "is being suspended",
    "Terminating": "is being terminated",
    "Completing": "is completing",
    "Restarting": "is restarting: its old pods are ending",
}


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about one pod or job."""

    about: str
    """`pod NAMESPACE/NAME` or `job NAMESPACE/NAME`."""
    sentence: str
    waits: bool = False
    verdict: Verdict | None = None
    source: str = ""
    """Who gave the verdict: `scheduler`; `here` when it was built from the API server; `status` when it is what the
    scheduler last wrote on the object, for those who may see no more."""
    remark: str = ""


def answer(cluster: Cluster, namespace: str, name: str, scheduler: str | None) -> Answer:
    """Why a pod or a job waits, or that it does not."""
    kind, slash, rest = name.partition("/")
    if slash and kind not in ("pod", "job"):
        raise UsageError(f"{name!r} is not a pod or a job; give NAME, pod/NAME or job/NAME, and --namespace beside it")
    wanted = (kind,) if slash else ("pod", "job")
    called = rest if slash else name
    if "pod" in wanted and (pod := _find(cluster, "pod", called, namespace)) is not None:
        return _about_pod(cluster, pod, scheduler)
    if "job" in wanted and (job := _find(cluster, "job", called, namespace)) is not None:
        return _about_job(cluster, job, scheduler)
    raise BatonError(f"there is no {' or '.join(wanted)} {called} in namespace {namespace}")


def _find(cluster: Cluster, kind: str, name: str, namespace: str) -> Object | None:
    try:
        return cluster.get(PODS if kind == "pod" else JOBS, name, namespace)
    except MissingObjectError:
        return None


def _about_pod(cluster: Cluster, pod: Object, scheduler: str | None) -> Answer:
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    key = f"{metadata['namespace']}/{metadata['name']}"
    about = f"pod {key}"
    told = settled(spec, status, deleting="deletionTimestamp" in metadata)
    if told:
        return Answer(about=about, sentence=f"{key} {told}.")
    return _verdict(cluster, about, key, scheduler, status)


def settled(spec: Object, status: Object, *, deleting: bool) -> str:
    """What there is to say about a pod that no scheduler has to place; empty for one that waits."""
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        words = ", ".join(filter(None, (status.get("reason"), status.get("message"))))
        return f"has {'succeeded' if phase == 'Succeeded' else 'failed'}{f': {words}' if words else ''}"
    if deleting:
        return "is being deleted"
    if spec.get("nodeName"):
        stuck = _stuck_containers(status)
        if stuck:
            return f"is on {spec['nodeName']} and its containers cannot start: {stuck}"
        return f"{'runs' if phase == 'Running' else 'starts'} on {spec['nodeName']}"
    if spec.get("schedulerName") not in Settings().scheduler_names:
        return f"is left to the scheduler {spec.get('schedulerName')!r}, which is none of Baton's"
    return ""


def _stuck_containers(status: Object) -> str:
    found = []
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
            found.append(f"{container['name']} {waiting['reason']} {waiting.get('message', '')}".strip())
    return "; ".join(found)


def _about_job(cluster: Cluster, job: Object, scheduler: str | None) -> Answer:
    metadata, spec, status = job["metadata"], job.get("spec", {}), job.get("status", {})
    key, phase = f"{metadata['namespace']}/{metadata['name']}", workloads.phase_of(job)
    about = f"job {key}"
    if phase in _OVER:
        state = status.get("state", {})
        words = " ".join(filter(None, (state.get("reason"), state.get("message"))))
        return Answer(about=about, sentence=f"{key} {_OVER[phase]}{f' ({words})' if words else ''}.")
    running = status.get("running", 0) + status.get("succeeded", 0)
    if phase == "Running" and running >= workloads.replicas_of(job):
        return Answer(about=about, sentence=f"{key} runs, with all of its {running} pods.")
    group = f"{metadata['name']}-{metadata['uid']}"
    try:
        known = cluster.get(POD_GROUPS, group, metadata["namespace"])
    except MissingObjectError:
        sentence = f"{key} waits for the job controller, which has not made its PodGroup {group}."
        return Answer(about=about, sentence=sentence, waits=True, remark="is `baton controller` running?")
    found = _verdict(cluster, about, f"{metadata['namespace']}/{group}", scheduler, known.get("status", {}))
    if found.verdict is None or phase != "Running":
        return found
    told = (
        f"{key} runs with {running} of {workloads.replicas_of(job)} pods (it starts with {spec.get('minAvailable')}). "
    )
    return msgspec.structs.replace(found, sentence=told + found.sentence)


def _verdict(cluster: Cluster, about: str, key: str, scheduler: str | None, status: Object) -> Answer:
    try:
        verdict, remark = msgspec.json.decode(ask(cluster, f"/why/{key}", scheduler), type=Verdict), ""
        source = "scheduler"
    except NotFoundError as error:
        return Answer(about=about, sentence=f"{about} waits: {error.message}.", waits=True, source="scheduler")
    except NoSchedulerError as error:
        try:
            verdict, source = _built_here(cluster, key), "here"
        except RightsError as rights:
            written = _written(status)
            if not written:
                raise
            remark = f"this is what the scheduler last wrote; it was not asked ({error}), and {rights}"
            who = about.partition(" ")[2]
            return Answer(about=about, sentence=f"{who} waits: {written}", waits=True, source="status", remark=remark)
        remark = f"no scheduler was asked ({error}); this is what one that starts now would say"
    return Answer(
        about=about, sentence=_sentence(about, verdict), waits=True, verdict=verdict, source=source, remark=remark
    )


def _written(status: Object) -> str:
    """Why a pod or a PodGroup waits, in the words that the scheduler left on it."""
    for condition in reversed(status.get("conditions") or []):
        if condition.get("type") in ("PodScheduled", "Scheduled", "Unschedulable"):
            waits = condition["type"] == "Unschedulable" or condition.get("status") == "False"
            return str(condition.get("message", "")) if waits else ""
    return ""


def _built_here(cluster: Cluster, key: str) -> Verdict:
    from baton.cli.cluster.observation import observe

    record = observe(cluster)
    return record.engine().explain(GroupKey(key), time.time())


def _sentence(about: str, verdict: Verdict) -> str:
    where = f" in queue {verdict.queue}" if verdict.queue else ""
    who = about.partition(" ")[2]
    if verdict.cause is Cause.NODES and verdict.pod is not None and verdict.pod != who:
        who = f"{who} ({verdict.pod})"
    return f"{who} waits{where}: {verdict.detail}."
