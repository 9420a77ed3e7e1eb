"""What the engine is told of Kubernetes' objects: quantities, requests, cards, affinities, groups and queues."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.cards.demands import effective_amounts
from baton.engine.objects import CardGrant, CardKind, CardRequest, ContainerRole, GroupPhase, PodPhase
from baton.mapping import selectors
from baton.mapping.cards import CardWords, binding_annotations
from baton.mapping.cluster import group_of, node_of, queue_of
from baton.mapping.pods import PodWords, expects_group
from baton.model import card_annotations, core, volcano
from baton.model.ids import CardId
from baton.model.quantities import QuantityError, amounts, scaled, text_of


def pod(spec: dict[str, Any] | None = None, **metadata: Any) -> core.Pod:
    body = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", **metadata},
        "spec": {"schedulerName": "volcano", "containers": [{"name": "main"}], **(spec or {})},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=core.Pod)


def limited(name: str = "main", **limits: Any) -> dict[str, Any]:
    named = {key.replace("__", "/").replace("_", "-"): value for key, value in limits.items()}
    return {"name": name, "resources": {"limits": {f"volcano.sh/{key}": value for key, value in named.items()}}}


def node(allocatable: dict[str, Any], annotations: dict[str, str] | None = None) -> core.Node:
    body = {"metadata": {"name": "n", "annotations": annotations or {}}, "status": {"allocatable": allocatable}}
    return msgspec.json.decode(msgspec.json.encode(body), type=core.Node)


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 1), ("2", 2), (2, 2), ("1.5", 2), ("8Gi", 8 << 30), ("1k", 1000), ("1e3", 1000), ("0.5Gi", 1 << 29)],
)
def test_quantities_are_whole_numbers_rounded_up(text: str | int, value: int) -> None:
    assert scaled(text) == value


@pytest.mark.parametrize(("text", "value"), [("10E", 2**63 - 1), ("1e999999999", 2**63 - 1), ("-1e99", 1 - 2**63)])
def test_what_64_bits_cannot_hold_counts_as_the_most_that_they_can(text: str, value: int) -> None:
    assert scaled(text) == value


def test_cpu_is_counted_in_thousandths() -> None:
    assert amounts({"memory": "1Gi", "cpu": "250m"}) == (("cpu", 250), ("memory", 1 << 30))


def test_a_text_that_is_no_quantity_is_named() -> None:
    with pytest.raises(QuantityError, match="'8GB' is not a quantity"):
        scaled("8GB")


@given(st.integers(0, 1 << 50), st.sampled_from(["cpu", "memory", "volcano.sh/vgpu-memory"]))
def test_what_is_written_reads_as_the_same_amount(value: int, name: str) -> None:
    assert amounts({name: text_of(name, value)}) == ((name, value),)


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


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        (
            {"vgpu_number": 2, "vgpu_memory": 3000, "vgpu_cores": 50},
            {"count": 2, "memory_mib": 3000, "share_milli": 500},
        ),
        ({"vgpu_memory": 3000}, {"count": 1, "memory_mib": 3000}),
        ({"vgpu_number": 1, "vgpu_memory_percentage": 40}, {"count": 1, "memory_percent": 40}),
        ({"vgpu_number": 1}, {"count": 1}),
    ],
)
def test_a_vgpu_request_is_read_as_volcano_reads_it(limits: dict[str, Any], request_: dict[str, int]) -> None:
    found = PodWords().translate(pod({"containers": [limited(**limits)]})).spec
    assert found.containers[0].cards == (CardRequest(kind=CardKind.VGPU, **request_),)


def test_percentage_alone_is_no_request() -> None:
    found = PodWords().translate(pod({"containers": [limited(vgpu_memory_percentage=40)]})).spec
    assert found.containers[0].cards == ()


def test_a_node_with_the_register_has_its_cards() -> None:
    text = "GPU-a,10,8000,NVIDIA-T4,true,hami-core:GPU-b,10,8000,NVIDIA-T4,false,hami-core:"
    counts = {"volcano.sh/vgpu-number": "20", "volcano.sh/vgpu-memory": "16000", "volcano.sh/vgpu-cores": "200"}
    cards = node_of(node(counts, {card_annotations.REGISTER: text}), CardWords()).cards
    assert [(card.id, card.slots, card.memory_mib, card.healthy) for card in cards] == [
        ("GPU-a", 10, 8000, True),
        ("GPU-b", 10, 8000, False),
    ]
    del counts["volcano.sh/vgpu-cores"]
    assert node_of(node(counts, {card_annotations.REGISTER: text}), CardWords()).cards == ()


def test_slots_have_the_cards_that_the_agent_names_and_anonymous_ones_else() -> None:
    offered = [card_annotations.OfferedCard(id="GPU-a", resource="nvshare.com/gpu", slots=10, memory_mib=8000)]  # type: ignore[arg-type]  # a plain string is a CardId here
    annotations = {card_annotations.OFFERED_CARDS: msgspec.json.encode(offered).decode()}
    assert [card.id for card in node_of(node({"nvshare.com/gpu": "10"}, annotations), CardWords()).cards] == ["GPU-a"]
    bare = node_of(node({"nvshare.com/gpu": "3"}), CardWords()).cards
    assert [card.slots for card in bare] == [1, 1, 1]
    assert binding_annotations("n", [CardGrant("main", bare[0].id, CardKind.SLOT, 0, 0)], ["main"], 7) == {}


def test_a_binding_and_the_reading_of_it_agree() -> None:
    grants = (
        CardGrant("main", CardId("GPU-a"), CardKind.VGPU, 3000, 500),
        CardGrant("main", CardId("GPU-b"), CardKind.VGPU, 3000, 500),
        CardGrant("side", CardId("GPU-a"), CardKind.VGPU, 2000, 0),
    )
    said = binding_annotations("n", grants, ["idle", "main", "side"], 1700000000)
    assert said == {
        "volcano.sh/vgpu-node": "n",
        "volcano.sh/vgpu-time": "1700000000",
        "volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:;GPU-a,NVIDIA,2000,0:",
        "volcano.sh/devices-to-allocate": "GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:;GPU-a,NVIDIA,2000,0:",
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/bind-time": "1700000000",
    }
    spec = {
        "nodeName": "n",
        "containers": [
            {"name": "idle"},
            limited("main", vgpu_number=2, vgpu_memory=3000, vgpu_cores=50),
            limited("side", vgpu_memory=2000),
        ],
    }
    assert PodWords().translate(pod(spec, annotations=said)).cards == grants


def test_slots_and_legacy_cards_come_back_from_their_annotations() -> None:
    slots = (CardGrant("main", CardId("GPU-a"), CardKind.SLOT, 0, 0),)
    said = binding_annotations("n", slots, ["main"], 1)
    assert said == {"baton.dev/cards": "main=GPU-a"}
    spec = {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {"nvshare.com/gpu": 1}}}]}
    assert PodWords().translate(pod(spec, annotations=said)).cards == slots
    cards = node_of(node({"volcano.sh/gpu-memory": "16000", "volcano.sh/gpu-number": "2"}), CardWords()).cards
    legacy = (CardGrant("main", cards[1].id, CardKind.MEMORY, 4000, 0),)
    said = binding_annotations("n", legacy, ["main"], 1)
    assert said == {"volcano.sh/gpu-index": "1", "volcano.sh/predicate-time": "1000000000"}
    spec = {"nodeName": "n", "containers": [limited(gpu_memory=4000)]}
    assert PodWords().translate(pod(spec, annotations=said)).cards == legacy


def test_card_rules_are_read_only_where_cards_are_asked_for() -> None:
    annotations = {"nvidia.com/use-gputype": "A100, H100", "volcano.sh/vgpu-podgroup-policy": "spread"}
    ruled = PodWords().translate(pod({"containers": [limited(vgpu_number=1)]}, annotations=annotations)).spec
    assert ruled.card_rules.models == ("A100", "H100")
    assert ruled.card_rules.spread_group
    plain = PodWords().translate(pod(annotations=annotations)).spec
    assert plain.card_rules.models == ()


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


def test_a_selector_that_is_absent_selects_nothing_and_an_empty_one_everything() -> None:
    assert not selectors.label_selector(None).matches({"a": "b"})
    assert selectors.label_selector(core.LabelSelector()).matches({"a": "b"})


def test_affinity_and_spread_follow_the_pods_own_labels() -> None:
    spec = {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "x"}}, "matchLabelKeys": ["rev"]}
                ]
            }
        },
        "topologySpreadConstraints": [
            {
                "topologyKey": "zone",
                "maxSkew": 2,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            }
        ],
    }
    found = PodWords().translate(pod(spec, labels={"app": "x", "rev": "3"})).spec
    assert found.anti_affinity[0].selector.labels == (("app", "x"), ("rev", "3"))
    assert (found.spread[0].max_skew, found.spread[0].required) == (2, False)


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


def test_groups_and_queues_are_translated() -> None:
    text = b"""{"metadata":{"name":"g","namespace":"team","annotations":{"volcano.sh/sla-waiting-time":"1h30m"}},
      "spec":{"minMember":3,"minTaskMember":{"w":2,"m":1},"queue":"q","minResources":{"cpu":"3"}},
      "status":{"phase":"Inqueue"}}"""
    group = group_of(msgspec.json.decode(text, type=volcano.PodGroup), 7)
    assert (group.key, group.queue, group.min_member, group.priority) == ("team/g", "q", 3, 7)
    assert group.min_role_members == (("m", 1), ("w", 2))
    assert (group.min_resources, group.sla_waiting_s, group.phase) == ((("cpu", 3000),), 5400.0, GroupPhase.INQUEUE)
    text = b'{"metadata":{"name":"q"},"spec":{"weight":4,"parent":"root","capability":{"cpu":"2"},"reclaimable":false}}'
    queue = queue_of(msgspec.json.decode(text, type=volcano.Queue))
    assert (queue.weight, queue.parent, queue.capability, queue.reclaimable) == (4, "root", (("cpu", 2000),), False)


def test_a_group_of_volcanos_asks_for_resources_and_not_for_quotas() -> None:
    text = b"""{"metadata":{"name":"g"},"spec":{"minResources":{"cpu":"2","pods":"1","count/pods":"1",
      "requests.cpu":"2","limits.cpu":"2","requests.nvidia.com/gpu":"1","nvidia.com/gpu":"1"}}}"""
    group = group_of(msgspec.json.decode(text, type=volcano.PodGroup), 0)
    assert group.min_resources == (("cpu", 2000), ("nvidia.com/gpu", 1), ("pods", 1))
