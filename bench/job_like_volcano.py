"""Jobs: the objects that Volcano's controller and ours create for the same Jobs; every difference is printed.

Both run one after the other on a bed without a scheduler; the benchmark sets the PodGroups to Inqueue. The comparison
ignores names that contain a uid, random parts of names, keys and times; lists whose order has no meaning are sorted.
"""

import re
import time
from typing import Any

import yaml

from bench.job_stream import controller_program
from testbed.bed import Bed, BedOptions
from testbed.processes import Component
from testbed.programs import VOLCANO, locate
from tests.cluster.installation import install_crds

MISSING_KINDS = ("topology.volcano.sh_hypernodes", "nodeinfo.volcano.sh_numatopologies", "shard.volcano.sh_nodeshards")
COLOCATION = "config.volcano.sh_colocationconfigurations"
KINDS = {
    "pods": "/api/v1/namespaces/{}/pods",
    "podgroups": "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups",
    "services": "/api/v1/namespaces/{}/services",
    "configmaps": "/api/v1/namespaces/{}/configmaps",
    "secrets": "/api/v1/namespaces/{}/secrets",
    "networkpolicies": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "claims": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "jobs": "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/jobs",
}
DROPPED = {
    *("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "lastTransitionTime"),
    *("clusterIP", "clusterIPs", "id_rsa", "id_rsa.pub", "authorized_keys", "startTime", "selfLink"),
    *("conditions", "kubectl.kubernetes.io/last-applied-configuration"),
}
JOBS = """
{name: plain, plugins: {svc: [], env: [], ssh: []}, tasks: [[ps, 1], [my-worker, 2]]}
{name: torch, plugins: {pytorch: [--port=999], svc: []}, tasks: [[master, 1], [worker, 2]]}
{name: flow, plugins: {tensorflow: [], svc: []}, tasks: [[ps, 1], [worker, 2]]}
{name: mpi, plugins: {mpi: [], svc: [--disable-network-policy=true], ssh: []}, tasks: [[master, 1], [worker, 2]]}
{name: ray, plugins: {ray: [--headContainer=main, --workerContainer=main], svc: []}, tasks: [[head, 1], [worker, 2]]}
{name: parts, plugins: {}, tasks: [[worker, 4]], partition: true}
{name: volume, plugins: {}, tasks: [[worker, 1]], volume: true}
"""


def run() -> None:
    """Compare and print."""
    with Bed(BedOptions()) as bed:
        install_crds(bed)
        crds = locate(VOLCANO) / "crd" / "volcano" / "bases"
        for name in (*MISSING_KINDS, COLOCATION):
            bed.kubectl("apply", "--server-side", "-f", str(crds / f"{name}.yaml"))
        for queue in ("root", "default"):
            where = "/apis/scheduling.volcano.sh/v1beta1/queues"
            kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": queue}}
            bed.api.create(where, {**kind, "spec": {"weight": 1}})
            bed.api.patch(f"{where}/{queue}/status", {"status": {"state": "Open"}})
        theirs = outcome(bed, volcano_controllers(bed), "theirs")
        ours = outcome(bed, controller_program(bed), "ours")
    differences = 0
    for key in sorted({*theirs, *ours}):
        if key not in theirs or key not in ours:
            print(f"{key}: only {'ours' if key in ours else 'theirs'}")
            differences += 1
            continue
        for line in compared(key, theirs[key], ours[key]):
            print(line)
            differences += 1
    print(f"{len(theirs)} objects of Volcano 1.14.1, {len(ours)} of ours, {differences} differences")


def volcano_controllers(bed: Bed) -> Component:
    address = bed.record.loopback_address
    words = [
        *(str(locate(VOLCANO) / "vc-controller-manager"), f"--kubeconfig={bed.kubeconfig}", "--leader-elect=false"),
        *(f"--listen-address={address}:18082", f"--healthz-address={address}:18083", "-v=2"),
    ]
    return Component("volcano", words, bed.id, bed.directory / "logs" / "volcano.log", is_ready=lambda: True)


def outcome(bed: Bed, program: Component, namespace: str) -> dict[str, Any]:
    """Every object after all pods were created, without random parts."""
    bed.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    bed._furnish_namespace(namespace)
    program.start()
    program.wait_ready()
    bodies = [body(yaml.safe_load(line)) for line in JOBS.strip().splitlines()]
    wanted = sum(task["replicas"] for each in bodies for task in each["spec"]["tasks"])
    for each in bodies:
        bed.api.create(KINDS["jobs"].format(namespace), each)

    def all_made() -> bool:
        for group in bed.api.get(KINDS["podgroups"].format(namespace))["items"]:
            if group.get("status", {}).get("phase", "Pending") == "Pending":
                where = f"{KINDS['podgroups'].format(namespace)}/{group['metadata']['name']}"
                bed.api.patch(where, {"status": {"phase": "Inqueue"}})
        return bool(len(bed.api.get(KINDS["pods"].format(namespace))["items"]) == wanted)

    bed.wait_for(all_made, f"{wanted} pods of {namespace}", 120)
    time.sleep(2)  # wait for the last counts
    found: dict[str, Any] = {}
    for kind, where in KINDS.items():
        for item in bed.api.get(where.format(namespace))["items"]:
            uid = next((each["uid"] for each in item["metadata"].get("ownerReferences", ())), item["metadata"]["uid"])
            plain = cleaned(item, namespace, uid)
            found[f"{kind}/{plain['metadata']['name']}"] = plain
    program.kill()
    return {key: value for key, value in found.items() if "kube-root-ca" not in key}


def body(job: dict[str, Any]) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    tasks: list[dict[str, Any]] = [
        {"name": name, "replicas": number, "minAvailable": number, "template": {"spec": {"containers": [container]}}}
        for name, number in job["tasks"]
    ]
    if job.get("partition"):
        tasks[0]["partitionPolicy"] = {"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": job["name"], "labels": {"mine": "x"}, "annotations": {"volcano.sh/preemptable": "true"}},
        "spec": {
            "schedulerName": "volcano",
            "queue": "default",
            "minAvailable": sum(number for _, number in job["tasks"]),
            "plugins": job["plugins"],
            "tasks": tasks,
            **({"volumes": [{"mountPath": "/data", "volumeClaim": claim}]} if job.get("volume") else {}),
        },
    }


def cleaned(value: Any, namespace: str, uid: str) -> Any:
    """Without times, versions and uids; unordered lists sorted."""
    if isinstance(value, dict):
        return {key: cleaned(each, namespace, uid) for key, each in value.items() if key not in DROPPED}
    if isinstance(value, list):
        return sorted((cleaned(each, namespace, uid) for each in value), key=_place)
    if isinstance(value, str):
        text = value.replace(uid, "UID").replace(namespace, "NAMESPACE")
        return re.sub(r"(volume|pvc|volume-pvc|kube-api-access)-[0-9a-z]{5,12}$", r"\1-X", text)
    return value


def _place(item: Any) -> str:
    return str(item.get("name") or item.get("mountPath") or item) if isinstance(item, dict) else str(item)


def compared(path: str, theirs: Any, ours: Any) -> list[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            line
            for key in sorted({*theirs, *ours})
            for line in compared(f"{path}.{key}", theirs.get(key), ours.get(key))
        ]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [line for place in range(len(ours)) for line in compared(f"{path}[{place}]", theirs[place], ours[place])]
    return [] if theirs == ours else [f"{path}: theirs {theirs!r}, ours {ours!r}"]
