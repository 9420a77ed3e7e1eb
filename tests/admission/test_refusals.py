"""Every rule refuses its cases and nothing else, with a sentence that names the field and the value."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
import yaml

from baton.admission.cluster import TEMPLATE
from baton.admission.endpoints import Policy, Webhooks
from baton.admission.findings import RULES, Field, Findings
from baton.admission.patches import patched
from baton.admission.reviews import Request, Verdict
from baton.admission.rules.jobs import default_job
from baton.admission.rules.queues import Tree
from baton.model.volcano import Queue
from tests.admission.cases import CASES, Case, changed, cron_job, hyper_node, job_flow, member, pod, queue, task_of
from tests.volcano_jobs import Object, container, manifest, task

ROOT = Path(__file__).parents[2]
PATHS = {
    "Job": "jobs",
    "Queue": "queues",
    "PodGroup": "podgroups",
    "CronJob": "cronjobs",
    "JobFlow": "jobflows",
    "JobTemplate": "jobtemplates",
    "HyperNode": "hypernodes",
    "Pod": "pods",
}


class KnownCluster:
    """A cluster with these queues, whose API server has nothing against any template but some words.

    The last `unseen` of them are so new that no watch has told of them.
    """

    def __init__(self, queues: tuple[Object, ...], unseen: int = 0) -> None:
        self._queues = [msgspec.convert(each, Queue, strict=False) for each in queues]
        self._unseen = unseen

    async def queue(self, name: str, *, fresh: bool = False) -> Queue | None:
        return (await self.tree(fresh=fresh)).get(name)

    async def tree(self, *, fresh: bool = False) -> Tree:
        return Tree(self._queues if fresh else self._queues[: len(self._queues) - self._unseen])

    async def namespace_annotations(self, name: str) -> dict[str, str]:
        return {}

    async def check_template(self, template: Field, namespace: str, strict: bool, findings: Findings) -> None:
        if "Sometimes" in str(template.value) or "comand" in str(template.value):
            findings.add(TEMPLATE, template, reason="it is odd")


def review(case: Case) -> Verdict:
    """Both webhooks in the order of the API server: the second never sees what the first refuses."""
    webhooks = Webhooks(KnownCluster(case.given), Policy())  # type: ignore[arg-type]  # stands in for a Cluster
    endpoints = webhooks.endpoints()
    operation = "DELETE" if case.delete else "UPDATE" if case.before else "CREATE"
    request = Request(
        uid="u",
        operation=operation,
        name=case.manifest["metadata"]["name"],
        namespace="test",
        object=None if case.delete else case.manifest,
        old_object=case.before,
    )

    async def ask() -> Verdict:
        kind = PATHS[case.manifest["kind"]]
        for path in (f"/{kind}/mutate", f"/{kind}/validate"):
            if path in endpoints:
                verdict = await endpoints[path](request)
                if not verdict.allowed:
                    break
        return verdict

    return asyncio.run(ask())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_refuses_its_case_and_names_field_and_value(case: Case) -> None:
    verdict = review(case)
    assert case.rule in verdict.findings.keys
    (sentence,) = {found.sentence for found in verdict.findings.refusals if found.rule.key == case.rule}
    assert re.match(r"[a-zA-Z.\[\]0-9/-]+ ", sentence), "the field comes first"
    assert "{" not in RULES[case.rule].sentence.format_map(_AnyWord())


class _AnyWord(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return key


def test_every_rule_has_a_case() -> None:
    assert set(RULES) == {case.rule for case in CASES}


SEES_ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
GOOD = (
    manifest(),
    manifest(plugins={"svc": ["--"], "env": ["--"]}, minAvailable=1),
    manifest(policies=[{"event": "PodEvicted", "action": "RestartTask"}, {"exitCode": 3, "action": "AbortJob"}]),
    manifest(task_of(container(resources={"limits": {"nvshare.com/gpu": 1}}))),
    manifest(
        task_of(
            container(
                resources={"limits": {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": "4096", "cpu": "1500m"}}
            )
        )
    ),
    pod(
        container(resources={"limits": {"nvidia.com/gpu": 1}}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    ),
    pod(
        container(resources={"limits": {"nvshare.com/gpu": 1}}),
        initContainers=[{"name": "i", "image": "b", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}],
    ),
    pod(annotations={"volcano.sh/jdb-min-available": "2"}),
    queue("q", capability={"cpu": 8}, deserved={"cpu": "4"}, guarantee={"resource": {"cpu": "500m"}}),
    cron_job(schedule="@daily", timeZone="Europe/Berlin"),
    cron_job(schedule="*/10 8-18 * * MON-FRI"),
    job_flow({"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"]}}),
    job_flow({"name": "a"}, {"name": "a"}),
    job_flow(),
    hyper_node(member(exactMatch={"name": "node-1"}), member(labelMatch={"matchLabels": {"rack": "1"}})),
    hyper_node(member("HyperNode", regexMatch={"pattern": "^rack-2.*"}), member(regexMatch={"pattern": "[[:alpha:]]"})),
)


@pytest.mark.parametrize("manifest", GOOD, ids=lambda manifest: str(manifest["kind"]))
def test_valid_objects_are_admitted(manifest: Object) -> None:
    assert review(Case("none", manifest)).findings.message() == ""


def test_the_controller_may_name_the_claims_that_it_creates() -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    before = manifest(volumes=[{"mountPath": "/data", "volumeClaim": claim}])
    named = manifest(volumes=[{"mountPath": "/data", "volumeClaim": claim, "volumeClaimName": "train-volume-1"}])
    assert review(Case("none", named, before=before)).findings.message() == ""
    scaled = manifest(volumes=named["spec"]["volumes"], minAvailable=1)
    assert review(Case("none", scaled, before=named)).findings.message() == ""


def test_a_job_rewritten_by_a_program_with_more_replicas_counts_as_scaled_only() -> None:
    """Go writes quantities and durations in its own notation, and unset times as null."""
    claim = {"resources": {"requests": {"storage": "1024Mi"}}}
    limits = {"nvidia.com/gpu": 1, "cpu": "1000m", "memory": "2048Mi"}
    before = manifest(
        task_of(container(resources={"limits": limits, "requests": {"cpu": 0.5}})),
        policies=[{"event": "PodPending", "action": "RestartPod", "timeout": "90m"}],
        volumes=[{"mountPath": "/data", "volumeClaim": claim}],
        runningEstimate="1h",
    )
    claim = {"resources": {"requests": {"storage": "1Gi"}}, "status": {}}
    limits = {"nvidia.com/gpu": "1", "cpu": "1", "memory": "2Gi"}
    again = manifest(
        task_of(container(resources={"limits": limits, "requests": {"cpu": "500m"}}), replicas=5),
        policies=[{"event": "PodPending", "action": "RestartPod", "timeout": "1h30m0s"}],
        volumes=[{"mountPath": "/data", "volumeClaim": claim}],
        runningEstimate="1h0m0s",
    )
    again["spec"]["tasks"][0]["template"]["metadata"] = {"creationTimestamp": None}
    assert review(Case("none", again, before=before)).findings.message() == ""
    larger = changed(
        again, "spec", "tasks", 0, "template", "spec", "containers", 0, "resources", "limits", "cpu", value=2
    )
    assert review(Case("none", larger, before=before)).findings.keys == ["update-fields"]


def test_an_older_job_can_be_scaled_although_a_new_one_like_it_would_be_refused() -> None:
    """Its pods run, so only mistakes that the change adds are refused."""
    chosen = container(resources={"limits": {"volcano.sh/vgpu-number": 1}}, env=[SEES_ALL])
    before = manifest(task_of(chosen))
    assert review(Case("none", before)).findings.keys == ["sets-visible-devices"]
    assert review(Case("none", manifest(task_of(chosen, replicas=5)), before=before)).findings.message() == ""
    keys = review(Case("none", manifest(task_of(chosen), minAvailable=3), before=before)).findings.keys
    assert keys == ["min-available-total"]


def test_an_older_cron_job_can_be_suspended() -> None:
    chosen = container(resources={"limits": {"volcano.sh/vgpu-number": 1}}, env=[SEES_ALL])
    template = {"spec": {"tasks": [task_of(chosen)]}}
    before = cron_job(jobTemplate=template)
    assert review(Case("none", cron_job(jobTemplate=template, suspend=True), before=before)).findings.message() == ""
    spoilt = review(Case("none", cron_job(jobTemplate=template, schedule="never"), before=before))
    assert spoilt.findings.keys == ["cron-schedule"]


EXAMPLES = [
    (path.name, document)
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document and document["kind"] in PATHS
]


@pytest.mark.parametrize(("file", "manifest"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_our_examples_are_admitted(file: str, manifest: Object) -> None:
    given = tuple(each for name, each in EXAMPLES if each["kind"] == "Queue" and each != manifest)
    assert review(Case("none", manifest, given)).findings.message() == ""


def test_all_mistakes_are_reported_at_once() -> None:
    verdict = review(Case("several", manifest(task_of(container(command="a"), name="A"), minAvailable=9, maxRetry=-1)))
    assert set(verdict.findings.keys) == {"not-a-list", "task-name", "min-available-total", "max-retry"}


def test_the_sentence_shows_the_correct_form_of_a_command() -> None:
    (found,) = review(Case("not-a-list", manifest(task_of(container(command="python train.py"))))).findings.refusals
    assert 'write `command: ["python", "train.py"]`' in found.sentence
    (found,) = review(Case("not-a-list", manifest(task_of(container(command="a | b"))))).findings.refusals
    assert 'write `command: ["sh", "-c", "a | b"]`' in found.sentence


def test_manually_chosen_whole_cards_cause_a_warning() -> None:
    whole = container(resources={"limits": {"nvidia.com/gpu": 1}}, env=[SEES_ALL])
    (warning,) = review(Case("none", manifest(task_of(whole)))).findings.warnings
    assert "overrides the cards that nvidia.com/gpu gives" in warning


def test_a_job_is_admitted_if_the_api_server_is_too_busy_to_check_its_templates() -> None:
    """Silence would refuse the job; this way a mistake shows when its pods are created."""

    class Busy(KnownCluster):
        async def check_template(self, template: Field, namespace: str, strict: bool, findings: Findings) -> None:
            await asyncio.Event().wait()

    webhooks = Webhooks(Busy(()), Policy(template_limit_s=0.01))  # type: ignore[arg-type]  # stands in for a Cluster
    request = Request(uid="u", operation="CREATE", name="train", namespace="test", object=manifest())
    assert asyncio.run(webhooks.validate_job(request)).allowed


def test_a_queue_is_kept_for_a_child_that_the_watch_has_not_shown() -> None:
    cluster = KnownCluster((queue("over"), queue("under", parent="over")), unseen=1)
    endpoints = Webhooks(cluster, Policy()).endpoints()  # type: ignore[arg-type]  # stands in for a Cluster
    request = Request(uid="u", operation="DELETE", name="over", old_object=queue("over"))

    async def ask() -> Verdict:
        return await endpoints["/queues/validate"](request)

    verdict = asyncio.run(ask())
    assert "it has child queues: under" in verdict.findings.message()


def test_a_file_applied_again_with_more_replicas_keeps_its_defaults() -> None:
    stored = patched(manifest(), default_job(manifest()["spec"], "volcano", "spec"))
    again = {**stored, "spec": {**stored["spec"], "tasks": manifest(task(replicas=5))["spec"]["tasks"]}}
    endpoints = Webhooks(KnownCluster(()), Policy()).endpoints()  # type: ignore[arg-type]  # stands in for a Cluster
    request = Request(uid="u", operation="UPDATE", name="train", object=again, old_object=stored)

    async def ask() -> tuple[Verdict, Verdict]:
        return await endpoints["/jobs/mutate"](request), await endpoints["/jobs/validate"](request)

    mutated, validated = asyncio.run(ask())
    assert mutated.findings.message() == ""
    assert patched(again, mutated.patches)["spec"]["tasks"][0]["maxRetry"] == 3
    assert validated.allowed
