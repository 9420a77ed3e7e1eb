"""The shipped manifests agree with the programs that they run; tests/cluster applies them to a real API server."""

from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from baton.admission.certificates.keeper import CONFIGURATION, SECRET
from baton.admission.endpoints import Policy, Webhooks
from baton.cli.programs import admission as admission_command
from baton.cli.programs import controller as controller_command
from baton.cli.programs import scheduler as scheduler_command
from baton.engine.presets import configured
from baton.install.apply import manifests, resource_of

OBJECTS = manifests()


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [each for each in OBJECTS if each["kind"] in kinds]


def test_every_object_has_a_place_in_the_api_and_a_name() -> None:
    paths = [resource_of(each).path(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in OBJECTS]
    assert len(set(paths)) == len(paths)
    assert all(each["metadata"].get("namespace") == "baton-system" for each in OBJECTS if resource_of(each).namespaced)


def test_the_scheduler_accepts_its_configuration() -> None:
    (config,) = of_kind("ConfigMap")
    configured(config["data"]["volcano-scheduler.conf"])


@pytest.mark.parametrize(
    ("name", "app"),
    [
        ("scheduler", scheduler_command.app),
        ("controller", controller_command.app),
        ("admission", admission_command.app),
    ],
)
def test_the_programs_accept_their_arguments(name: str, app: Any) -> None:
    (deployment,) = (each for each in of_kind("Deployment") if each["metadata"]["name"] == f"baton-{name}")
    program, *words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert program == name
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
    known = {word.split("=")[0] for word in words} - {word for word in result.output.split() if word.startswith("--")}
    assert {flag.rstrip(",") for flag in known} == set()


def test_every_webhook_calls_a_served_path() -> None:
    answered = set(Webhooks(None, Policy()).endpoints())  # type: ignore[arg-type]  # no cluster is asked
    called = [
        webhook["clientConfig"]["service"]["path"]
        for each in of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for webhook in each["webhooks"]
    ]
    assert set(called) == answered
    for each in of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert each["metadata"]["name"] == CONFIGURATION


def test_admission_can_change_only_one_secret_and_its_two_webhook_configurations() -> None:
    rules = [
        rule
        for each in of_kind("Role", "ClusterRole")
        if each["metadata"]["name"] == "baton-admission"
        for rule in each["rules"]
    ]
    read = [rule for rule in rules if rule["resources"] == ["secrets"] and "get" in rule["verbs"]]
    assert [rule["resourceNames"] for rule in read] == [[SECRET]]
    assert [rule["resourceNames"] for rule in rules if "admissionregistration.k8s.io" in rule["apiGroups"]] == [
        [CONFIGURATION]
    ]


def test_no_program_may_do_everything() -> None:
    assert "*" not in yaml.safe_dump([each["rules"] for each in of_kind("Role", "ClusterRole")])
