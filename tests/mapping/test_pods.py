"""Pods in the engine's terms: containers, requests, resizes, groups, roles."""

import msgspec
import pytest

from baton.engine.cards.demands import effective_amounts
from baton.engine.objects import ContainerRole
from baton.mapping.pods import PodWords, expects_group
from baton.model import core
from baton.model.names import PodPhase
from tests.mapping.objects import pod


def test_limits_stand_in_for_requests_and_roles_are_told_apart() -> None:
    spec = {
        "initContainers": [
            {"name": "once", "resources": {"requests": {"cpu": "2"}}},
            {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
        ],
        "containers": [{"name": "main", "resources": {"limits": {"cpu": "3"}, "requests": {"memory": "1Gi"}}}],
        "overhead": {"cpu": "100m"},
    }
    found = PodWords().translate(pod(spec)).spec
    assert [(one.name, one.role) for one in found.containers] == [
        ("once", ContainerRole.INIT),
        ("side", ContainerRole.SIDECAR),
        ("main", ContainerRole.APP),
    ]
    assert found.containers[2].requests == (("cpu", 3000), ("memory", 1 << 30))
    assert found.overhead == (("cpu", 100),)


def test_requests_of_the_whole_pod_replace_the_sum_of_its_containers() -> None:
    spec = {
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
        "resources": {"requests": {"cpu": "4"}},
    }
    assert PodWords().translate(pod(spec)).spec.overhead == (("cpu", 3000),)


def test_requests_of_the_whole_pod_cover_its_init_containers_too() -> None:
    spec = {
        "initContainers": [{"name": "once", "resources": {"requests": {"cpu": "4"}}}],
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
        "resources": {"requests": {"cpu": "4"}},
        "overhead": {"cpu": "100m"},
    }
    assert effective_amounts(PodWords().translate(pod(spec)).spec) == {"cpu": 4100}


@pytest.mark.parametrize(
    ("wanted", "held", "reason", "counted"),
    [
        ("2", "2000m", "", 2000),
        ("1", "2", "Deferred", 2000),
        ("9", "2", "Deferred", 9000),
        ("9", "2", "Infeasible", 2000),
    ],
    ids=["settled", "shrinks", "grows", "cannot grow"],
)
@pytest.mark.parametrize("sidecar", [False, True], ids=["container", "sidecar"])
def test_a_pod_that_is_being_resized_counts_for_what_it_has_and_may_get(
    *, sidecar: bool, wanted: str, held: str, reason: str, counted: int
) -> None:
    resized = {"name": "resized", "resources": {"requests": {"cpu": wanted, "example.com/x": "1"}}}
    spec = {"containers": [{"name": "main"}], "initContainers": [{**resized, "restartPolicy": "Always"}]}
    if not sidecar:
        spec = {"containers": [resized]}
    told = {"name": "resized", "resources": {"requests": {"cpu": held}}, "allocatedResources": {"cpu": held}}
    status = {
        "initContainerStatuses" if sidecar else "containerStatuses": [told],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else [],
    }
    words, before = PodWords(), pod(spec)
    after = msgspec.structs.replace(pod(spec), status=msgspec.convert(status, core.PodStatus))
    assert effective_amounts(words.spec(after)) == {"cpu": counted, "example.com/x": 1}
    assert words.same_spec(before, after) is (words.spec(before) is words.spec(after))


def test_claims_of_devices_are_seen() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    assert [PodWords().translate(pod(spec)).spec.device_claims for spec in ({}, {"resourceClaims": claims})] == [
        False,
        True,
    ]


def test_equal_pods_share_one_spec() -> None:
    words = PodWords()
    one, other = words.translate(pod(name="a")), words.translate(pod(name="b"))
    assert one.spec is other.spec


def test_group_role_queue_and_phase_are_found() -> None:
    annotations = {
        "scheduling.k8s.io/group-name": "pg",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/task-index": "4",
        "volcano.sh/preemptable": "false",
    }
    found = PodWords().translate(pod({"priority": 5, "preemptionPolicy": "Never"}, annotations=annotations))
    assert (found.group, found.role, found.index) == ("team/pg", "worker", 4)
    assert (found.preemptable, found.can_preempt, found.priority) == (False, False, 5)
    assert (found.phase, found.gated, found.ours) == (PodPhase.PENDING, False, True)
    assert PodWords().translate(pod({"schedulingGates": [{"name": "x"}]})).gated
    assert not PodWords().translate(pod({"schedulerName": "other"})).ours


def test_a_pod_that_says_its_gangs_size_waits_for_the_group() -> None:
    size = {"scheduling.volcano.sh/group-min-member": "3"}
    assert expects_group(pod(annotations=size).metadata)
    assert not expects_group(pod(annotations={**size, "scheduling.k8s.io/group-name": "g"}).metadata)
    assert not expects_group(pod().metadata)
