"""The form of a pod specification: the most frequent mistakes, with the correct form in the sentence.

This does not replace the validation by the API server (`baton.admission.cluster`), which answers a wrong type with
words about Go structs. It catches the frequent mistakes first.
"""

from baton.admission.findings import Field, Findings, Rule

NO_CONTAINERS = Rule("no-containers", "{field} is {value}, expected a list with at least one container")
NO_TEMPLATE = Rule("no-template", "{field} is {value}, expected a pod template with `spec.containers`")
ENV_VALUE = Rule("env-value", "{field} is {value}, expected text: environment variables are strings, put it in quotes")
LABEL_VALUE = Rule(
    "label-value", "{field} is {value}, expected text: labels and annotations are strings, put it in quotes"
)


def check_template(template: Field, findings: Findings) -> None:
    """Check the labels, annotations and specification of a pod template."""
    if not template:
        findings.add(NO_TEMPLATE, template)
        return
    template.mapping(findings)
    for part in ("labels", "annotations"):
        _check_texts(template["metadata"][part], findings)
    check_spec(template["spec"], findings)


def check_spec(spec: Field, findings: Findings) -> None:
    """Check a pod specification."""
    spec.mapping(findings)
    before = len(findings.refusals)
    containers = spec["containers"].items(findings)
    if not containers and len(findings.refusals) == before:
        findings.add(NO_CONTAINERS, spec["containers"])
    for container in (*containers, *spec["initContainers"].items(findings)):
        _check_container(container, findings)
    _check_texts(spec["nodeSelector"], findings)
    for part in ("tolerations", "volumes", "imagePullSecrets"):
        for item in spec[part].items(findings):
            item.mapping(findings)


def _check_container(container: Field, findings: Findings) -> None:
    container.mapping(findings)
    for part in ("name", "image", "workingDir"):
        container[part].text(findings)
    for part in ("command", "args"):
        container[part].texts(findings)
    for variable in container["env"].items(findings):
        variable.mapping(findings)
        variable["name"].text(findings)
        if variable["value"] and not isinstance(variable["value"].value, str):
            findings.add(ENV_VALUE, variable["value"])
    for part in ("ports", "volumeMounts", "envFrom"):
        for item in container[part].items(findings):
            item.mapping(findings)
    for part in ("limits", "requests"):
        container["resources"][part].mapping(findings)
    container["resources"].mapping(findings)


def _check_texts(table: Field, findings: Findings) -> None:
    for _, value in table.fields(findings):
        if value and not isinstance(value.value, str):
            findings.add(LABEL_VALUE, value)
