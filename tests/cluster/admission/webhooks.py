"""`baton admission` on a bed: real processes, real certificates, the shipped webhook configurations."""

import contextlib
import copy
import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from baton.install.apply import manifests
from testbed.bed import Bed
from testbed.errors import BedError
from testbed.processes import bed_environment

NAMESPACE = "baton-system"
_API = "/apis/admissionregistration.k8s.io/v1"
_PLURALS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Replica:
    """One running `baton admission`."""

    bed: Bed
    port: int
    observe: int
    log: Path
    options: tuple[str, ...] = ()
    kubeconfig: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "baton.cli.main", "admission", "--host", "127.0.0.1"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--observe", f"127.0.0.1:{self.observe}"]
        command += ["--namespace", NAMESPACE, "--drain", "0", *self.options]
        environment = bed_environment(self.bed.id, {"KUBECONFIG": str(self.kubeconfig or self.bed.kubeconfig)})
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def ready(self) -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.observe, timeout=5)) as connection:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200

    def wait_ready(self) -> None:
        try:
            self.bed.wait_for(self.ready, "the admission webhooks to be ready", 90)
        except BedError as error:
            raise BedError(f"{error}; its log ends: {self.log.read_text()[-1500:]}") from None

    def metrics(self) -> str:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.observe, timeout=5)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def kill(self) -> None:
        """As an outage does it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self) -> int:
        """As kubelet does it; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process = None
        return code


def configurations(port: int) -> list[dict[str, Any]]:
    """The shipped configurations, calling a port of this machine instead of a service."""
    found = [copy.deepcopy(each) for each in manifests() if each["kind"] in _PLURALS]
    for configuration in found:
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"].pop("service")["path"]
            webhook["clientConfig"]["url"] = f"https://127.0.0.1:{port}{path}"
    return found


def install_webhooks(bed: Bed, port: int) -> None:
    for configuration in configurations(port):
        name = configuration["metadata"]["name"]
        path = f"{_API}/{_PLURALS[configuration['kind']]}/{name}?fieldManager=test&force=true"
        bed.api.call("PATCH", path, configuration, content_type="application/apply-patch+yaml")


def remove_webhooks(bed: Bed) -> None:
    for plural in _PLURALS.values():
        bed.api.delete(f"{_API}/{plural}/baton-admission")


def trusted_bundles(bed: Bed) -> list[str]:
    """What the API server is told to trust, webhook by webhook."""
    return [
        webhook["clientConfig"].get("caBundle", "")
        for plural in _PLURALS.values()
        for webhook in bed.api.get(f"{_API}/{plural}/baton-admission")["webhooks"]
    ]


@dataclass
class Kubectl:
    """kubectl that tells all it was told."""

    bed: Bed
    namespace: str
    words: tuple[str, ...] = field(default=())

    def apply(self, *objects: dict[str, Any]) -> tuple[int, str]:
        """`kubectl apply` of objects as one file; returns the exit code and everything it printed."""
        command = [str(self.bed.kubectl_program), f"--kubeconfig={self.bed.kubeconfig}", "-n", self.namespace]
        result = subprocess.run(
            [*command, "apply", "-f", "-", *self.words],
            input=yaml.safe_dump_all(objects, sort_keys=False),
            capture_output=True,
            text=True,
            timeout=240,
        )
        return result.returncode, result.stdout + result.stderr


@contextlib.contextmanager
def running(bed: Bed, folder: Path, *options: str) -> Iterator[Replica]:
    """One replica with the configurations in place and known to the API server."""
    if not bed.api.exists(f"/api/v1/namespaces/{NAMESPACE}"):
        bed.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    replica = Replica(bed, free_port(), free_port(), folder / "admission.log", options)
    install_webhooks(bed, replica.port)
    try:
        replica.start()
        replica.wait_ready()
        bed.wait_for(lambda: called(bed), "the API server to call the webhooks")
        yield replica
    finally:
        remove_webhooks(bed)
        replica.kill()


def called(bed: Bed) -> bool:
    """Whether the API server asks about queues already, and gets answers."""
    body = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "probe"},
        "spec": {"parent": "nowhere"},
    }
    status, answer = bed.api.request("POST", "/apis/scheduling.volcano.sh/v1beta1/queues?dryRun=All", body)
    return status == 422 and b"parent queue nowhere not found" in answer
