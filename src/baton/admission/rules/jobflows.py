"""JobFlows and JobTemplates."""

from collections.abc import Mapping
from typing import Any

from baton.admission.findings import Field, Findings, Rule
from baton.admission.rules.graphs import cycle
from baton.admission.rules.jobs import check_job_spec, defaulted
from baton.admission.rules.lifecycle import check_policies

STEP_NAME = Rule("flow-name", "{field} is {value}, expected the name of a JobTemplate")
TARGET = Rule(
    "flow-target",
    "{field} is {value}: jobflow Flow is not DAG: vertex is not defined: {target}; the flows are {flows}",
)
CYCLE = Rule("flow-cycle", "{field} waits for itself ({cycle}): jobflow Flow is not DAG; remove one of these targets")


def check_job_flow(flow: Mapping[str, Any], findings: Findings) -> None:
    """Check a new or changed flow. If a template is used twice, the later entry defines its dependencies."""
    spec = Field("", flow)["spec"]
    spec.mapping(findings)
    steps = spec["flows"].items(findings)
    names = []
    for step in steps:
        step.mapping(findings)
        names.append(step["name"].text(findings))
        if not names[-1]:
            findings.add(STEP_NAME, step["name"])
        check_policies(step["patch"]["jobSpec"]["policies"], findings)
    edges: dict[str, list[str]] = {}
    complete = True
    for step, name in zip(steps, names, strict=True):
        edges[name] = []
        for target in step["dependsOn"]["targets"].items(findings):
            if target.text(findings) in names:
                edges[name].append(target.value)
            else:
                complete = False
                findings.add(TARGET, target, target=target.value, flows=", ".join(names))
    if complete and (found := cycle(edges)):
        findings.add(CYCLE, steps[names.index(found[0])]["dependsOn"], cycle=" → ".join(found))


def check_job_template(template: Mapping[str, Any], findings: Findings) -> None:
    """Check a template like the job that will be created from it."""
    spec = Field("", template)["spec"]
    whole = defaulted(spec.mapping(findings))
    check_job_spec(Field(spec.path, whole), findings, Field("", template)["metadata"]["name"])
