"""flow.volcano.sh/v1alpha1: JobTemplate and JobFlow."""

from baton.install.crds.jobs import job_spec
from baton.install.crds.schemas import Schema, column, definition, mapping, moment, number, series, table, text
from baton.model.names import FlowPhase

GROUP = "flow.volcano.sh"
VERSION = "v1alpha1"


def job_template() -> Schema:
    """A job that flows create by name."""
    status = mapping("Jobs that use the template.", {"jobDependsOnList": series("Jobs created from it.", text())})
    return definition(
        GROUP,
        VERSION,
        "JobTemplate",
        description="A job that flows create by name.",
        properties={"spec": job_spec(), "status": status},
        short_names=("jt",),
    )


def _probe() -> Schema:
    header = mapping("A header of the request.", {"name": text(), "value": text()}, required=("name", "value"))
    port = {"type": "integer", "minimum": 0, "maximum": 65535}
    return mapping(
        "Conditions that the preceding jobs must meet.",
        {
            "httpGetList": series(
                "HTTP endpoints that must answer.",
                mapping(
                    "", {"taskName": text(maxLength=253), "path": text(), "port": dict(port), "httpHeader": header}
                ),
            ),
            "tcpSocketList": series(
                "TCP ports that must be open.",
                mapping("", {"taskName": text(maxLength=253), "port": dict(port)}, required=("port",)),
            ),
            "taskStatusList": series(
                "Phases that tasks must have reached.",
                mapping("", {"taskName": text(maxLength=253), "phase": text(maxLength=63)}),
            ),
        },
    )


def job_flow() -> Schema:
    """Jobs that run in a given order."""
    step = mapping(
        "",
        {
            "name": text("The JobTemplate from which the job is created."),
            "dependsOn": mapping(
                "Conditions before this step starts.",
                {"targets": series("Steps of this flow that must have completed first.", text()), "probe": _probe()},
            ),
            "patch": mapping("Changes to the template for this flow.", {"jobSpec": job_spec(defaults=False)}),
        },
        required=("name",),
    )
    spec = mapping(
        "The jobs and their order.",
        {
            "flows": series("The steps.", step),
            "jobRetainPolicy": text(
                "Whether jobs are kept after the flow has succeeded.", choices=("retain", "delete")
            ),
        },
    )
    history = mapping("", {"state": text(), "startTimestamp": moment("From."), "endTimestamp": moment("To.")})
    job_status = mapping(
        "",
        {
            "name": text("Name of the job."),
            "state": text("Phase of the job."),
            "startTimestamp": moment("From."),
            "endTimestamp": moment("To."),
            "restartCount": number("Number of restarts."),
            "runningHistories": series("The phases that the job has passed through.", history),
        },
    )
    condition = mapping(
        "",
        {
            "phase": text("Phase of the job."),
            "createTime": moment("Time of creation."),
            "runningDuration": text("How long the job has run."),
            "taskStatusCount": table(
                "Number of pods per task and phase.", mapping("", {"phase": table("", number("", None))})
            ),
        },
    )
    jobs = {
        field: series(description, text())
        for field, description in (
            ("pendingJobs", "Pending jobs."),
            ("runningJobs", "Running jobs."),
            ("completedJobs", "Completed jobs."),
            ("failedJobs", "Failed jobs."),
            ("terminatedJobs", "Terminated jobs."),
            ("unKnowJobs", "Jobs in another phase."),
        )
    }
    status = mapping(
        "Status of the flow.",
        {
            "state": mapping(
                "State of the flow.",
                {"phase": text("Phase of the flow.", choices=tuple(map(str, FlowPhase)))},
            ),
            **jobs,
            "jobStatusList": series("Status of each job.", job_status),
            "conditions": table("The jobs by name.", condition),
        },
    )
    return definition(
        GROUP,
        VERSION,
        "JobFlow",
        description="Jobs in a given order; each is created from a template when its predecessors have completed.",
        properties={"spec": spec, "status": status},
        short_names=("jf",),
        columns=(column("Status", ".status.state.phase"), column("Age", ".metadata.creationTimestamp", "date")),
    )
