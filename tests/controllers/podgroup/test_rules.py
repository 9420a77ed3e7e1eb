"""The PodGroup of a plain pod, and the influence of the pod's owner."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.controllers.podgroup import rules
from baton.model.core import Pod
from baton.model.volcano import NetworkTopology, PodGroup

OURS = ("baton", "volcano")
MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
QUEUE = "scheduling.volcano.sh/queue-name"
GROUP = "scheduling.k8s.io/group-name"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs-uid", "controller": True}


def pod(
    name: str = "web-1-abc",
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    owners: tuple[dict[str, Any], ...] = (OWNER,),
    requests: dict[str, str] | None = None,
    created: str = "2026-01-01T00:00:00Z",
    phase: str = "Pending",
    deleted: str = "",
    **spec: Any,
) -> Pod:
    body = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": created,
            "deletionTimestamp": deleted,
            "annotations": annotations or {},
            "labels": labels or {},
            "ownerReferences": list(owners),
        },
        "spec": {
            "schedulerName": "volcano",
            "containers": [{"name": "main", "resources": {"requests": requests or {}}}],
            **spec,
        },
        "status": {"phase": phase},
    }
    return msgspec.convert(body, Pod)


def as_stored(one: Pod, want: rules.Wanted) -> PodGroup:
    """The group as the API server returns it."""
    return msgspec.json.decode(msgspec.json.encode(rules.body(one, want)), type=PodGroup)


def test_pods_of_one_owner_share_a_group_named_by_its_uid() -> None:
    assert rules.bare_group(pod("a"), OURS) == rules.bare_group(pod("b"), OURS) == ["team/podgroup-rs-uid"]


def test_a_pod_without_a_controlling_owner_has_a_group_to_itself() -> None:
    friend = {**OWNER, "controller": False}
    assert rules.bare_group(pod("alone", owners=(friend,)), OURS) == ["team/podgroup-uid-alone"]
    body = rules.body(pod("alone", owners=()), rules.wanted(pod("alone", owners=()), {}))
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner.kind, owner.name, owner.uid, owner.controller) == ("Pod", "alone", "uid-alone", True)


@pytest.mark.parametrize(
    "stranger",
    [
        pod(schedulerName="default-scheduler"),
        pod(annotations={GROUP: "job-of-somebody"}),
        pod(annotations={"scheduling.volcano.sh/group-name": "job-of-somebody"}),
    ],
)
def test_pods_of_other_schedulers_and_of_named_groups_are_left_alone(stranger: Pod) -> None:
    assert rules.bare_group(stranger, OURS) == []


def test_a_pod_that_knows_our_group_stays_in_it() -> None:
    named = pod(annotations={GROUP: "podgroup-rs-uid"})
    assert rules.bare_group(named, OURS) == ["team/podgroup-rs-uid"]
    assert rules.unnamed([named, pod("new")]) == [pod("new")]


@pytest.mark.parametrize(
    ("own", "inherited", "members"),
    [
        ({}, {}, 1),
        ({}, {MIN_MEMBER: "4"}, 4),
        ({MIN_MEMBER: "2"}, {MIN_MEMBER: "4"}, 2),
        ({}, {MIN_MEMBER: "0"}, 0),
    ],
)
def test_the_minimum_comes_from_the_pod_then_from_the_owner_then_it_is_one(
    own: dict[str, str], inherited: dict[str, str], members: int
) -> None:
    want = rules.wanted(pod(annotations=own, requests={"cpu": "500m", "nvidia.com/gpu": "1"}), inherited)
    assert want.spec.min_member == members
    assert want.complaints == ()
    if members == 4:
        asked = {"cpu": "2", "nvidia.com/gpu": "4"}
        counted = {f"requests.{name}": quantity for name, quantity in asked.items()}
        assert want.spec.min_resources == {**asked, **counted, "pods": "4", "count/pods": "4"}


@pytest.mark.parametrize("text", ["many", "-1", "2.5", "99999999999", "²", "9" * 5000])
def test_an_invalid_minimum_is_reported_and_one_is_used(text: str) -> None:
    want = rules.wanted(pod(), {MIN_MEMBER: text})
    assert want.spec.min_member == 1
    (sentence,) = want.complaints
    assert MIN_MEMBER in sentence
    assert repr(text) in sentence


def test_queue_priority_and_annotations_come_from_the_pod_and_its_owner() -> None:
    one = pod(
        annotations={"volcano.sh/preemptable": "false", QUEUE: "gpu"},
        labels={"volcano.sh/cooldown-time": "600s", "app": "web"},
        priorityClassName="high",
    )
    want = rules.wanted(one, {QUEUE: "other", "volcano.sh/sla-waiting-time": "1h", "kubectl/x": "y"})
    assert (want.spec.queue, want.names_queue, want.spec.priority_class_name) == ("gpu", True, "high")
    assert want.annotations == {"volcano.sh/preemptable": "false", "volcano.sh/sla-waiting-time": "1h"}
    assert want.labels == {"volcano.sh/cooldown-time": "600s"}
    assert rules.wanted(pod(), {QUEUE: "other"}).spec.queue == "other"
    assert rules.wanted(pod(), {}).spec.queue == "default"


def test_topology_comes_from_annotations() -> None:
    given_both = {rules.TOPOLOGY_MODE: "Soft", rules.TOPOLOGY_TIER: "2"}
    topology = rules.wanted(pod(annotations=given_both), {}).spec.network_topology
    assert topology is not None
    assert (topology.mode, topology.highest_tier_allowed) == ("soft", 2)
    odd = rules.wanted(pod(annotations={rules.TOPOLOGY_MODE: "firm", rules.TOPOLOGY_TIER: "top"}), {})
    assert odd.spec.network_topology is not None
    assert (odd.spec.network_topology.mode, len(odd.complaints)) == ("hard", 2)


@pytest.mark.parametrize("tier", ["top", "²", "99999999999"])
def test_an_invalid_tier_is_ignored(tier: str) -> None:
    want = rules.wanted(pod(annotations={rules.TOPOLOGY_TIER: tier}), {})
    assert want.spec.network_topology == NetworkTopology(mode="hard")
    assert len(want.complaints) == 1


def test_the_youngest_living_pod_is_the_example() -> None:
    old, new = pod("old", created="2026-01-01T00:00:00Z"), pod("new", created="2026-01-02T00:00:00Z")
    done = pod("done", created="2026-01-03T00:00:00Z", phase="Succeeded")
    going = pod("going", created="2026-01-04T00:00:00Z", deleted="2026-01-05T00:00:00Z")
    assert rules.example([old, done, new, going]) == new
    assert rules.example([done, going]) is None


@pytest.mark.parametrize(
    ("pods", "replicas", "forsaken"),
    [((), 0, True), ((), 1, False), ((), None, False), ((pod(deleted="2026-01-05T00:00:00Z"),), 0, False)],
)
def test_a_group_goes_when_its_owner_wants_no_pods_and_has_none(
    pods: tuple[Pod, ...], replicas: int | None, forsaken: bool
) -> None:
    assert rules.is_abandoned(pods, replicas) is forsaken


def test_fields_of_a_group_that_the_workload_does_not_set_are_left_alone() -> None:
    """Admission may have moved it to the namespace's queue, and the scheduler may have annotated it."""
    have = as_stored(pod(), rules.wanted(pod(), {}))
    spec = msgspec.structs.replace(have.spec, queue="team-queue")
    metadata = msgspec.structs.replace(have.metadata, annotations={"scheduler/says": "hello"})
    assert rules.changes(PodGroup(metadata, spec, have.status), rules.wanted(pod(), {})) == {}


annotations = st.dictionaries(
    st.sampled_from([MIN_MEMBER, QUEUE, "volcano.sh/preemptable", "volcano.sh/jdb-min-available", "other"]),
    st.sampled_from(["1", "2", "true", "x"]),
)
pods = st.builds(
    lambda own, requests, priority: pod(annotations=own, requests=requests, priorityClassName=priority),
    annotations,
    st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.sampled_from(["1", "2k", "1.5Gi", "1e9"])),
    st.sampled_from(["", "high"]),
)


@given(pods, annotations, pods, annotations)
def test_a_patch_leads_to_the_wanted_group_and_the_next_one_is_empty(
    before: Pod, owner_before: dict[str, str], after: Pod, owner_after: dict[str, str]
) -> None:
    have = as_stored(before, rules.wanted(before, owner_before))
    assert rules.changes(have, rules.wanted(before, owner_before)) == {}
    want = rules.wanted(after, owner_after)
    patched = _merged(msgspec.to_builtins(have), msgspec.json.decode(msgspec.json.encode(rules.changes(have, want))))
    assert rules.changes(msgspec.convert(patched, PodGroup), want) == {}


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as the API server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
