"""The shipped manifests and example files agree with the program."""

from pathlib import Path
from typing import Any

import yaml

from baton.agent import config as configuration
from baton.agent.config import Kind
from baton.agent.offers.vendor_devices import load_kind

DEPLOY = Path(__file__).parents[2] / "deploy" / "agent"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_example_configuration_is_valid() -> None:
    config = configuration.load(DEPLOY / "config.yaml")
    assert config.for_node("vgpu-7").resources[0].kind is Kind.VGPU
    assert config.for_node("other").resources[0].name == "nvshare.com/gpu"


def test_the_example_of_another_vendor_is_valid() -> None:
    assert load_kind(DEPLOY / "darwin.yaml").resource == "zju.edu.cn/darwin"


def test_the_daemonset_mounts_every_directory_that_the_defaults_name() -> None:
    config = configuration.AgentConfig()
    agent = documents("daemonset.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
    mounted = {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert config.kubelet.plugin_directory in mounted
    assert f"{config.kubelet.directory}/pod-resources" in mounted
    assert config.hook.directory in mounted
    assert str(Path(config.lock.socket_directory).parent) in mounted
    port = int(config.serving.metrics_address.rpartition(":")[2])
    assert {"name": "metrics", "containerPort": port} in agent["ports"]


def test_the_component_for_the_plugin_registry_mounts_what_that_mode_needs_under_kubelets_own_paths() -> None:
    kubelet = configuration.AgentConfig().kubelet
    (patch,) = documents("registry/kustomization.yaml")[0]["patches"]
    spec = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]
    mounted = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert set(mounted.values()) == {f"{kubelet.directory}/plugins_registry", kubelet.own_directory}
    assert {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]} == mounted


def test_no_container_has_unneeded_privileges() -> None:
    for container in documents("daemonset.yaml")[0]["spec"]["template"]["spec"]["containers"]:
        context = container["securityContext"]
        assert not context.get("privileged")
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not context["allowPrivilegeEscalation"]


def test_the_role_allows_what_the_agent_calls_and_nothing_else() -> None:
    role = next(one for one in documents("rbac.yaml") if one["kind"] == "ClusterRole")
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert allowed == {
        ("nodes", "get"), ("nodes", "patch"), ("nodes/status", "patch"),
        ("pods", "list"), ("pods", "watch"), ("pods", "patch"),
        ("events", "create"), ("events", "patch"),
    }  # fmt: skip
