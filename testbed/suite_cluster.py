"""A bed that looks to Volcano's end-to-end suite like the suite's own cluster, with Baton in Volcano's place.

The suite expects four machines with four CPUs each, a small pod of the network on each, and a tainted control plane; it
counts free resources, so all of that matters. It finds things by name: the scheduler's configuration, the scheduler's
pod, kinds that Baton does not use.

Pods start some time after they are bound: some cases do other work before they look for a Pending job, and on nodes
that start pods at once it would already be Running.
"""

import contextlib
import copy
import http.client
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from baton.install.apply import manifests
from baton.install.crds import definitions
from testbed import kwok
from testbed.bed import Bed, BedOptions
from testbed.processes import Component
from testbed.suite_containers import ContainerPlayer

SYSTEM = "volcano-system"
CONFIG_MAP = "integration-scheduler-configmap"
CONFIG_KEY = "volcano-scheduler-ci.conf"

WORKERS = 4
WORKER = {"cpu": "4", "memory": "16Gi", "pods": "110"}
CONTROL_PLANE_ROLE = "node-role.kubernetes.io/control-plane"
HYPER_NODES = 8
HYPER_NODE = {"cpu": "8", "memory": "8Gi", "pods": "110"}
HYPER_NODE_TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}

_PORTS = {"controller": 8081, "scheduler": 8082, "admission": 8083}
_WEBHOOKS_PORT = 8443
_QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"

Object = dict[str, Any]


class SuiteCluster:
    """The cluster of one package of the suite; a context manager that tears it down.

    `data` holds Volcano's CRDs and configurations, from the directory of the suite's programs.
    """

    def __init__(self, data: Path, *, start_after_s: float, hyper_nodes: bool) -> None:
        self._data = data
        self._start_after_s = start_after_s
        self._hyper_nodes = hyper_nodes
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> "SuiteCluster":
        with contextlib.ExitStack() as exits:
            self.bed = exits.enter_context(Bed(BedOptions(kwok=True, controller_manager=True, scheduler=True)))
            self._make_nodes()
            self._define_kinds()
            self._furnish()
            for program in self._programs():
                program.start()
                program.wait_ready()
            self._install_webhooks()
            self.bed.wait_for(
                lambda: all(self.bed.api.exists(f"{_QUEUES}/{name}") for name in ("root", "default")),
                "the scheduler to create its queues",
            )
            exits.enter_context(ContainerPlayer(self.bed.api))
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of Baton's programs, which are deleted with the bed otherwise."""
        for log in (self.bed.directory / "logs").glob("baton-*.log"):
            shutil.copyfile(log, folder / log.name)

    def _make_nodes(self) -> None:
        kwok.write_stages(self.bed.record, start_after_s=self._start_after_s)
        self.bed.component("kwok").restart()
        names = self.bed.add_kwok_nodes(WORKERS, prefix="worker", resources=WORKER)
        names += self.bed.add_kwok_nodes(
            1,
            prefix="control-plane",
            labels={CONTROL_PLANE_ROLE: ""},
            taints=[{"key": CONTROL_PLANE_ROLE, "value": "", "effect": "NoSchedule"}],
            resources=WORKER,
        )
        if self._hyper_nodes:
            names += self.bed.add_kwok_nodes(
                HYPER_NODES, prefix="kwok-node", taints=[HYPER_NODE_TAINT], resources=HYPER_NODE
            )
        for name in names:
            self._create_pod("kube-system", _pod(f"network-{name}", name, cpu="100m", memory="50Mi"))

    def _define_kinds(self) -> None:
        """Install Baton's kinds, and those of Volcano's that Baton does not have but the suite lists.

        The garbage collector discovers new kinds only twice a minute, and until then a queue deleted in the foreground
        stays: the next case takes it for its own, and then it disappears. A restarted garbage collector knows them.
        """
        kinds = definitions()
        known = {kind["metadata"]["name"] for kind in kinds}
        for path in sorted((self._data / "crd").glob("*/bases/*.yaml")):
            kinds += [kind for kind in yaml.safe_load_all(path.read_text()) if kind["metadata"]["name"] not in known]
        self.bed.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(kinds))
        self.bed.kubectl("wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", "--all")
        self.bed.controller_manager.restart()

    def _furnish(self) -> None:
        self.bed.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
        configuration = (self._data / "config" / CONFIG_KEY).read_text()
        self.bed.api.create(
            f"/api/v1/namespaces/{SYSTEM}/configmaps",
            {"metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: configuration}},
        )
        # The suite annotates the scheduler's pod so that a mounted configuration is reread; the pod runs nothing.
        scheduler = _pod("volcano-scheduler", "control-plane-0", cpu="0", memory="0")
        scheduler["metadata"]["labels"] = {"app": "volcano-scheduler"}
        self._create_pod(SYSTEM, scheduler)

    def _create_pod(self, namespace: str, pod: Object) -> None:
        self.bed.create_when_accepted(f"/api/v1/namespaces/{namespace}/pods", pod)

    def _programs(self) -> Iterator[Component]:
        alone = ["--no-leader-elect"]
        configuration = f"{SYSTEM}/{CONFIG_MAP}:{CONFIG_KEY}"
        host = self.bed.record.loopback_address
        yield self._program("controller", ["--listen", self._address("controller"), *alone])
        yield self._program(
            "scheduler", ["--listen", self._address("scheduler"), *alone, "--config-map", configuration]
        )
        webhooks = ["--host", host, "--listen", f"{host}:{_WEBHOOKS_PORT}", "--observe", self._address("admission")]
        certificates = ["--namespace", SYSTEM, "--certificate-check", "1"]
        yield self._program("admission", [*webhooks, *certificates, "--drain", "0"])

    def _program(self, name: str, words: list[str]) -> Component:
        return Component(
            f"baton-{name}",
            [sys.executable, "-m", "baton.cli.main", name, *words],
            self.bed.id,
            self.bed.directory / "logs" / f"baton-{name}.log",
            is_ready=lambda: self._answers(name),
            environment={"KUBECONFIG": str(self.bed.kubeconfig)},
        )

    def _address(self, program: str) -> str:
        return f"{self.bed.record.loopback_address}:{_PORTS[program]}"

    def _answers(self, program: str) -> bool:
        with contextlib.closing(http.client.HTTPConnection(self._address(program), timeout=5)) as connection:
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False

    def _install_webhooks(self) -> None:
        """Install the shipped webhook configurations, calling an address of this machine instead of a service."""
        found = [copy.deepcopy(each) for each in manifests() if each["kind"].endswith("WebhookConfiguration")]
        for configuration in found:
            for webhook in configuration["webhooks"]:
                path = webhook["clientConfig"].pop("service")["path"]
                address = f"{self.bed.record.loopback_address}:{_WEBHOOKS_PORT}"
                webhook["clientConfig"]["url"] = f"https://{address}{path}"
        self.bed.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(found))
        self.bed.wait_for(self._asks_admission, "the API server to call the webhooks")

    def _asks_admission(self) -> bool:
        """Whether a queue with a nonexistent parent is rejected."""
        orphan = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": "probe"},
            "spec": {"parent": "nowhere"},
        }
        status, answer = self.bed.api.request("POST", f"{_QUEUES}?dryRun=All", orphan)
        return status == 422 and b"parent queue nowhere not found" in answer


def _pod(name: str, node: str, *, cpu: str, memory: str) -> Object:
    """A pod that is bound to a node from the start, whatever the node's taints."""
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
            ],
        },
    }
