"""Jobs: defaults, and the checks that need no information from the cluster.

The same checks run in both webhooks. The mutating one runs before the API server validates the schema, so users see our
sentence and not the schema's. The validating one sees the object as it is stored.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from baton import job_plugins
from baton.admission.findings import Field, Findings
from baton.admission.patches import Patches, patched
from baton.admission.rules import job_rules as rules
from baton.admission.rules.gpus import check_gpus, default_shares
from baton.admission.rules.graphs import cycle
from baton.admission.rules.guaranteed import check_topology_policy
from baton.admission.rules.lifecycle import check_policies
from baton.admission.rules.templates import check_template
from baton.engine.state.resources import SLOTS
from baton.model.names import DEFAULT_QUEUE, DEFAULT_SCHEDULER
from baton.model.suggestions import did_you_mean

PLUGINS = tuple(plugin.name for plugin in job_plugins.PLUGINS)
DEFAULT_MAX_RETRY = 3

_NAME_LIMIT = 63
_GENERATED = "xxxxx"
"""As long as the suffix that the API server appends to a generateName."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_SUBDOMAIN_LIMIT = 253
_ITERATIONS = ("", "any", "all")


def default_job(spec: Mapping[str, Any], scheduler_name: str = DEFAULT_SCHEDULER, *root: str) -> Patches:
    """The defaults of a job, as patches below `root`."""
    patches = Patches()
    ignored = Findings()
    field = Field("spec", spec)
    if not spec.get("queue"):
        patches.set(*root, "queue", value=DEFAULT_QUEUE)
    if not spec.get("schedulerName"):
        patches.set(*root, "schedulerName", value=scheduler_name)
    if not spec.get("maxRetry"):
        patches.set(*root, "maxRetry", value=DEFAULT_MAX_RETRY)
    minimum = 0
    for place, task in enumerate(field["tasks"].items(ignored)):
        if not isinstance(task.value, dict):
            continue
        minimum += _default_task(task, place, patches, (*root, "tasks", place))
    if not spec.get("minAvailable") and minimum > 0:
        patches.set(*root, "minAvailable", value=minimum)
    plugins = field["plugins"].mapping(ignored)
    implied = dict.fromkeys(needed for name in plugins for needed in job_plugins.IMPLIED.get(name, ()))
    for needed in implied:
        if needed not in plugins:
            patches.set(*root, "plugins", needed, value=[])
    return patches


def _default_task(task: Field, place: int, patches: Patches, path: tuple[str | int, ...]) -> int:
    """Set the defaults of one task. Returns its share of the job's minAvailable."""
    ignored = Findings()
    if task["name"].value in (None, ""):
        patches.set(*path, "name", value=f"default{place}")
    if not task["maxRetry"].value:
        patches.set(*path, "maxRetry", value=DEFAULT_MAX_RETRY)
    replicas = task["replicas"].number(ignored) or 0
    minimum = task["minAvailable"].number(ignored)
    if minimum is None:
        minimum = replicas
        patches.set(*path, "minAvailable", value=replicas)
    pod = task["template"]["spec"]
    if pod["hostNetwork"].value is True and pod["dnsPolicy"].value in (None, ""):
        patches.set(*path, "template", "spec", "dnsPolicy", value="ClusterFirstWithHostNet")
    default_shares(pod, patches, *path, "template", "spec")
    return minimum


def defaulted(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a job specification with its defaults, to check job templates."""
    return patched(spec, default_job(spec))


def check_job(job: Mapping[str, Any], findings: Findings, slots: Sequence[str] = (SLOTS,)) -> None:
    """Check a new job."""
    metadata = Field("", job)["metadata"]
    name = metadata["name"]
    if not name and metadata["generateName"]:
        name = Field("metadata.generateName", f"{metadata['generateName'].value}{_GENERATED}")
    if len(name.text(findings)) > _NAME_LIMIT:
        findings.add(rules.JOB_NAME, name, length=len(name.value))
    check_job_spec(Field("", job)["spec"], findings, name, slots)


def check_job_spec(spec: Field, findings: Findings, name: Field, slots: Sequence[str] = (SLOTS,)) -> None:
    """Check a job specification with its defaults set. `name` is the name of the job, if known."""
    spec.mapping(findings)
    for key, rule, least in (
        ("minAvailable", rules.MIN_AVAILABLE, 0),
        ("maxRetry", rules.MAX_RETRY, 0),
        ("ttlSecondsAfterFinished", rules.TTL, 0),
        ("minSuccess", rules.MIN_SUCCESS, 1),
    ):
        number = spec[key].number(findings)
        if number is not None and number < least:
            findings.add(rule, spec[key])
    tasks = spec["tasks"].items(findings)
    if not tasks and not isinstance(spec["tasks"].value, str | dict):
        findings.add(rules.NO_TASKS, spec["tasks"])
    _check_tasks(tasks, findings, name, slots)
    total = sum(task["replicas"].number(Findings()) or 0 for task in tasks)
    minimum = spec["minAvailable"].number(Findings())
    if tasks and minimum is not None and minimum > total:
        findings.add(rules.TOTAL, spec["minAvailable"], total=total)
    check_policies(spec["policies"], findings)
    _check_plugins(spec, findings, [str(task["name"].value) for task in tasks])
    _check_volumes(spec["volumes"], findings)
    check_topology(spec["networkTopology"], findings)


def check_topology(topology: Field, findings: Findings) -> None:
    """Check the network topology of a job, a partition or a pod group."""
    topology.mapping(findings)
    if topology["highestTierAllowed"] and topology["highestTierName"].value:
        findings.add(rules.TOPOLOGY_BOTH, Field(topology.path, topology["highestTierAllowed"].value))


def _check_tasks(tasks: list[Field], findings: Findings, job: Field, slots: Sequence[str]) -> None:
    names: list[str] = []
    for task in tasks:
        task.mapping(findings)
        name = task["name"].text(findings)
        if not _LABEL.fullmatch(name) or len(name) > _NAME_LIMIT:
            findings.add(rules.TASK_NAME, task["name"])
        elif name in names:
            findings.add(rules.TASK_TWICE, task["name"])
        names.append(name)
        _check_counts(task, name, findings)
        _check_pod_name(task, job, findings)
        check_policies(task["policies"], findings)
        check_template(task["template"], findings)
        check_gpus(task["template"], findings, slots)
        check_topology_policy(task, findings)
    _check_dependencies(tasks, names, findings)


def _check_counts(task: Field, name: str, findings: Findings) -> None:
    replicas = task["replicas"].number(findings)
    minimum = task["minAvailable"].number(findings)
    retries = task["maxRetry"].number(findings)
    if replicas is None:
        findings.warn(f"{task.path}.replicas is not set, so the task has no pods")
    if replicas is not None and replicas < 0:
        findings.add(rules.TASK_REPLICAS, task["replicas"], task=name)
    if minimum is not None and minimum < 0:
        findings.add(rules.TASK_MIN, task["minAvailable"], task=name)
    elif minimum is not None and minimum > max(0, replicas or 0):
        findings.add(rules.TASK_MIN_REPLICAS, task["minAvailable"], task=name, replicas=replicas or 0)
    if retries is not None and retries < 0:
        findings.add(rules.TASK_MAX_RETRY, task["maxRetry"])
    partition = task["partitionPolicy"]
    if partition.mapping(findings):
        total = partition["totalPartitions"].number(findings) or 0
        size = partition["partitionSize"].number(findings) or 0
        if total * size != (replicas or 0):
            findings.add(rules.PARTITIONS, partition, total=total, size=size, replicas=replicas or 0)
        if (partition["minPartitions"].number(findings) or 0) > total:
            findings.add(rules.MIN_PARTITIONS, partition["minPartitions"], total=total)
        check_topology(partition["networkTopology"], findings)


def _check_pod_name(task: Field, job: Field, findings: Findings) -> None:
    last = max(0, (task["replicas"].number(Findings()) or 1) - 1)
    pod = f"{job.value or ''}-{task['name'].value}-{last}"
    if job and len(pod) > _NAME_LIMIT:
        findings.add(rules.POD_NAME, task["name"], pod=pod, length=len(pod))


def _check_dependencies(tasks: list[Field], names: list[str], findings: Findings) -> None:
    edges: dict[str, list[str]] = {name: [] for name in names}
    before = len(findings.refusals)
    for task, name in zip(tasks, names, strict=True):
        wanted = task["dependsOn"]
        wanted.mapping(findings)
        if wanted["iteration"].text(findings) not in _ITERATIONS:
            findings.add(rules.ITERATION, wanted["iteration"])
        for target in wanted["name"].items(findings):
            if target.text(findings) not in edges:
                findings.add(rules.DEPENDENCY, target, tasks=", ".join(names))
            else:
                edges[name].append(target.value)
    if len(findings.refusals) == before and (found := cycle(edges)):
        task = tasks[names.index(found[0])]
        findings.add(rules.DEPENDENCY_CYCLE, task["dependsOn"], cycle=" → ".join(found))


def _check_plugins(spec: Field, findings: Findings, tasks: list[str]) -> None:
    for name, arguments in spec["plugins"].fields(findings):
        words = arguments.texts(findings)
        if name not in PLUGINS:
            hint = did_you_mean(name, PLUGINS, lead="; ")
            findings.add(rules.PLUGIN, arguments, plugin=name, plugins=", ".join(PLUGINS), hint=hint)
        if name == "mpi":
            for role in ("master", "worker"):
                task = _argument(words, role)
                if task not in tasks:
                    findings.add(rules.MPI_TASK, arguments, role=role, task=task, tasks=", ".join(tasks))


def _argument(words: list[str], name: str) -> str:
    """The value of `--name=value` or `--name value`. The default of the plugin is the name itself."""
    for place, word in enumerate(words):
        flag, equals, value = word.lstrip("-").partition("=")
        if flag == name and equals:
            return value
        if flag == name and place + 1 < len(words):
            return words[place + 1]
    return name


def _check_volumes(volumes: Field, findings: Findings) -> None:
    seen: set[str] = set()
    for volume in volumes.items(findings):
        volume.mapping(findings)
        path = volume["mountPath"].text(findings)
        claim = volume["volumeClaimName"].text(findings)
        if not path:
            findings.add(rules.MOUNT_PATH, volume["mountPath"])
        elif path in seen:
            findings.add(rules.MOUNT_TWICE, volume["mountPath"])
        seen.add(path)
        if not claim and not volume["volumeClaim"]:
            findings.add(rules.VOLUME_CLAIM, volume)
        elif claim and volume["volumeClaim"]:
            findings.add(rules.VOLUME_BOTH, Field(volume.path, claim))
        elif claim and (not _SUBDOMAIN.fullmatch(claim) or len(claim) > _SUBDOMAIN_LIMIT):
            findings.add(rules.VOLUME_CLAIM_NAME, volume["volumeClaimName"])
        volume["volumeClaim"].mapping(findings)
