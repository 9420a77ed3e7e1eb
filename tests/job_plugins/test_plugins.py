"""Job plugins: their changes to pods and their objects."""

import json
from typing import Any

import msgspec
import pytest

from baton.controllers.job.pods import claim_name, pod_body
from baton.errors import BatonError
from baton.job_plugins import plugins_of
from baton.job_plugins.plugin import parsed
from baton.job_plugins.pod_bodies import Body
from baton.job_plugins.ssh import Ssh
from baton.job_plugins.svc import hosts
from baton.model.volcano import Job


def a_job(*tasks: tuple[str, int], plugins: dict[str, list[str]], **spec: Any) -> Job:
    containers = [{"name": name, "image": "x"} for name in ("main", "head", "worker")]
    template = {"spec": {"containers": containers, "initContainers": [{"name": "init", "image": "x"}]}}
    return msgspec.convert(
        {
            "metadata": {"name": "train", "namespace": "ml", "uid": "u1"},
            "spec": {
                "tasks": [{"name": name, "replicas": number, "template": template} for name, number in tasks],
                "plugins": plugins,
                **spec,
            },
        },
        Job,
    )


def pod(job: Job, task: int, index: int = 0) -> Body:
    chosen = job.spec.tasks[task]
    body = pod_body(job, chosen, index)
    for plugin in plugins_of(job.spec):
        plugin.change_pod(job, chosen, index, body)
    return body


def env(body: Body, container: int = 0) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in body["spec"]["containers"][container].get("env", ())}


def ports(body: Body, container: int = 0) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in body["spec"]["containers"][container].get("ports", ())}


def things(job: Job) -> dict[tuple[str, str], Body]:
    return {
        (each.resource.plural, each.name): each.make()
        for plugin in plugins_of(job.spec)
        for each in plugin.objects(job)
    }


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ([], {"port": 1, "flag": False, "name": "n"}),
        (["--"], {"port": 1, "flag": False, "name": "n"}),
        (["--port=5", "-flag", "--name", "x"], {"port": 5, "flag": True, "name": "x"}),
        (["--flag=true"], {"port": 1, "flag": True, "name": "n"}),
        (["--flag=false", "--port=notanumber"], {"port": 1, "flag": False, "name": "n"}),
        (["--port=²"], {"port": 1, "flag": False, "name": "n"}),
        (["--unknown=1", "--port=5"], {"port": 1, "flag": False, "name": "n"}),
        (["--", "--port=5"], {"port": 1, "flag": False, "name": "n"}),
    ],
)
def test_arguments_are_read_as_go_reads_them(words: list[str], values: dict[str, object]) -> None:
    assert parsed(words, {"port": 1, "flag": False, "name": "n"}) == values


def test_env_tells_every_container_its_index() -> None:
    body = pod(a_job(("worker", 2), plugins={"env": []}), 0, 1)
    for container in [*body["spec"]["containers"], *body["spec"]["initContainers"]]:
        values = {each["name"]: each["value"] for each in container["env"]}
        assert values == {"VK_TASK_INDEX": "1", "VC_TASK_INDEX": "1"}


def test_svc_names_hosts_by_task() -> None:
    job = a_job(("ps", 1), ("my-worker", 2), plugins={"svc": []})
    assert hosts(job) == {
        "ps.host": "train-ps-0.train",
        "VC_PS_HOSTS": "train-ps-0.train",
        "VC_PS_NUM": "1",
        "my_worker.host": "train-my-worker-0.train\ntrain-my-worker-1.train",
        "VC_MY_WORKER_HOSTS": "train-my-worker-0.train,train-my-worker-1.train",
        "VC_MY_WORKER_NUM": "2",
    }
    body = pod(job, 1, 1)
    assert (body["spec"]["hostname"], body["spec"]["subdomain"]) == ("train-my-worker-1", "train")
    reference = next(each for each in body["spec"]["containers"][0]["env"] if each["name"] == "VC_PS_HOSTS")
    assert reference["valueFrom"]["configMapKeyRef"] == {"name": "train-svc", "key": "VC_PS_HOSTS"}
    assert {"name": "train-svc", "mountPath": "/etc/volcano"} in body["spec"]["initContainers"][0]["volumeMounts"]


def test_svc_brings_a_service_a_config_map_and_unless_told_otherwise_a_network_policy() -> None:
    plain = things(a_job(("w", 1), plugins={"svc": []}))
    assert set(plain) == {("configmaps", "train-svc"), ("services", "train"), ("networkpolicies", "train")}
    assert plain["services", "train"]["spec"]["clusterIP"] == "None"
    open_ = things(
        a_job(("w", 1), plugins={"svc": ["--disable-network-policy=true", "--publish-not-ready-addresses=true"]})
    )
    assert ("networkpolicies", "train") not in open_
    assert open_["services", "train"]["spec"]["publishNotReadyAddresses"] is True
    quiet = pod(a_job(("w", 1), plugins={"svc": ["--inject-hosts-env=false"]}), 0)
    assert "env" not in quiet["spec"]["containers"][0]


def test_ssh_mounts_a_key_pair_that_fits() -> None:
    from cryptography.hazmat.primitives import serialization

    job = a_job(("master", 1), ("worker", 1), plugins={"ssh": []})
    secret = next(each for each in things(job).values())["data"]
    files = {name: msgspec.json.decode(f'"{text}"', type=bytes).decode() for name, text in secret.items()}
    key = serialization.load_pem_private_key(files["id_rsa"].encode(), None)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert files["id_rsa.pub"] == files["authorized_keys"] == public.decode() + "\n"
    assert "Host train-worker-0\n  HostName train-worker-0.train\n" in files["config"]
    body = pod(job, 0)
    volume = next(each for each in body["spec"]["volumes"] if each["name"] == "train-ssh")
    assert volume["secret"]["defaultMode"] == 0o600
    mount = {"name": "train-ssh", "mountPath": "/root/.ssh", "subPath": ".ssh"}
    assert mount in body["spec"]["containers"][0]["volumeMounts"]


def test_ssh_takes_a_key_and_a_port_of_the_users() -> None:
    plugin = Ssh(["--ssh-private-key=a", "--ssh-public-key=b", "--ssh-port=2222", "--ssh-key-file-path=/home/u/.ssh"])
    job = a_job(("w", 1), plugins={})
    assert plugin.objects(job)[0].make()["data"]["id_rsa"] == "YQ=="
    assert "  Port 2222\n" in plugin.config(job)


def test_pytorch_sets_addresses_ranks_and_the_world_size() -> None:
    job = a_job(("master", 1), ("worker", 2), plugins={"pytorch": []})
    assert [plugin.name for plugin in plugins_of(job.spec)] == ["svc", "pytorch"]
    common = {"MASTER_ADDR": "train-master-0.train", "MASTER_PORT": "23456", "WORLD_SIZE": "3"}
    assert env(pod(job, 0)).items() >= {**common, "RANK": "0"}.items()
    assert env(pod(job, 1, 1)).items() >= {**common, "RANK": "2"}.items()
    assert ports(pod(job, 1)) == {"pytorchjob-port": 23456}


def test_pytorch_workers_may_wait_for_their_master() -> None:
    words = ["--wait-master-enabled=true", "--wait-master-timeout=10", "--wait-master-image=bb", "--port=1"]
    job = a_job(("master", 1), ("worker", 1), plugins={"pytorch": words})
    waiting = pod(job, 1)["spec"]["initContainers"][-1]
    assert (waiting["image"], waiting["command"][:2]) == ("bb", ["sh", "-c"])
    assert "train-master-0.train 1" in waiting["command"][2]
    assert len(pod(job, 0)["spec"]["initContainers"]) == 1


def test_tensorflow_describes_the_cluster() -> None:
    job = a_job(("ps", 1), ("worker", 2), plugins={"tensorflow": ["--port=3333"]})
    config = json.loads(env(pod(job, 1, 1))["TF_CONFIG"])
    assert config == {
        "cluster": {
            "ps": ["train-ps-0.train:3333"],
            "worker": ["train-worker-0.train:3333", "train-worker-1.train:3333"],
        },
        "task": {"type": "worker", "index": 1},
    }
    assert "TF_CONFIG" not in env(pod(a_job(("worker", 1), plugins={"tensorflow": []}), 0))


def test_mpi_tells_the_master_its_workers_and_opens_ssh() -> None:
    job = a_job(("master", 1), ("worker", 2), plugins={"mpi": []})
    assert {plugin.name for plugin in plugins_of(job.spec)} == {"svc", "ssh", "mpi"}
    assert env(pod(job, 0))["MPI_HOST"] == "train-worker-0.train,train-worker-1.train"
    assert "MPI_HOST" not in env(pod(job, 1))
    assert ports(pod(job, 1)) == {"mpijob-port": 22}


def test_ray_starts_a_head_that_workers_join() -> None:
    job = a_job(("head", 1), ("worker", 2), plugins={"ray": []})
    head, worker = pod(job, 0), pod(job, 1)
    assert head["spec"]["containers"][1]["command"][2] == (
        "ray start --head --block --dashboard-host=0.0.0.0 --port=6379 --dashboard-port=8265"
        " --ray-client-server-port=10001"
    )
    assert ports(head, 1) == {"gcs": 6379, "dashboard": 8265, "client-server": 10001}
    assert "command" not in head["spec"]["containers"][0]
    assert worker["spec"]["containers"][2]["command"][2] == "ray start --block --address=train-head-0.train:6379"
    service = things(job)["services", "train-head-svc"]["spec"]
    assert service["selector"]["volcano.sh/task-spec"] == "head"
    assert [each["port"] for each in service["ports"]] == [6379, 8265, 10001]


def test_hcclrank_numbers_masters_before_workers() -> None:
    job = a_job(("master", 2), ("worker", 2), plugins={"hcclrank": []})
    ranks = [pod(job, task, index)["metadata"]["annotations"]["hccl/rankIndex"] for task in (0, 1) for index in (0, 1)]
    assert ranks == ["0", "1", "2", "3"]


def test_a_plugin_leaves_the_jobs_template_alone() -> None:
    job = a_job(("worker", 1), plugins={"svc": [], "env": [], "ssh": []})
    before = msgspec.json.encode(job)
    pod(job, 0)
    assert msgspec.json.encode(job) == before


def test_a_volume_without_a_claim_name_gets_a_stable_one() -> None:
    job = a_job(("w", 1), plugins={}, volumes=[{"mountPath": "/a", "volumeClaim": {}}])
    assert claim_name(job, 0) == claim_name(job, 0) != ""
    spec = pod(job, 0)["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim_name(job, 0)
    assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == "/a"


def test_settings_of_the_template_are_kept() -> None:
    job = a_job(("w", 1), plugins={}, priorityClassName="high", schedulerName="baton")
    job.spec.tasks[0].template["spec"] |= {"schedulerName": "other", "priorityClassName": "low"}
    job.spec.tasks[0].template["metadata"] = {"labels": {"mine": "x"}, "annotations": {"mine": "y"}}
    body = pod(job, 0)
    assert (body["spec"]["schedulerName"], body["spec"]["priorityClassName"]) == ("other", "low")
    assert body["metadata"]["labels"]["mine"] == "x"
    assert body["metadata"]["annotations"]["mine"] == "y"


@pytest.mark.parametrize("nothing", ["", None])
def test_empty_settings_of_the_template_come_from_the_job(nothing: str | None) -> None:
    """As written by a chart with an unset value; the pod would bypass its gang with the default scheduler."""
    job = a_job(("w", 1), plugins={}, priorityClassName="high", schedulerName="baton")
    job.spec.tasks[0].template["spec"] |= {"schedulerName": nothing, "priorityClassName": nothing}
    spec = pod(job, 0)["spec"]
    assert (spec["schedulerName"], spec["priorityClassName"]) == ("baton", "high")


@pytest.mark.parametrize("plugin", ["svc", "ssh", "pytorch", "tensorflow", "mpi"])
def test_more_addresses_than_an_object_holds_are_refused_before_they_are_written(plugin: str) -> None:
    """A typo must not fill the memory of a controller that all jobs share."""
    job = a_job(("master", 2**31 - 1), ("worker", 2**31 - 1), plugins={plugin: []})
    with pytest.raises(BatonError, match=r"task \w+ has 2147483647 replicas, and .* at most 65536"):
        things(job) if plugin in ("svc", "ssh") else pod(job, 0)
