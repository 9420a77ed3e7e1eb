"""Nodes without machines: KWOK simulates the kubelets of any number of nodes.

Pods bound to such a node become Running at once. The annotation `testbed.baton.dev/outcome` (`succeed` or `fail`) ends
them, after the time given by `testbed.baton.dev/run-for` (`1500ms`, `2s`), counted from the start of the pod or from
when the annotation is set; a pod that is deleted disappears.
"""

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from testbed.api import Api, ApiError, Object, answers_200
from testbed.controlplane import ControlPlane
from testbed.processes import Component
from testbed.state import BedRecord

KWOK_PORT = 10247
OUTCOME = "testbed.baton.dev/outcome"
RUN_FOR = "testbed.baton.dev/run-for"
EXIT_CODE_WHEN_FAILED = 1

_MANAGED = "kwok.x-k8s.io/node"
# Leases stop a controller-manager from marking the nodes as lost after 50 s without disturbing watchers of nodes. They
# are renewed at a quarter of this interval. Without a controller-manager they have no reader.
_LEASE_S = 60
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_CREATORS = 8


def component(record: BedRecord, plane: ControlPlane, programs: Path, *, leases: bool) -> Component:
    """KWOK itself; it sometimes crashes at startup, so it gets several attempts."""
    kubeconfig = plane.user_kubeconfig("kwok", ["system:masters"])
    stages = write_stages(record)
    address = record.loopback_address
    certificate, key = plane.serving
    return Component(
        "kwok",
        [
            str(programs / "kwok"),
            f"--kubeconfig={kubeconfig}",
            f"--config={stages}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={_MANAGED}=fake",
            f"--cidr={record.pod_range(200)}",
            f"--node-ip={record.network[250]}",
            f"--node-port={KWOK_PORT}",
            f"--server-address={address}:{KWOK_PORT}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--node-lease-duration-seconds={_LEASE_S if leases else 0}",
        ],
        record.id,
        record.directory / "logs" / "kwok.log",
        is_ready=lambda: answers_200(f"https://{address}:{KWOK_PORT}/healthz", plane.pki.certificate),
        prepare=lambda: _release_leases(plane.api),
        attempts=5,
    )


def write_stages(record: BedRecord, *, start_after_s: float = 0.0) -> Path:
    """Write KWOK's rules for nodes and pods; pods start `start_after_s` after binding. KWOK reads them at startup."""
    path = record.directory / "kwok-stages.yaml"
    path.write_text(yaml.safe_dump_all(_stages(start_after_s), sort_keys=False))
    return path


def _release_leases(api: Api) -> None:
    """Delete the leases of an earlier KWOK, which the next one would wait for; kubelets' leases are held by nodes."""
    with contextlib.suppress(OSError, ApiError):
        for lease in api.get(_LEASES)["items"]:
            if lease["spec"].get("holderIdentity") != lease["metadata"]["name"]:
                api.delete(f"{_LEASES}/{lease['metadata']['name']}")


def node_object(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    resources: Mapping[str, str | int] | None = None,
) -> Object:
    """A node for KWOK; `resources` are added to those of an ordinary machine."""
    amounts = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "256"}
    amounts.update({name: str(amount) for name, amount in (resources or {}).items()})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {_MANAGED: "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
                **(labels or {}),
            },
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def create_nodes(api: Api, nodes: Sequence[Object]) -> None:
    """Create many nodes concurrently."""
    with ThreadPoolExecutor(_CREATORS, thread_name_prefix="kwok-nodes") as pool:
        list(pool.map(lambda node: api.create("/api/v1/nodes", node), nodes))


def _stages(start_after_s: float) -> list[dict[str, Any]]:
    alive = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    outcome = f'.metadata.annotations["{OUTCOME}"]'
    return [
        _stage(
            "Node",
            "node-ready",
            [
                {
                    "key": '.status.conditions.[] | select( .type == "Ready" ) | .status',
                    "operator": "NotIn",
                    "values": ["True"],
                }
            ],
            {"statusTemplate": _NODE_STATUS},
        ),
        _stage(
            "Pod",
            "pod-run",
            [alive, {"key": ".status.phase", "operator": "In", "values": ["Pending"]}],
            {"statusTemplate": _RUNNING_STATUS},
            delay={"durationMilliseconds": round(start_after_s * 1000)} if start_after_s else None,
        ),
        *(
            _stage(
                "Pod",
                f"pod-{word}",
                [
                    alive,
                    {"key": ".status.phase", "operator": "In", "values": ["Running"]},
                    {"key": outcome, "operator": "In", "values": [word]},
                ],
                {"statusTemplate": _FINISHED_STATUS % {"phase": phase, "code": code, "reason": reason}},
                delay={
                    "durationMilliseconds": 0,
                    "durationFrom": {"expressionFrom": f'.metadata.annotations["{RUN_FOR}"]'},
                },
            )
            for word, phase, code, reason in (
                ("succeed", "Succeeded", 0, "Completed"),
                ("fail", "Failed", EXIT_CODE_WHEN_FAILED, "Error"),
            )
        ),
        _stage("Pod", "pod-delete", [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}], {"delete": True}),
    ]


def _stage(
    kind: str, name: str, conditions: list[dict[str, Any]], step: dict[str, Any], *, delay: dict[str, Any] | None = None
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": conditions},
        "next": step,
    }
    if delay:
        spec["delay"] = delay
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


_NODE_STATUS = """\
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
addresses:
- type: InternalIP
  address: {{ NodeIP | Quote }}
- type: Hostname
  address: {{ .metadata.name | Quote }}
nodeInfo:
  architecture: amd64
  operatingSystem: linux
  bootID: ""
  containerRuntimeVersion: kwok
  kernelVersion: kwok
  kubeProxyVersion: kwok
  kubeletVersion: kwok
  machineID: ""
  osImage: ""
  systemUUID: ""
phase: Running
"""

_RUNNING_STATUS = """\
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
- { type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }} }
- { type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }} }
- { type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }} }
{{ range .spec.readinessGates }}
- { type: {{ .conditionType | Quote }}, status: "True", lastTransitionTime: {{ $now | Quote }} }
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  started: true
  restartCount: 0
  state: { running: { startedAt: {{ $now | Quote }} } }
{{ end }}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  {{ if eq .restartPolicy "Always" }}
  started: true
  state: { running: { startedAt: {{ $now | Quote }} } }
  {{ else }}
  state:
    terminated:
      exitCode: 0
      reason: Completed
      startedAt: {{ $now | Quote }}
      finishedAt: {{ $now | Quote }}
  {{ end }}
{{ end }}
{{ $onHost := or .spec.hostNetwork false }}
{{ $addresses := PodIPsWith .spec.nodeName $onHost .metadata.uid .metadata.name .metadata.namespace }}
{{ with $addresses }}
podIP: {{ index . 0 | Quote }}
podIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
"""

_FINISHED_STATUS = """\
{{ $now := Now }}
{{ $started := .status.startTime }}
phase: %(phase)s
conditions:
- { type: Initialized, status: "True", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }} }
- { type: ContainersReady, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }} }
- { type: Ready, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }} }
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: false
  started: false
  restartCount: 0
  state:
    terminated:
      exitCode: %(code)d
      reason: %(reason)s
      startedAt: {{ $started | Quote }}
      finishedAt: {{ $now | Quote }}
{{ end }}
"""
