"""A bed: one Kubernetes cluster on this machine, from start to teardown.

    with Bed(BedOptions(kubelets=2, scheduler=True)) as bed, bed.namespace() as namespace:
        bed.kubectl("apply", "-n", namespace, "-f", "pod.yaml")

Life cycle: the bed is registered first (`testbed.state`), then its reaper is started; from then on the bed ends with
its owner, whatever happens. If anything fails during startup, the bed is torn down and the error says why.
"""

import contextlib
import functools
import http.client
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from testbed import kwok, network, reaper, state
from testbed.api import ApiError, Object
from testbed.controlplane import ControlPlane
from testbed.errors import BedError, MissingError
from testbed.faults import Proxy
from testbed.images import BUSYBOX, PAUSE, archive
from testbed.nodes import Node, is_ready
from testbed.packages import require_node_packages
from testbed.processes import Component, bed_environment, wait_until
from testbed.programs import ETCD, KUBERNETES_VERSION, KWOK, kubernetes, locate
from testbed.teardown import tear_down

CLUSTER_PORT = 443
LOOPBACK_PORT = 6443


@dataclass(frozen=True)
class BedOptions:
    """What to start.

    Without kubelets a bed needs no root and uses a loopback address; the API server then listens on `port`. With
    kubelets it listens on port 443 of the cluster's first service address, reachable from the pods and the machine.
    `kwok` runs KWOK without nodes; `kubelet_config` is merged over the bed's own KubeletConfiguration.
    """

    name: str | None = None
    kubelets: int = 0
    kwok_nodes: int = 0
    kwok_labels: Mapping[str, str] = field(default_factory=dict)
    kwok_taints: Sequence[Mapping[str, str]] = ()
    kwok_resources: Mapping[str, str | int] = field(default_factory=dict)
    kwok: bool = False
    controller_manager: bool = False
    scheduler: bool = False
    scheduler_config: Mapping[str, Any] | None = None
    kubernetes_version: str = KUBERNETES_VERSION
    kubelet_config: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[str] = (BUSYBOX,)
    api_server_flags: Sequence[str] = ()
    port: int | None = None

    def check(self) -> None:
        """Reject options that cannot work, before anything is started."""
        if not 0 <= self.kubelets <= state.MAX_KUBELETS:
            raise BedError(f"kubelets is {self.kubelets}, must be 0 to {state.MAX_KUBELETS}; use KWOK nodes for more")
        if self.kwok_nodes < 0:
            raise BedError(f"kwok_nodes is {self.kwok_nodes}, must not be negative")
        if self.kubelets and os.geteuid() != 0:
            raise MissingError(
                "real kubelets need root (namespaces, cgroups, mounts); run as root, or use KWOK nodes, which do not"
            )
        if self.kubelets:
            require_node_packages()
        if self.scheduler_config is not None and not self.scheduler:
            raise BedError("a scheduler configuration was given without a scheduler; enable the scheduler as well")

    @property
    def needs_kwok(self) -> bool:
        """Whether KWOK runs."""
        return self.kwok or self.kwok_nodes > 0


class Bed:
    """A running cluster; a context manager that tears it down."""

    def __init__(self, options: BedOptions | None = None) -> None:
        self.options = options or BedOptions()
        self.options.check()
        programs = locate(kubernetes(self.options.kubernetes_version))
        etcd_program = locate(ETCD)
        kwok_program = locate(KWOK) if self.options.needs_kwok else None
        self.record = state.create(self.options.name)
        self._reaper: subprocess.Popen[bytes] | None = None
        self._proxies: list[Proxy] = []
        self.components: dict[str, Component] = {}
        self.nodes: dict[str, Node] = {}
        try:
            self._reaper = reaper.start(self.record)
            self.kubectl_program = programs / "kubectl"
            self._start(programs, etcd_program, kwok_program)
        except BaseException:
            self.stop()
            raise

    def _start(self, programs: Path, etcd_program: Path, kwok_program: Path | None) -> None:
        options, record = self.options, self.record
        if options.kubelets:
            network.create_bridge(record)
            address, port = str(record.service_range[1]), options.port or CLUSTER_PORT
        else:
            address, port = record.loopback_address, options.port or LOOPBACK_PORT
        self.plane = ControlPlane(record, programs, etcd_program, address, port)
        self.api = self.plane.api
        self.kubeconfig = self.plane.kubeconfig
        self._add(self.plane.etcd())
        self._add(self.plane.api_server(settle_nodes=options.controller_manager, more_flags=options.api_server_flags))
        for name in ("etcd", "kube-apiserver"):
            self.components[name].start()
        with ThreadPoolExecutor(max_workers=max(1, options.kubelets), thread_name_prefix="nodes") as pool:
            for image in (PAUSE, *options.images) if options.kubelets else ():
                archive(image)
            starting = [pool.submit(self._start_node, number, programs) for number in range(1, options.kubelets + 1)]
            self.components["kube-apiserver"].wait_ready()
            if options.controller_manager:
                self._add(self.plane.controller_manager()).start()
            if options.scheduler:
                self._add(self.plane.scheduler(options.scheduler_config)).start()
            if kwok_program:
                self._add(kwok.component(record, self.plane, kwok_program, leases=options.controller_manager)).start()
            for start in starting:
                start.result()
        if not options.controller_manager:
            self._furnish_namespace("default")
        for component in self.components.values():
            component.wait_ready()
        if options.kwok_nodes:
            self.add_kwok_nodes(
                options.kwok_nodes,
                labels=options.kwok_labels,
                taints=options.kwok_taints,
                resources=options.kwok_resources,
            )

    def _add(self, component: Component) -> Component:
        self.components[component.name] = component
        return component

    def _start_node(self, number: int, programs: Path) -> None:
        node = Node(self.record, self.plane, number, programs, self.options.kubelet_config)
        self.nodes[node.name] = node
        self.components.update(node.components)
        node.prepare()
        node.start(self.options.images)

    @property
    def id(self) -> str:
        """The bed's id, which is part of the name of everything it creates."""
        return self.record.id

    @property
    def directory(self) -> Path:
        """The bed's files: `kubeconfig`, `logs/`, `pki/`, `nodes/`."""
        return self.record.directory

    def component(self, name: str) -> Component:
        """A program of the bed by name, for injecting faults."""
        if name not in self.components:
            raise BedError(f"the bed has no component '{name}'; it has {', '.join(sorted(self.components))}")
        return self.components[name]

    @property
    def etcd(self) -> Component:
        """The API server's store."""
        return self.component("etcd")

    @property
    def api_server(self) -> Component:
        """kube-apiserver."""
        return self.component("kube-apiserver")

    @property
    def scheduler(self) -> Component:
        """kube-scheduler, if enabled."""
        return self.component("kube-scheduler")

    @property
    def controller_manager(self) -> Component:
        """kube-controller-manager, if enabled."""
        return self.component("kube-controller-manager")

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Run kubectl as the cluster's administrator; raises `BedError` with kubectl's message if it fails."""
        result = subprocess.run(
            [str(self.kubectl_program), f"--kubeconfig={self.kubeconfig}", *words],
            input=stdin,
            env=bed_environment(self.id),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if result.returncode != 0:
            raise BedError(f"kubectl {' '.join(words)}: {' '.join((result.stderr or result.stdout).split())[:500]}")
        return result.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """`kubectl apply` of the given objects."""
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([dict(item) for item in objects]))

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """A namespace in which pods can be created at once; on exit its pods are deleted without a grace period."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        self.create_when_accepted("/api/v1/namespaces", {"metadata": {"name": name}})
        if self.options.controller_manager:
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            trust = f"/api/v1/namespaces/{name}/configmaps/kube-root-ca.crt"
            self.wait_for(
                lambda: self.api.exists(account) and self.api.exists(trust),
                f"the service account and CA bundle of namespace {name}",
            )
        else:
            self._furnish_namespace(name)
        try:
            yield name
        finally:
            with contextlib.suppress(OSError, ApiError):
                self.api.delete(f"/api/v1/namespaces/{name}/pods", grace_s=0)
                self.api.delete(f"/api/v1/namespaces/{name}")

    def _furnish_namespace(self, name: str) -> None:
        """Create the objects that a controller-manager would create and that pods need to start."""
        where = f"/api/v1/namespaces/{name}"
        trust = {"ca.crt": self.plane.pki.certificate.read_text()}
        for path, body in (
            (f"{where}/serviceaccounts", {"metadata": {"name": "default"}}),
            (f"{where}/configmaps", {"metadata": {"name": "kube-root-ca.crt"}, "data": trust}),
        ):
            self.create_when_accepted(path, body)

    def create_when_accepted(self, path: str, body: Object, timeout_s: float = 60.0) -> None:
        """Create an object as soon as the API server accepts it. If it exists, an earlier attempt has succeeded."""
        self.wait_for(functools.partial(self._create_if_absent, path, body), f"{path} to accept objects", timeout_s)

    def _create_if_absent(self, path: str, body: Object) -> bool:
        try:
            self.api.create(path, body)
        except ApiError as error:
            if error.status != 409:
                raise
        return True

    def add_kwok_nodes(
        self,
        count: int,
        *,
        prefix: str = "kwok",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        resources: Mapping[str, str | int] | None = None,
        timeout_s: float = 120.0,
    ) -> list[str]:
        """Add nodes `PREFIX-0` to `PREFIX-(count-1)` and wait until KWOK has made them Ready; returns their names."""
        self.component("kwok")
        names = [f"{prefix}-{number}" for number in range(count)]
        kwok.create_nodes(
            self.api, [kwok.node_object(name, labels=labels, taints=taints, resources=resources) for name in names]
        )
        wanted = set(names)
        self.wait_for(lambda: wanted <= self.ready_nodes(), f"{count} KWOK nodes to be Ready", timeout_s, poll_s=0.25)
        return names

    def ready_nodes(self) -> set[str]:
        """The names of the nodes that are Ready."""
        items = self.api.get("/api/v1/nodes?resourceVersion=0")["items"]
        return {node["metadata"]["name"] for node in items if is_ready(node)}

    def finish_pod(self, namespace: str, name: str, outcome: str) -> None:
        """Make a pod on a KWOK node `succeed` or `fail` now."""
        if outcome not in {"succeed", "fail"}:
            raise BedError(f"outcome is '{outcome}', must be succeed or fail")
        self.api.patch(
            f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"annotations": {kwok.OUTCOME: outcome}}}
        )

    def pod(self, namespace: str, name: str) -> Object:
        """The current state of a pod."""
        found: Object = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found

    def wait_for_pod(self, namespace: str, name: str, phase: str, timeout_s: float = 60.0) -> Object:
        """Wait until a pod is in a phase and return it. Raises at once if the pod has ended in another phase."""
        last: Object = {}

        def settled() -> bool:
            nonlocal last
            last = self.pod(namespace, name)
            return last["status"].get("phase") in {phase, "Succeeded", "Failed"}

        with contextlib.suppress(BedError):
            self.wait_for(settled, f"pod {name} to be {phase}", timeout_s)
        now = last.get("status", {}).get("phase")
        if now == phase:
            return last
        raise BedError(f"pod {namespace}/{name} is {now}, not {phase}; {self._pod_story(namespace, name)}")

    def _pod_story(self, namespace: str, name: str) -> str:
        """Events and logs that explain why a pod is not in the expected phase."""
        told = []
        for title, words in (
            ("events", ("get", "events", "--sort-by=.lastTimestamp", f"--field-selector=involvedObject.name={name}")),
            ("log", ("logs", name, "--tail=5")),
        ):
            with contextlib.suppress(BedError):
                told.append(f"{title}: {' | '.join(self.kubectl('-n', namespace, *words).splitlines()[-5:])}")
        return "; ".join(told) or "the pod has no events and no log"

    def wait_for(
        self, condition: Callable[[], bool], what: str, timeout_s: float = 60.0, *, poll_s: float = 0.1
    ) -> None:
        """Wait for a condition that reads the API server.

        While the server is unreachable, or an object does not have the field yet, the condition counts as false.
        """
        hindrance = ""

        def holds() -> bool:
            nonlocal hindrance
            try:
                hindrance = ""
                return condition()
            except (OSError, http.client.HTTPException, ApiError, LookupError) as error:
                hindrance = f" ({type(error).__name__}: {error})"
                return False

        began = time.monotonic()
        if not wait_until(holds, timeout_s, poll_s=poll_s):
            waited = f"timed out after {time.monotonic() - began:.0f} s waiting for {what}{hindrance}"
            raise BedError(f"{waited}; logs are in {self.directory}/logs")

    def proxy(self) -> tuple[Proxy, Path]:
        """A proxy in front of the API server, and an administrator's kubeconfig that uses it; it ends with the bed."""
        listen_host = str(self.record.network[1]) if self.options.kubelets else "127.0.0.1"
        proxy = Proxy((self.plane.address, self.plane.port), listen_host=listen_host)
        self._proxies.append(proxy)
        host, port = proxy.address
        kubeconfig = self.plane.write_kubeconfig(
            f"proxy-{port}.kubeconfig", self.plane.admin_certificate, server=f"https://{host}:{port}"
        )
        return proxy, kubeconfig

    def hand_over(self) -> None:
        """Keep the bed running when this process ends, until `python -m testbed down`."""
        self.record = state.disown(self.record)
        if self._reaper is not None:
            reaper.dismiss(self._reaper)
            self._reaper = None

    def stop(self) -> None:
        """Tear down the bed; nothing of it remains on the machine."""
        for proxy in self._proxies:
            proxy.close()
        if hasattr(self, "api"):
            self.api.close()
        try:
            tear_down(self.record)
        finally:
            for component in self.components.values():
                component.kill()
            if self._reaper is not None:
                reaper.dismiss(self._reaper)
                self._reaper = None

    def __enter__(self) -> "Bed":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
