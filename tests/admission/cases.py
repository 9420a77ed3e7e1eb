"""One object for every rule that admission refuses by, and the rule it breaks.

Used twice: against the checks alone, and through kubectl against a real API server. `given` are objects that must be
there before; a queue's state is set with it.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from tests.volcano_jobs import Object, container, manifest, task


@dataclass(frozen=True)
class Case:
    """An object that breaks a rule. `before` is its old version, for rules about changes."""

    rule: str
    manifest: Object
    given: tuple[Object, ...] = ()
    before: Object | None = None
    delete: bool = False
    name: str = field(default="")

    def __str__(self) -> str:
        return f"{self.rule}{f'-{self.name}' if self.name else ''}"


def limits(**amounts: Any) -> Object:
    """Limits by short names: `vgpu_cores=50`."""
    return {"limits": {f"volcano.sh/{key.replace('_', '-')}": value for key, value in amounts.items()}}


def task_of(first: Object, **fields: Any) -> Object:
    """A task with this container."""
    return task(containers=[first], **fields)


def queue(name: str, state: str = "", annotations: Object | None = None, **spec: Any) -> Object:
    made: Object = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": spec,
    }
    if state:
        made["status"] = {"state": state}
    return made


def pod_group(**spec: Any) -> Object:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "group"},
        "spec": spec,
    }


def cron_job(name: str = "nightly", **spec: Any) -> Object:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "CronJob",
        "metadata": {"name": name},
        "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"tasks": [task()]}}, **spec},
    }


def job_flow(*flows: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "flow.volcano.sh/v1alpha1",
        "kind": "JobFlow",
        "metadata": {"name": "pipeline"},
        "spec": {"flows": list(flows), **spec},
    }


def hyper_node(*members: Object, name: str = "rack-1") -> Object:
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name},
        "spec": {"tier": 1, "members": list(members)},
    }


def member(type: str = "Node", **selector: Object) -> Object:  # noqa: A002  # the word of the API
    return {"type": type, "selector": selector}


def pod(first: Object | None = None, annotations: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", "annotations": annotations or {}},
        "spec": {"schedulerName": "volcano", "containers": [first or container()], **spec},
    }


def changed(manifest: Object, *path: str | int, value: Any) -> Object:
    """A copy with one field replaced."""
    result = copy.deepcopy(manifest)
    place: Any = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


def policies(*entries: Object) -> Object:
    return manifest(policies=list(entries))


ABORT = {"action": "AbortJob", "event": "PodFailed"}
LARGE, SMALL = {"cpu": "8"}, {"cpu": "4"}
LABELLED = {"metadata": {"labels": {"gpu": True}}, "spec": task()["template"]["spec"]}
BASE = manifest()

CASES: tuple[Case, ...] = (
    Case("not-a-list", manifest(task_of(container(command="train.sh"))), name="command"),
    Case("not-a-list", manifest(task_of(container(args="--epochs 3"))), name="args"),
    Case("not-a-list", manifest(tasks="worker"), name="tasks"),
    Case("not-a-mapping", manifest(task(template={"spec": "busybox"}))),
    Case("not-a-number", manifest(minAvailable="two")),
    Case("not-a-text", manifest(task_of(container(command=["sleep", 5])))),
    Case("env-value", manifest(task_of(container(env=[{"name": "EPOCHS", "value": 3}])))),
    Case("label-value", manifest(task(template=LABELLED))),
    Case("no-template", changed(BASE, "spec", "tasks", 0, value={"name": "worker", "replicas": 1})),
    Case("no-containers", manifest(task(template={"spec": {"containers": []}}))),
    Case("template", manifest(task_of(container(imagePullPolicy="Sometimes")))),
    Case("template", manifest(task_of(container(comand=["sleep"]))), name="unknown-field"),
    Case("no-tasks", changed(BASE, "spec", "tasks", value=[])),
    Case("min-available", manifest(minAvailable=-1)),
    Case("min-available-total", manifest(minAvailable=3)),
    Case("max-retry", manifest(maxRetry=-1)),
    Case("ttl", manifest(ttlSecondsAfterFinished=-1)),
    Case("min-success", manifest(minSuccess=0)),
    Case("task-name", manifest(task(name="Task_1"))),
    Case("task-name-twice", manifest(task(), task())),
    Case("task-replicas", manifest(task(replicas=-1))),
    Case("task-min-available", manifest(task(minAvailable=-1))),
    Case("task-min-available-replicas", manifest(task(minAvailable=3))),
    Case("task-max-retry", manifest(task(maxRetry=-1))),
    Case("job-name", manifest(name="a" * 64)),
    Case("pod-name", manifest(name="a" * 60)),
    Case("policy-event-and-exit-code", policies({**ABORT, "exitCode": 3})),
    Case("policy-without-event", policies({"action": "AbortJob"})),
    Case("policy-event", policies({"action": "AbortJob", "event": "PodVanished"})),
    Case("policy-event", policies({"action": "AbortJob", "event": "OutOfSync"}), name="internal"),
    Case("policy-action", policies({"action": "Explode", "event": "PodFailed"})),
    Case("policy-event-twice", policies(ABORT, {"action": "RestartJob", "event": "PodFailed"})),
    Case("policy-exit-code-zero", policies({"action": "AbortJob", "exitCode": 0})),
    Case("policy-exit-code-twice", policies(*({"action": "AbortJob", "exitCode": 3},) * 2)),
    Case("policy-any-and-others", policies({"action": "AbortJob", "event": "*"}, ABORT)),
    Case("policy-timeout", policies({**ABORT, "timeout": "soon"})),
    Case("policy-pending-timeout", policies({"action": "AbortJob", "event": "PodPending"})),
    Case("plugin", manifest(plugins={"pytorh": []})),
    Case("mpi-task", manifest(plugins={"mpi": ["--master=mpimaster", "--worker=worker"]})),
    Case("volume-mount-path", manifest(volumes=[{"mountPath": "", "volumeClaimName": "data"}])),
    Case("volume-mount-path-twice", manifest(volumes=[{"mountPath": "/d", "volumeClaimName": name} for name in "ab"])),
    Case("volume-claim", manifest(volumes=[{"mountPath": "/data"}])),
    Case("volume-claim-both", manifest(volumes=[{"mountPath": "/d", "volumeClaimName": "a", "volumeClaim": {}}])),
    Case("volume-claim-name", manifest(volumes=[{"mountPath": "/d", "volumeClaimName": "My_Data"}])),
    Case("depends-on", manifest(task(dependsOn={"name": ["master"]}))),
    Case(
        "depends-on-cycle",
        manifest(task(name="a", dependsOn={"name": ["b"]}), task(name="b", dependsOn={"name": ["a"]})),
    ),
    Case("depends-on-iteration", manifest(task(name="a"), task(dependsOn={"name": ["a"], "iteration": "some"}))),
    Case("partitions", manifest(task(partitionPolicy={"totalPartitions": 2, "partitionSize": 2}))),
    Case(
        "min-partitions",
        manifest(task(partitionPolicy={"totalPartitions": 2, "partitionSize": 1, "minPartitions": 3})),
    ),
    Case("topology-both", manifest(networkTopology={"highestTierAllowed": 1, "highestTierName": "rack"})),
    Case("topology-policy", manifest(task(topologyPolicy="strict"))),
    Case("not-guaranteed", manifest(task(topologyPolicy="restricted"))),
    Case(
        "cpu-not-whole",
        manifest(
            task_of(
                container(resources={"limits": {"cpu": "500m", "memory": "1Gi"}}), topologyPolicy="single-numa-node"
            )
        ),
    ),
    Case("update-tasks", manifest(task(), task(name="more")), before=BASE),
    Case("update-fields", manifest(queue="other"), before=BASE),
    Case(
        "sets-visible-devices",
        manifest(
            task_of(
                container(
                    env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                    resources={"limits": {"nvshare.com/gpu": 1}},
                )
            )
        ),
        name="job",
    ),
    Case(
        "sets-visible-devices",
        pod(
            container(
                env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}], resources={"limits": {"nvshare.com/gpu": 1}}
            )
        ),
        name="pod",
    ),
    Case(
        "sets-preload",
        pod(
            container(
                env=[{"name": "LD_PRELOAD", "value": "/lib/mine.so"}], resources={"limits": {"nvshare.com/gpu": 1}}
            )
        ),
    ),
    Case("vgpu-percentage", pod(container(resources=limits(vgpu_number="1", vgpu_memory_percentage="120")))),
    Case("vgpu-cores", pod(container(resources=limits(vgpu_number="1", vgpu_cores="150")))),
    Case("vgpu-needs-number", pod(container(resources=limits(vgpu_cores="30")))),
    Case("vgpu-number-zero", pod(container(resources=limits(vgpu_number="0", vgpu_cores="30")))),
    Case("gpu-not-whole", manifest(task_of(container(resources=limits(vgpu_number="half"))))),
    Case("gpu-mixed", pod(container(resources={"limits": {"nvshare.com/gpu": 1, "nvidia.com/gpu": 1}}))),
    Case("vgpu-mode", pod(container(resources=limits(vgpu_number=1)), {"volcano.sh/vgpu-mode": "fast"})),
    Case("budget-number", pod(annotations={"volcano.sh/jdb-min-available": "-1"})),
    Case("budget-number", pod(annotations={"volcano.sh/jdb-min-available": "1" * 5000})),
    Case("budget-percent", pod(annotations={"volcano.sh/jdb-max-unavailable": "100%"})),
    Case(
        "budget-both",
        pod(annotations={"volcano.sh/jdb-min-available": "2", "volcano.sh/jdb-max-unavailable": "50%"}),
    ),
    Case("min-member", pod_group(minMember=-1)),
    Case("queue-missing", manifest(queue="nowhere"), name="job"),
    Case("queue-missing", pod_group(queue="nowhere", minMember=1), name="pod-group"),
    Case("queue-closed", manifest(queue="shut"), given=(queue("shut", "Closed"),)),
    Case("queue-is-root", manifest(queue="root")),
    Case("queue-not-leaf", manifest(queue="upper"), given=(queue("upper"), queue("lower", parent="upper"))),
    Case("queue-weight", queue("heavy", weight=-1)),
    Case("queue-state", queue("odd", "Ajar")),
    Case("queue-quantity", queue("odd", capability={"cpu": "much"})),
    Case("queue-deserved-capability", queue("q", capability=SMALL, deserved=LARGE)),
    Case("queue-guarantee-capability", queue("q", capability=SMALL, guarantee={"resource": LARGE})),
    Case("queue-guarantee-deserved", queue("q", deserved=SMALL, guarantee={"resource": LARGE}), name="more"),
    Case("queue-guarantee-deserved", queue("q", guarantee={"resource": SMALL}), name="nothing-deserved"),
    Case("queue-hierarchy-length", queue("q", annotations={"volcano.sh/hierarchy": "root/a/b"})),
    Case(
        "queue-hierarchy-weight",
        queue("q", annotations={"volcano.sh/hierarchy": "root/a", "volcano.sh/hierarchy-weights": "1/-1"}),
    ),
    Case(
        "queue-hierarchy-inside",
        queue("q", annotations={"volcano.sh/hierarchy": "root/sci", "volcano.sh/hierarchy-weights": "1/1"}),
        given=(
            queue("dev", annotations={"volcano.sh/hierarchy": "root/sci/dev", "volcano.sh/hierarchy-weights": "1/1/1"}),
        ),
    ),
    Case("queue-parent-missing", queue("q", parent="nowhere")),
    Case("queue-parent-cycle", queue("ring", parent="ring"), given=(queue("ring"),), before=queue("ring")),
    Case(
        "queue-parent-depth",
        queue("d6", parent="d5"),
        given=(queue("d1"), *(queue(f"d{depth}", parent=f"d{depth - 1}") for depth in range(2, 6))),
    ),
    Case(
        "queue-parent-busy",
        queue("q", parent="busy"),
        given=({**queue("busy"), "status": {"allocated": {"pods": "3"}}},),
    ),
    Case(
        "queue-child-capability",
        queue("q", parent="narrow", capability=LARGE),
        given=(queue("narrow", capability=SMALL),),
    ),
    Case(
        "queue-child-sum",
        queue("q", parent="shared", deserved=SMALL),
        given=(queue("shared", deserved=SMALL), queue("sibling", parent="shared", deserved=SMALL)),
    ),
    Case("queue-root", queue("root", capability=LARGE)),
    Case("queue-delete-system", queue("default"), given=(queue("default"),), delete=True),
    Case("queue-delete-parent", queue("over"), given=(queue("over"), queue("under", parent="over")), delete=True),
    Case("cron-schedule-empty", cron_job(schedule="")),
    Case("cron-schedule", cron_job(schedule="0 25 * * *")),
    Case("cron-schedule-zone", cron_job(schedule="TZ=UTC 0 3 * * *")),
    Case("cron-zone-empty", cron_job(timeZone="")),
    Case("cron-zone-local", cron_job(timeZone="Local")),
    Case("cron-zone", cron_job(timeZone="Europe/Atlantis")),
    Case("cron-name", cron_job(name="n" * 53)),
    Case("hypernode-members", {**hyper_node(), "spec": {"tier": 1}}),
    Case("hypernode-pattern", hyper_node(member(regexMatch={"pattern": "rack-[1"}))),
    Case("hypernode-pattern", hyper_node(member(regexMatch={"pattern": "rack-(?!1)"})), name="other-dialect"),
    Case("hypernode-labels", hyper_node(member("HyperNode", labelMatch={"matchLabels": {"rack": "1"}}))),
    Case("hypernode-self", hyper_node(member("HyperNode", exactMatch={"name": "rack-1"}))),
    Case("flow-name", job_flow({"name": ""})),
    Case("flow-target", job_flow({"name": "b", "dependsOn": {"targets": ["a"]}})),
    Case(
        "flow-cycle",
        job_flow(
            {"name": "a", "dependsOn": {"targets": ["b"]}},
            {"name": "b", "dependsOn": {"targets": ["a"]}},
        ),
    ),
)
