"""Real kubelets side by side: each with its own containerd, namespaces, cgroups, bridge CNI and pod addresses.

A node is a process (`testbed.node_init`) in new mount, network, host name and process namespaces. containerd, kubelet
and the programs under test enter these namespaces, so they see what they would see on their own machine; above all the
same `/var/lib/kubelet`. The node's files are directories of the bed: a kubelet that is restarted, and even a node that
is powered off and on again, finds its state.
"""

import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc

from testbed import cgroups, network
from testbed.api import ApiError
from testbed.controlplane import ControlPlane
from testbed.errors import BedError
from testbed.images import PAUSE, archive
from testbed.packages import CNI_DIRECTORIES
from testbed.processes import Component, bed_environment
from testbed.programs import find_tool
from testbed.state import BedRecord

KUBELET_PORT = 10250
HEALTH_PORT = 10248
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
_ANSWER_LIMIT_S = 5.0

_CONTAINERD_CONFIG = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [{disabled}]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  {cdi}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "/var/lib/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""

_UNUSED_PLUGINS = ("aufs", "btrfs", "devmapper", "zfs", "blockfile")


class Node:
    """One real node; its parts are components that faults can be injected into."""

    def __init__(
        self, record: BedRecord, plane: ControlPlane, number: int, programs: Path, kubelet_config: Mapping[str, Any]
    ) -> None:
        self.name = f"node-{number}"
        self.number = number
        self.address = record.node_address(number)
        self._record = record
        self._plane = plane
        self._kubelet_config = kubelet_config
        self._directory = record.directory / "nodes" / self.name
        self._logs = record.directory / "logs"
        self.init = Component(
            f"{self.name} init",
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("node_init.py")), *self._init_words()],
            record.id,
            self._logs / f"{self.name}-init.log",
            is_ready=(self._directory / "furnished").exists,
            enter=[
                str(find_tool("unshare", "util-linux")),
                *("--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private"),
            ],
        )
        self.containerd = Component(
            f"{self.name} containerd",
            [str(find_tool("containerd", "containerd")), "--config", str(self._directory / "containerd.toml")],
            record.id,
            self._logs / f"{self.name}-containerd.log",
            is_ready=self._containerd_answers,
        )
        self.kubelet = Component(
            f"{self.name} kubelet",
            [
                str(programs / "kubelet"),
                f"--config={self._directory / 'kubelet.json'}",
                f"--kubeconfig={self._directory / 'kubeconfig'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
            ],
            record.id,
            self._logs / f"{self.name}-kubelet.log",
            is_ready=self._kubelet_is_ready,
        )

    def _init_words(self) -> list[str]:
        return [str(self._record.directory), str(self._directory)]

    @property
    def components(self) -> dict[str, Component]:
        """The parts of the node."""
        return {part.name: part for part in (self.init, self.containerd, self.kubelet)}

    @property
    def cgroup(self) -> str:
        """The cgroup that contains the node's pods, relative to the root of each hierarchy."""
        return f"{self._record.cgroup_prefix}-{self.name}"

    @property
    def enter(self) -> list[str]:
        """The command prefix that runs a command inside the node."""
        words = [str(find_tool("nsenter", "util-linux")), "--target", str(self.init.pid)]
        return [*words, "--mount", "--uts", "--net", "--pid", "--"]

    def path(self, inside: str) -> Path:
        """The path on the machine of a file in the node's own `/var` or `/run`."""
        relative = inside.removeprefix("/var/run/")
        relative = f"run/{relative}" if relative != inside else inside.lstrip("/")
        if relative.split("/")[0] not in {"var", "run"}:
            raise BedError(f"{inside} belongs to the machine; a node has only its own /var and /run")
        return self._directory / relative

    def prepare(self) -> None:
        """Write the node's files and create its cgroups; called once in the node's life."""
        for name in (
            *("var/lib/kubelet", "var/lib/cni/net.d", "var/lib/containerd", "var/log/pods", "var/log/containers"),
            *("var/tmp", "run/netns", "run/lock", "run/containerd"),
        ):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        for name, target in (("run", "/run"), ("lock", "/run/lock")):
            (self._directory / "var" / name).symlink_to(target)
        cgroups.create(self.cgroup)
        self._write_cni_config()
        self._write_kubelet_config()

    def start(self, images: Sequence[str]) -> None:
        """Start the node and wait until it is registered and Ready with the given images."""
        self.power_on()
        for image in (PAUSE, *images):
            self.load_image(archive(image))
        self.kubelet.enter = self.enter
        self.kubelet.start()

    def power_on(self) -> None:
        """Start namespaces, network and containerd, without kubelet."""
        (self._directory / "furnished").unlink(missing_ok=True)
        self.init.start()
        self.init.wait_ready()
        nets = [str(find_tool("nsenter", "util-linux")), f"--net=/proc/{self.init.pid}/ns/net", "--"]
        network.connect_node(self._record, self.number, self.init.pid, nets)
        self._write_containerd_config()
        self.containerd.enter = self.enter
        self.containerd.start()
        self.containerd.wait_ready()

    def power_off(self) -> None:
        """Simulate a power cut: every process in the node ends at once, its disk remains."""
        self.init.kill()
        for part in (self.containerd, self.kubelet):
            part.kill()

    def reboot(self) -> None:
        """Power the node off and on again, and wait until it is Ready."""
        self.power_off()
        shutil.rmtree(self._directory / "run", ignore_errors=True)
        for name in ("run/netns", "run/lock", "run/containerd"):
            (self._directory / name).mkdir(parents=True)
        self.power_on()
        self.kubelet.enter = self.enter
        self.kubelet.start()
        self.kubelet.wait_ready()

    def load_image(self, image_archive: Path) -> None:
        """Import an image archive into the node."""
        result = self.run(
            [
                *("ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"),
                *("images", "import", "--snapshotter", self.snapshotter, str(image_archive)),
            ],
            check=False,
        )
        if result.returncode != 0:
            raise BedError(f"cannot import {image_archive} into {self.name}: {' '.join(result.stderr.split())[:300]}")

    @property
    def snapshotter(self) -> str:
        """How containerd creates container file systems: overlayfs where it works."""
        return (self._directory / "snapshotter").read_text()

    def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside the node and wait for it, like a DaemonSet pod with the host's namespaces."""
        return subprocess.run(
            [*self.enter, *argv],
            env=bed_environment(self._record.id, environment),
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout_s,
        )

    def popen(
        self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None, **settings: Any
    ) -> "subprocess.Popen[Any]":
        """Start a program inside the node, with pipes; returns the wrapper process (see `start_program`)."""
        return subprocess.Popen(
            [*self.enter, *argv], env=bed_environment(self._record.id, environment), start_new_session=True, **settings
        )

    def start_program(
        self,
        name: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> Component:
        """Start one of our programs inside the node as a component, with its own log and the same fault methods."""
        program = Component(
            f"{self.name} {name}",
            argv,
            self._record.id,
            self._logs / f"{self.name}-{name}.log",
            is_ready=is_ready,
            environment=environment or {},
            enter=self.enter,
        )
        program.start()
        program.wait_ready()
        return program

    def _containerd_answers(self) -> bool:
        """Whether it serves kubelet: it listens before it has recovered its state, and kubelet exits when refused."""
        try:
            with grpc.insecure_channel(f"unix:///proc/{self.init.pid}/root{CONTAINERD_SOCKET}") as channel:
                channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=_ANSWER_LIMIT_S)
        except grpc.RpcError:
            return False
        return True

    def _kubelet_is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.address, HEALTH_PORT, timeout=5)
        try:
            connection.request("GET", "/healthz")
            if connection.getresponse().status != 200:
                return False
            node = self._plane.api.get(f"/api/v1/nodes/{self.name}")
        except (OSError, http.client.HTTPException, ApiError):
            return False
        finally:
            connection.close()
        return is_ready(node)

    def _write_cni_config(self) -> None:
        config = {
            "cniVersion": "0.4.0",
            "name": "bed",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": str(self._record.pod_range(self.number))}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (self._directory / "var/lib/cni/net.d/10-bed.conflist").write_text(json.dumps(config))

    @cached_property
    def has_cdi(self) -> bool:
        """Whether the runtime supports the Container Device Interface."""
        version = subprocess.run(
            [self.containerd.argv[0], "--version"], capture_output=True, text=True, check=True
        ).stdout
        return " 1.6." not in version and " 1.5." not in version

    def _write_containerd_config(self) -> None:
        plugins = next((directory for directory in CNI_DIRECTORIES if Path(directory, "bridge").exists()), None)
        if plugins is None:
            raise BedError("no CNI plugins found; install them (Debian: apt-get install containernetworking-plugins)")
        config = _CONTAINERD_CONFIG.format(
            disabled=", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in _UNUSED_PLUGINS),
            socket=CONTAINERD_SOCKET,
            pause=PAUSE,
            cdi='enable_cdi = true\n  cdi_spec_dirs = ["/var/run/cdi"]' if self.has_cdi else "",
            cni=plugins,
            snapshotter=self.snapshotter,
        )
        (self._directory / "containerd.toml").write_text(config)

    def _write_kubelet_config(self) -> None:
        user = f"system:node:{self.name}"
        credentials = self._plane.pki.issue(
            self.name, user, organizations=["system:nodes"], hosts=[self.name, self.address]
        )
        self._plane.write_kubeconfig(f"nodes/{self.name}/kubeconfig", credentials)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": KUBELET_PORT,
            "healthzBindAddress": self.address,
            "healthzPort": HEALTH_PORT,
            "tlsCertFile": str(credentials[0]),
            "tlsPrivateKeyFile": str(credentials[1]),
            "authentication": {
                "x509": {"clientCAFile": str(self._plane.pki.certificate)},
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "enableControllerAttachDetach": False,
            "oomScoreAdj": 0,
            "resolvConf": "",
            # The disk is the machine's: no node may evict or collect because something unrelated fills it.
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            "staticPodPath": "/var/lib/kubelet/static-pods",
            **self._kubelet_config,
        }
        (self._directory / "var/lib/kubelet/static-pods").mkdir(exist_ok=True)
        (self._directory / "kubelet.json").write_text(json.dumps(config, indent=2))


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a node object reports Ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
