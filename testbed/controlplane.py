"""etcd, kube-apiserver and, optionally, kube-controller-manager and kube-scheduler of a bed.

All use TLS with certificates of the bed's own CA. Authorisation is Node and RBAC, so a kubelet or a service account has
exactly the rights that it has in a real cluster. Every request is in the audit log, with microseconds.

Without a controller-manager, nothing would remove the not-ready taint from a new node or create the service account and
the CA config map that pods need. In that case the taint is never set, and `Bed.namespace` creates the rest.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.api import Api, answers_200
from testbed.certificates import Authority, service_account_keys, write_kubeconfig
from testbed.errors import BedError
from testbed.processes import Component
from testbed.state import ETCD_PORT, BedRecord, is_port_free

ETCD_PEER_PORT = 2380
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass
class ControlPlane:
    """Addresses, credentials and the components, none of them started."""

    record: BedRecord
    programs: Path
    etcd_program: Path
    address: str
    port: int

    def __post_init__(self) -> None:
        self.pki = Authority(self.record.directory / "pki")
        self.logs = self.record.directory / "logs"
        hosts = {self.address, self.record.loopback_address, "127.0.0.1", str(self.record.service_range[1])}
        hosts.add(str(self.record.network[1]))
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        self.serving = self.pki.issue("serving", "kube-apiserver", hosts=[*names, *sorted(hosts)])
        self.admin_certificate = self.pki.issue("admin", "admin", organizations=["system:masters"])
        self.token_keys = service_account_keys(self.pki.directory)
        self.server = f"https://{self.address}:{self.port}"
        self.kubeconfig = self.write_kubeconfig("kubeconfig", self.admin_certificate)
        self.audit_log = self.logs / "audit.log"
        self.api = Api(self.server, self.pki.certificate, *self.admin_certificate)

    def audited(self, *words: str) -> list[dict[str, Any]]:
        """The audit records written so far whose lines contain all these words."""
        with self.audit_log.open() as log:
            return [json.loads(line) for line in log if line.endswith("\n") and all(word in line for word in words)]

    def write_kubeconfig(self, stem: str, credentials: tuple[Path, Path], *, server: str | None = None) -> Path:
        """Write a kubeconfig into the bed's directory."""
        return write_kubeconfig(self.record.directory / stem, server or self.server, self.pki.certificate, *credentials)

    def user_kubeconfig(self, common_name: str, organizations: Sequence[str] = ()) -> Path:
        """A kubeconfig for the user with that name, whose rights come from RBAC."""
        stem = common_name.rpartition(":")[2]
        credentials = self.pki.issue(stem, common_name, organizations=organizations)
        return self.write_kubeconfig(f"{stem}.kubeconfig", credentials)

    def etcd(self) -> Component:
        """etcd without fsync: a bed does not survive a restart of the machine."""
        host = self.record.loopback_address
        _require_free(host, ETCD_PORT, "etcd")
        client, peer = f"https://{host}:{ETCD_PORT}", f"https://{host}:{ETCD_PEER_PORT}"
        certificate, key = map(str, self.serving)
        trust = str(self.pki.certificate)
        flags = {
            "name": "bed",
            "data-dir": str(self.record.directory / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"bed={peer}",
            "cert-file": certificate,
            "key-file": key,
            "client-cert-auth": "true",
            "trusted-ca-file": trust,
            "peer-cert-file": certificate,
            "peer-key-file": key,
            "peer-trusted-ca-file": trust,
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        return Component(
            "etcd",
            _words(self.etcd_program / "etcd", flags),
            self.record.id,
            self.logs / "etcd.log",
            is_ready=lambda: answers_200(f"{client}/health", self.pki.certificate, self.admin_certificate),
        )

    def api_server(self, *, settle_nodes: bool, more_flags: Sequence[str] = ()) -> Component:
        """kube-apiserver; `settle_nodes` if a controller-manager will remove the not-ready taint from new nodes."""
        _require_free(self.address, self.port, "the API server")
        certificate, key = map(str, self.serving)
        trust = str(self.pki.certificate)
        kubelet_client = self.pki.issue("kubelet-client", "kube-apiserver-kubelet", organizations=["system:masters"])
        etcd_client = self.pki.issue("etcd-client", "kube-apiserver-etcd")
        policy = self.record.directory / "audit-policy.json"
        policy.write_text(json.dumps(_AUDIT_POLICY))
        flags = {
            "etcd-servers": f"https://{self.record.loopback_address}:{ETCD_PORT}",
            "etcd-cafile": trust,
            "etcd-certfile": str(etcd_client[0]),
            "etcd-keyfile": str(etcd_client[1]),
            "bind-address": self.address,
            "secure-port": str(self.port),
            "advertise-address": str(self.record.service_range[1]),
            "endpoint-reconciler-type": "none",
            "tls-cert-file": certificate,
            "tls-private-key-file": key,
            "client-ca-file": trust,
            "requestheader-client-ca-file": trust,
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "service-cluster-ip-range": str(self.record.service_range),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-signing-key-file": str(self.token_keys[0]),
            "service-account-key-file": str(self.token_keys[1]),
            "kubelet-client-certificate": str(kubelet_client[0]),
            "kubelet-client-key": str(kubelet_client[1]),
            "kubelet-certificate-authority": trust,
            "kubelet-preferred-address-types": "InternalIP",
            "audit-log-path": str(self.audit_log),
            "audit-policy-file": str(policy),
            "audit-log-maxsize": "100000",  # MB; with the default of 100 the file would be rotated during a test
        }
        if not settle_nodes:
            flags["disable-admission-plugins"] = "TaintNodesByCondition"
        return Component(
            "kube-apiserver",
            [*_words(self.programs / "kube-apiserver", flags), *more_flags],
            self.record.id,
            self.logs / "kube-apiserver.log",
            is_ready=lambda: answers_200(f"{self.server}/readyz", self.pki.certificate, self.admin_certificate),
        )

    def controller_manager(self) -> Component:
        """kube-controller-manager with all its controllers.

        It reports healthy before its controllers are created, and exits if the API server fails in the meantime; it is
        ready when its health report lists its controllers.
        """
        kubeconfig = str(self.user_kubeconfig("system:kube-controller-manager"))
        flags = {
            **self._listening(CONTROLLER_MANAGER_PORT, "kube-controller-manager"),
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "use-service-account-credentials": "true",
            "service-account-private-key-file": str(self.token_keys[0]),
            "root-ca-file": str(self.pki.certificate),
            "leader-elect": "false",
            "kube-api-qps": "500",
            "kube-api-burst": "1000",
        }
        return Component(
            "kube-controller-manager",
            _words(self.programs / "kube-controller-manager", flags),
            self.record.id,
            self.logs / "kube-controller-manager.log",
            is_ready=lambda: self._is_healthy(CONTROLLER_MANAGER_PORT, "]job-controller ok"),
        )

    def scheduler(self, config: Mapping[str, Any] | None) -> Component:
        """kube-scheduler with a given KubeSchedulerConfiguration; the bed fills in its own settings."""
        kubeconfig = str(self.user_kubeconfig("system:kube-scheduler"))
        full: dict[str, Any] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            **(config or {}),
        }
        full["clientConnection"] = {
            "qps": 500,
            "burst": 1000,
            **full.get("clientConnection", {}),
            "kubeconfig": kubeconfig,
        }
        full["leaderElection"] = {"leaderElect": False, **full.get("leaderElection", {})}
        path = self.record.directory / "scheduler.yaml"
        path.write_text(yaml.safe_dump(full))
        flags = {
            **self._listening(SCHEDULER_PORT, "kube-scheduler"),
            "config": str(path),
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
        }
        return Component(
            "kube-scheduler",
            _words(self.programs / "kube-scheduler", flags),
            self.record.id,
            self.logs / "kube-scheduler.log",
            is_ready=lambda: self._is_healthy(SCHEDULER_PORT),
        )

    def _listening(self, port: int, name: str) -> dict[str, str]:
        _require_free(self.record.loopback_address, port, name)
        certificate, key = map(str, self.serving)
        return {
            "bind-address": self.record.loopback_address,
            "secure-port": str(port),
            "tls-cert-file": certificate,
            "tls-private-key-file": key,
        }

    def _is_healthy(self, port: int, containing: str = "") -> bool:
        url = f"https://{self.record.loopback_address}:{port}/healthz?verbose"
        return answers_200(url, self.pki.certificate, containing=containing)


def _require_free(host: str, port: int, program: str) -> None:
    if port < 1024 and os.geteuid() != 0:
        raise BedError(f"port {port} for {program} needs root; choose a port above 1023")
    if not is_port_free(host, port):
        raise BedError(
            f"port {port} on {host} for {program} is already in use; stop that server or choose another port"
        )


def _words(program: Path, flags: Mapping[str, str]) -> list[str]:
    return [str(program), *(f"--{name}={value}" for name, value in flags.items())]
