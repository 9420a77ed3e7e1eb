"""Pods on real kubelets behave as in any cluster: they start, log, answer exec, hold tokens and reach each other."""

import json
from typing import Any

import pytest

from testbed.bed import Bed
from testbed.errors import BedError
from testbed.images import WORKLOAD
from testbed.nodes import Node
from tests.cluster.manifests import pod
from tests.waiting import until

pytestmark = pytest.mark.cluster


def create(bed: Bed, namespace: str, body: dict[str, Any]) -> None:
    bed.api.create(f"/api/v1/namespaces/{namespace}/pods", body)


def log(bed: Bed, namespace: str, name: str) -> str:
    text: str = bed.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}/log")
    return text


def test_a_scheduled_pod_runs_and_its_log_is_read_through_the_api_server(
    kubelet_bed: Bed, kubelet_namespace: str
) -> None:
    create(kubelet_bed, kubelet_namespace, pod("speaker", ["echo", "spoken in a container"]))
    finished = kubelet_bed.wait_for_pod(kubelet_namespace, "speaker", "Succeeded")
    assert finished["spec"]["nodeName"] in kubelet_bed.nodes
    assert log(kubelet_bed, kubelet_namespace, "speaker") == "spoken in a container\n"


def test_a_failing_container_is_reported_with_its_exit_code(kubelet_bed: Bed, kubelet_namespace: str) -> None:
    create(kubelet_bed, kubelet_namespace, pod("failing", ["sh", "-c", "exit 7"]))
    failed = kubelet_bed.wait_for_pod(kubelet_namespace, "failing", "Failed")
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


def test_exec_runs_inside_the_container(kubelet_bed: Bed, kubelet_namespace: str) -> None:
    create(kubelet_bed, kubelet_namespace, pod("host"))
    kubelet_bed.wait_for_pod(kubelet_namespace, "host", "Running")
    assert kubelet_bed.kubectl("exec", "-n", kubelet_namespace, "host", "--", "hostname") == "host\n"
    with pytest.raises(BedError, match="exit code 3"):
        kubelet_bed.kubectl("exec", "-n", kubelet_namespace, "host", "--", "sh", "-c", "exit 3")


def test_pods_reach_each_other_across_nodes(kubelet_bed: Bed, kubelet_namespace: str) -> None:
    serve = "mkdir /www; echo reached > /www/index.html; httpd -f -p 8080 -h /www"
    create(kubelet_bed, kubelet_namespace, pod("server", ["sh", "-c", serve], nodeName="node-1"))
    address = kubelet_bed.wait_for_pod(kubelet_namespace, "server", "Running")["status"]["podIP"]
    fetch = f"until wget -q -O - http://{address}:8080/; do sleep 0.1; done"
    create(kubelet_bed, kubelet_namespace, pod("client", ["sh", "-c", fetch], nodeName="node-2"))
    kubelet_bed.wait_for_pod(kubelet_namespace, "client", "Succeeded")
    assert log(kubelet_bed, kubelet_namespace, "client") == "reached\n"


IN_CLUSTER_CLIENT = """
import json, os, ssl, urllib.request
home = "/var/run/secrets/kubernetes.io/serviceaccount"
request = urllib.request.Request(
    "https://%s/apis/authentication.k8s.io/v1/selfsubjectreviews" % os.environ["KUBERNETES_SERVICE_HOST"],
    data=json.dumps({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}).encode(),
    headers={"Authorization": "Bearer " + open(home + "/token").read(), "Content-Type": "application/json"},
)
trust = ssl.create_default_context(cafile=home + "/ca.crt")
print(json.load(urllib.request.urlopen(request, context=trust))["status"]["userInfo"]["username"])
"""


def test_the_mounted_token_is_accepted_by_the_api_server_at_the_address_that_pods_are_told(
    kubelet_bed: Bed, kubelet_namespace: str
) -> None:
    create(kubelet_bed, kubelet_namespace, pod("asker", ["python3", "-c", IN_CLUSTER_CLIENT], image=WORKLOAD))
    kubelet_bed.wait_for_pod(kubelet_namespace, "asker", "Succeeded")
    assert log(kubelet_bed, kubelet_namespace, "asker") == f"system:serviceaccount:{kubelet_namespace}:default\n"


CUDA_CLIENT = """
import ctypes, ssl
from cuda.bindings import driver
try:
    print(driver.cuInit(0))
except RuntimeError as error:
    print("NVIDIA display driver" in str(error))
"""


def test_the_workload_image_imports_the_cuda_bindings_and_lacks_only_the_driver(
    kubelet_bed: Bed, kubelet_namespace: str
) -> None:
    create(kubelet_bed, kubelet_namespace, pod("cuda", ["python3", "-c", CUDA_CLIENT], image=WORKLOAD))
    kubelet_bed.wait_for_pod(kubelet_namespace, "cuda", "Succeeded")
    assert log(kubelet_bed, kubelet_namespace, "cuda") == "True\n"


def test_a_node_has_no_more_rights_than_a_node(kubelet_bed: Bed) -> None:
    kubeconfig = kubelet_bed.directory / "nodes" / "node-1" / "kubeconfig"
    as_node = ("--kubeconfig", str(kubeconfig))
    assert kubelet_bed.kubectl(*as_node, "get", "node", "node-1", "-o", "name") == "node/node-1\n"
    with pytest.raises(BedError, match=r"only its own Node object|is not allowed to modify node"):
        kubelet_bed.kubectl(*as_node, "label", "node", "node-2", "owned-by=node-1")


def test_a_program_of_ours_runs_inside_a_node_as_a_daemon_would(kubelet_bed: Bed) -> None:
    node = kubelet_bed.nodes["node-1"]
    assert node.run(["hostname"]).stdout == "node-1\n"
    addresses = json.loads(node.run(["ip", "-j", "addr", "show", "eth0"]).stdout)
    assert node.address in [found["local"] for found in addresses[0]["addr_info"]]
    assert node.path("/var/lib/kubelet/device-plugins/kubelet.sock").is_socket()
    node.run(["touch", "/var/lib/kubelet/made-inside"])
    assert node.path("/var/lib/kubelet/made-inside").exists()
    assert kubelet_bed.nodes["node-2"].run(["test", "-e", "/var/lib/kubelet/made-inside"], check=False).returncode == 1


def test_a_program_in_a_node_can_be_stopped_resumed_and_killed(kubelet_bed: Bed) -> None:
    def state() -> str:
        with open(f"/proc/{program.pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]

    program = kubelet_bed.nodes["node-2"].start_program("sleeper", ["sleep", "1000"])
    program.stop()
    until(state, lambda seen: seen == "T")
    program.resume()
    until(state, lambda seen: seen == "S")
    program.kill()
    assert not program.is_running


def container_ids(node: Node, bed: Bed, namespace: str) -> dict[str, str]:
    pods = bed.api.get(f"/api/v1/namespaces/{namespace}/pods?fieldSelector=spec.nodeName={node.name}")["items"]
    return {item["metadata"]["name"]: item["status"]["containerStatuses"][0]["containerID"] for item in pods}


@pytest.mark.parametrize("part", ["kubelet", "containerd"])
def test_a_restarted_part_of_a_node_keeps_its_pods_and_takes_new_ones(
    kubelet_bed: Bed, kubelet_namespace: str, part: str
) -> None:
    node = kubelet_bed.nodes["node-1"]
    create(kubelet_bed, kubelet_namespace, pod("before", nodeName=node.name))
    kubelet_bed.wait_for_pod(kubelet_namespace, "before", "Running")
    before = container_ids(node, kubelet_bed, kubelet_namespace)
    kubelet_bed.component(f"{node.name} {part}").restart()
    create(kubelet_bed, kubelet_namespace, pod("after", ["true"], nodeName=node.name))
    kubelet_bed.wait_for_pod(kubelet_namespace, "after", "Succeeded")
    now = container_ids(node, kubelet_bed, kubelet_namespace)
    assert now["before"] == before["before"]
    assert kubelet_bed.pod(kubelet_namespace, "before")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert kubelet_bed.kubectl("exec", "-n", kubelet_namespace, "before", "--", "echo", "alive") == "alive\n"


def test_a_node_that_loses_power_comes_back_with_its_disk(kubelet_bed: Bed, kubelet_namespace: str) -> None:
    node = kubelet_bed.nodes["node-2"]
    body = pod("survivor", nodeName=node.name, restartPolicy="Always")
    create(kubelet_bed, kubelet_namespace, body)
    kubelet_bed.wait_for_pod(kubelet_namespace, "survivor", "Running")
    first = container_ids(node, kubelet_bed, kubelet_namespace)["survivor"]
    node.run(["touch", "/var/lib/kubelet/kept"])
    node.reboot()
    assert node.run(["ls", "/var/lib/kubelet/kept"]).returncode == 0
    kubelet_bed.wait_for(
        lambda: container_ids(node, kubelet_bed, kubelet_namespace)["survivor"] != first,
        "the pod's container to be new",
    )
    kubelet_bed.wait_for_pod(kubelet_namespace, "survivor", "Running")
