"""A job that is scaled while its controller has not caught up with the last time."""

import pytest
import yaml

from tests.cluster.programs import EXAMPLES, JOBS, BatonPrograms

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_hosts_are_right_after_a_job_was_scaled_to_nothing_and_back(
    baton_cluster: BatonPrograms, baton_namespace: str
) -> None:
    """The pods of a scaled job read the list of hosts when they start, so it has to be there before they are."""
    job = yaml.safe_load((EXAMPLES / "gang.yaml").read_text())
    job["spec"].update(minAvailable=2, plugins={"svc": []})
    task = job["spec"]["tasks"][0]
    task["replicas"] = 2
    baton_cluster.apply(baton_namespace, yaml.safe_dump(job))
    baton_cluster.until_pods(baton_namespace, "gang", 2, "Running")
    path = f"{JOBS.format(baton_namespace)}/gang"
    hosts = f"/api/v1/namespaces/{baton_namespace}/configmaps/gang-svc"
    before = baton_cluster.bed.api.get(hosts)["data"]
    assert before["VC_WORKER_NUM"] == "2"
    for count in (0, 2):
        baton_cluster.bed.api.patch(path, {"spec": {"minAvailable": count, "tasks": [{**task, "replicas": count}]}})
        baton_cluster.until_pods(baton_namespace, "gang", count, "Running")
    assert baton_cluster.bed.api.get(hosts)["data"] == before
