"""Jobs on a real API server: what they make, how they end, what policies and commands do to them."""

from collections.abc import Callable, Iterator

import pytest

from testbed.bed import Bed
from tests.cluster.jobs.conftest import NODES, ControllerProcess, events, path
from tests.cluster.jobs.running_jobs import Doorman, RunningJob, small_job, small_task

pytestmark = pytest.mark.cluster

Start = Callable[..., RunningJob]


@pytest.fixture
def start(job_bed: Bed, controller: ControllerProcess, namespace: str) -> Iterator[Start]:
    """Makes jobs whose groups are let in at once."""
    with Doorman(job_bed, namespace):
        yield lambda *tasks, **spec: RunningJob(job_bed, namespace, small_job(*tasks, **spec))


def test_a_job_runs_to_its_end_under_the_names_that_everybody_knows(
    job_bed: Bed, controller: ControllerProcess, namespace: str
) -> None:
    annotations = {"volcano.sh/preemptable": "true", "example.com/mine": "yes"}
    body = small_job(
        small_task("ps", 1, topologyPolicy="best-effort"),
        small_task("worker", 2),
        name="train",
        minAvailable=3,
        queue="default",
        plugins={"svc": ["--"], "env": ["--"], "ssh": []},
    )
    body["metadata"] |= {"annotations": annotations, "labels": {"team": "vision", "volcano.sh/preemptable": "true"}}
    mine = RunningJob(job_bed, namespace, body)
    mine.until("Pending")
    job_bed.wait_for(lambda: mine.pod_group() is not None, "the group")
    group = mine.pod_group()
    assert group is not None
    assert group["spec"]["minMember"] == 3
    assert group["spec"]["minTaskMember"] == {"ps": 1, "worker": 2}
    least = group["spec"]["minResources"]
    assert {name: least[name] for name in ("cpu", "memory", "pods")} == {"cpu": "300m", "memory": "192Mi", "pods": "3"}
    assert group["metadata"]["annotations"]["example.com/mine"] == "yes"
    assert group["metadata"]["labels"]["team"] == "vision"
    assert mine.pods() == {}

    mine.let_in()
    mine.until("Running", running=3)
    pods = mine.pods()
    assert sorted(pods) == ["train-ps-0", "train-worker-0", "train-worker-1"]
    pod = pods["train-worker-1"]
    assert (
        pod["metadata"]["annotations"].items()
        >= {
            "scheduling.k8s.io/group-name": mine.group,
            "volcano.sh/job-name": "train",
            "volcano.sh/job-version": "0",
            "volcano.sh/job-retry-count": "0",
            "volcano.sh/queue-name": "default",
            "volcano.sh/task-spec": "worker",
            "volcano.sh/task-index": "1",
            "volcano.sh/template-uid": "train-worker",
            "volcano.sh/preemptable": "true",
        }.items()
    )
    assert (
        pod["metadata"]["labels"].items()
        >= {
            "volcano.sh/job-name": "train",
            "volcano.sh/job-namespace": namespace,
            "volcano.sh/queue-name": "default",
            "volcano.sh/task-spec": "worker",
            "volcano.sh/task-index": "1",
            "volcano.sh/preemptable": "true",
        }.items()
    )
    assert pods["train-ps-0"]["metadata"]["annotations"]["volcano.sh/numa-topology-policy"] == "best-effort"
    container = pod["spec"]["containers"][0]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert values.items() >= {"VK_TASK_INDEX": "1", "VC_TASK_INDEX": "1"}.items()
    assert {"VC_PS_HOSTS", "VC_PS_NUM", "VC_WORKER_HOSTS", "VC_WORKER_NUM"} <= set(values)
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert {"/etc/volcano", "/root/.ssh"} <= mounts
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("train-worker-1", "train")
    where = f"/api/v1/namespaces/{namespace}"
    hosts = job_bed.api.get(f"{where}/configmaps/train-svc")["data"]
    assert hosts == {
        "ps.host": "train-ps-0.train",
        "VC_PS_HOSTS": "train-ps-0.train",
        "VC_PS_NUM": "1",
        "worker.host": "train-worker-0.train\ntrain-worker-1.train",
        "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train",
        "VC_WORKER_NUM": "2",
    }
    service = job_bed.api.get(f"{where}/services/train")["spec"]
    assert (service["clusterIP"], service["selector"]["volcano.sh/job-name"]) == ("None", "train")
    secret = job_bed.api.get(f"{where}/secrets/train-ssh")["data"]
    assert set(secret) == {"id_rsa", "id_rsa.pub", "authorized_keys", "config"}
    assert job_bed.api.exists(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/train")
    made = {"plugin-svc", "plugin-env", "plugin-ssh"}
    job_bed.wait_for(lambda: made <= set(mine.status.get("controlledResources", ())), "the plugins to be recorded")

    for name in pods:
        job_bed.finish_pod(namespace, name, "succeed")
    mine.until("Completed", succeeded=3)
    assert mine.phases == ["Pending", "Running", "Completed"]
    assert mine.status["runningDuration"]
    job_bed.wait_for(lambda: mine.pod_group() is None, "the group to be gone")
    job_bed.wait_for(lambda: not job_bed.api.exists(f"{where}/services/train"), "the service to be gone")
    assert len(mine.pods()) == 3


def test_a_failed_pod_restarts_the_job_until_the_retries_are_used_up(start: Start) -> None:
    mine = start(small_task(replicas=2), policies=[{"event": "PodFailed", "action": "RestartJob"}], maxRetry=2)
    for version in range(2):
        mine.until("Running", running=2, version=version)
        mine.end(f"{mine.name}-worker-0", "fail")
    mine.until("Failed")
    assert mine.phases == ["Pending", "Running", "Restarting", "Pending", "Running", "Restarting", "Failed"]
    assert mine.status["retryCount"] == 2
    mine.until_pods(lambda pods: set(pods) == {f"{mine.name}-worker-0"}, "only the failed pod to be kept")


def test_a_restarted_pod_leaves_the_others_alone(start: Start) -> None:
    mine = start(small_task(replicas=3, policies=[{"event": "PodFailed", "action": "RestartPod"}]))
    mine.until("Running", running=3)
    before = {name: pod["metadata"]["uid"] for name, pod in mine.pods().items()}
    mine.end(f"{mine.name}-worker-1", "fail")
    mine.until("Running", running=3, retryCount=1)
    after = {name: pod["metadata"]["uid"] for name, pod in mine.pods().items()}
    assert {name for name in before if after[name] != before[name]} == {f"{mine.name}-worker-1"}
    assert mine.status.get("version", 0) == 0


def test_an_evicted_pod_is_an_event_and_a_scaled_down_one_is_not(start: Start, job_bed: Bed, namespace: str) -> None:
    mine = start(small_task(replicas=3), policies=[{"event": "PodEvicted", "action": "TerminateJob"}])
    mine.until("Running", running=3)
    mine.scale(0, 2, 2)
    mine.until_pods(lambda pods: len(pods) == 2, "two pods")
    mine.until("Running", running=2)
    job_bed.api.delete(f"/api/v1/namespaces/{namespace}/pods/{mine.name}-worker-0", grace_s=0)
    mine.until("Terminated")

    def told() -> bool:
        found = [event for event in events(job_bed, namespace, mine.name) if event["reason"] == "ExecuteAction"]
        return any("TerminateJob" in event["message"] and event["lastTimestamp"] for event in found)

    job_bed.wait_for(told, "the event")


def test_without_a_policy_a_lost_pod_is_made_again(start: Start, job_bed: Bed, namespace: str) -> None:
    mine = start(small_task(replicas=2))
    mine.until("Running", running=2)
    uid = mine.pods()[f"{mine.name}-worker-0"]["metadata"]["uid"]
    job_bed.api.delete(f"/api/v1/namespaces/{namespace}/pods/{mine.name}-worker-0", grace_s=0)
    mine.until_pods(
        lambda pods: pods.get(f"{mine.name}-worker-0", {"metadata": {}})["metadata"].get("uid") not in (uid, None),
        "a new pod",
    )
    mine.until("Running", running=2)


def test_scaling_up_makes_pods_and_tells_the_others(start: Start, job_bed: Bed, namespace: str) -> None:
    mine = start(small_task(replicas=1), plugins={"svc": []})
    mine.until("Running", running=1)
    mine.scale(0, 3, 3)
    mine.until("Running", running=3)
    hosts = job_bed.api.get(f"/api/v1/namespaces/{namespace}/configmaps/{mine.name}-svc")["data"]
    assert hosts["VC_WORKER_NUM"] == "3"

    def follows() -> bool:
        spec = (mine.pod_group() or {})["spec"]
        wanted = (3, {"worker": 3}, "300m")
        return (spec["minMember"], spec["minTaskMember"], spec["minResources"]["cpu"]) == wanted

    job_bed.wait_for(follows, "the group to follow")


def test_commands_abort_and_resume_a_job_and_are_gone_afterwards(start: Start, job_bed: Bed, namespace: str) -> None:
    mine = start(small_task(replicas=2))
    mine.until("Running", running=2)
    mine.order("AbortJob")
    mine.until("Aborted")
    assert mine.pods() == {}
    job_bed.wait_for(lambda: mine.pod_group() is None, "the group to be gone")
    mine.order("ResumeJob")
    mine.until("Running", running=2)
    mine.order("AbortJob")
    mine.order("ResumeJob")
    job_bed.wait_for(lambda: not job_bed.api.get(path("commands", namespace))["items"], "the commands to be consumed")
    job_bed.wait_for(
        lambda: any(event["reason"] == "CommandIssued" for event in events(job_bed, namespace, mine.name)), "the event"
    )


def test_a_completed_task_completes_the_job(start: Start) -> None:
    master = small_task("master", 1, policies=[{"event": "TaskCompleted", "action": "CompleteJob"}])
    mine = start(master, small_task("worker", 2))
    mine.until("Running", running=3)
    mine.end(f"{mine.name}-master-0", "succeed")
    mine.until("Completed", succeeded=1)
    assert mine.phases[-2:] == ["Completing", "Completed"]
    mine.until_pods(lambda pods: list(pods) == [f"{mine.name}-master-0"], "the rest to be gone")


def test_enough_successes_complete_the_job(start: Start) -> None:
    mine = start(small_task(replicas=3), minSuccess=1)
    mine.until("Running", running=3)
    mine.end(f"{mine.name}-worker-2", "succeed")
    mine.until("Completed")
    mine.until_pods(lambda pods: list(pods) == [f"{mine.name}-worker-2"], "the rest to be gone")


def test_a_task_starts_after_those_that_it_depends_on(start: Start, job_bed: Bed) -> None:
    late = small_task("worker", 1, dependsOn={"name": ["ps"]})
    late["template"]["spec"]["nodeSelector"] = NODES
    blocked = small_task("ps", 1)
    blocked["template"]["spec"]["nodeSelector"] = {"no.such/label": "x"}
    mine = start(blocked, late, minAvailable=1)
    mine.until("Pending", pending=1)
    assert list(mine.pods()) == [f"{mine.name}-ps-0"]
    free = start(small_task("ps", 1), small_task("worker", 1, dependsOn={"name": ["ps"]}), minAvailable=1)
    free.until("Running", running=2)


def test_a_finished_job_goes_when_its_time_is_over(start: Start, job_bed: Bed, namespace: str) -> None:
    mine = start(small_task(replicas=1), ttlSecondsAfterFinished=1)
    mine.end(f"{mine.name}-worker-0", "succeed")
    where = path("jobs", namespace, mine.name)
    job_bed.wait_for(lambda: not job_bed.api.exists(where), "the job to be gone", 90)
    mine.until_pods(lambda pods: not pods, "no pods")


def test_a_deleted_job_takes_everything_along(start: Start, job_bed: Bed, namespace: str) -> None:
    mine = start(small_task(replicas=2), plugins={"svc": []})
    mine.until("Running", running=2)
    job_bed.api.delete(path("jobs", namespace, mine.name))
    mine.until_pods(lambda pods: not pods, "no pods")
    job_bed.wait_for(lambda: mine.pod_group() is None, "the group to be gone", 90)
    job_bed.wait_for(
        lambda: not job_bed.api.exists(f"/api/v1/namespaces/{namespace}/services/{mine.name}"), "the service to be gone"
    )


def test_a_job_that_is_deleted_and_applied_again_has_everything_of_its_own(
    start: Start, job_bed: Bed, namespace: str
) -> None:
    """Its names are those of the earlier one, of which the collector removes things and pods meanwhile."""
    first = start(small_task(), name="again", plugins={"svc": [], "ssh": []})
    first.until("Running", running=2)
    job_bed.api.delete(path("jobs", namespace, "again"))
    second = start(small_task(), name="again", plugins={"svc": [], "ssh": []})
    second.until("Running", running=2)
    for where in ("services/again", "configmaps/again-svc", "secrets/again-ssh"):
        (owner,) = job_bed.api.get(f"/api/v1/namespaces/{namespace}/{where}")["metadata"]["ownerReferences"]
        assert owner["uid"] == second.uid
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in second.pods().values()} == {second.uid}


def test_volumes_are_claimed_and_named_in_the_job(start: Start, job_bed: Bed, namespace: str) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "x"}
    volumes = [{"mountPath": "/mine", "volumeClaimName": "ready"}, {"mountPath": "/new", "volumeClaim": claim}]
    mine = start(small_task(replicas=1), volumes=volumes)
    job_bed.wait_for(
        lambda: any(event["reason"] == "PVCError" for event in events(job_bed, namespace, mine.name)),
        "the missing claim to be told",
    )
    assert mine.pods() == {}
    job_bed.api.create(
        f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", {"metadata": {"name": "ready"}, "spec": claim}
    )
    mine.until_pods(lambda pods: len(pods) == 1, "the pod")
    named = [each["volumeClaimName"] for each in mine.get()["spec"]["volumes"]]
    assert named[0] == "ready"
    assert named[1].startswith(f"{mine.name}-pvc-")
    pod = mine.pods()[f"{mine.name}-worker-0"]
    used = {
        each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each
    }
    assert used == set(named)
    recorded = {f"volume-pvc-{name}" for name in named}
    job_bed.wait_for(lambda: recorded <= set(mine.status.get("controlledResources", ())), "the claims to be recorded")
