"""flow.volcano.sh/v1alpha1: JobTemplate and JobFlow."""

from baton.install.crds.jobs import job_spec
from baton.install.crds.schemas import Schema, column, definition, mapping, moment, number, series, table, text

GROUP = "flow.volcano.sh"
VERSION = "v1alpha1"


def job_template() -> Schema:
    """A job that a flow makes by name."""
    status = mapping("Who uses it.", {"jobDependsOnList": series("Jobs made from it.", text())})
    return definition(
        GROUP,
        VERSION,
        "JobTemplate",
        description="A job that flows make by name.",
        properties={"spec": job_spec(), "status": status},
        short_names=("jt",),
    )


def _probe() -> Schema:
    header = mapping("A header to send.", {"name": text(), "value": text()}, required=("name", "value"))
    port = {"type": "integer", "minimum": 0, "maximum": 65535}
    return mapping(
        "What must hold in the jobs before.",
        {
            "httpGetList": series(
                "Pages that must answer.",
                mapping(
                    "", {"taskName": text(maxLength=253), "path": text(), "port": dict(port), "httpHeader": header}
                ),
            ),
            "tcpSocketList": series(
                "Ports that must be open.",
                mapping("", {"taskName": text(maxLength=253), "port": dict(port)}, required=("port",)),
            ),
            "taskStatusList": series(
                "Phases that tasks must be in.",
                mapping("", {"taskName": text(maxLength=253), "phase": text(maxLength=63)}),
            ),
        },
    )


def job_flow() -> Schema:
    """Jobs in an order."""
    step = mapping(
        "",
        {
            "name": text("The JobTemplate to make a job from."),
            "dependsOn": mapping(
                "What must be over first.",
                {"targets": series("Steps of this flow that must have completed.", text()), "probe": _probe()},
            ),
            "patch": mapping("Changes to the template for this flow.", {"jobSpec": job_spec(defaults=False)}),
        },
        required=("name",),
    )
    spec = mapping(
        "Which jobs, in which order.",
        {
            "flows": series("The steps.", step),
            "jobRetainPolicy": text("Whether the jobs stay when the flow has succeeded.", choices=("retain", "delete")),
        },
    )
    history = mapping("", {"state": text(), "startTimestamp": moment("From."), "endTimestamp": moment("To.")})
    job_status = mapping(
        "",
        {
            "name": text("The job."),
            "state": text("Its phase."),
            "startTimestamp": moment("From."),
            "endTimestamp": moment("To."),
            "restartCount": number("How often it was restarted."),
            "runningHistories": series("The phases it was in.", history),
        },
    )
    condition = mapping(
        "",
        {
            "phase": text("The job's phase."),
            "createTime": moment("When it was made."),
            "runningDuration": text("How long it ran."),
            "taskStatusCount": table(
                "Pods of each task by phase.", mapping("", {"phase": table("", number("", None))})
            ),
        },
    )
    jobs = {
        field: series(description, text())
        for field, description in (
            ("pendingJobs", "Jobs that wait."),
            ("runningJobs", "Jobs that run."),
            ("completedJobs", "Jobs that completed."),
            ("failedJobs", "Jobs that failed."),
            ("terminatedJobs", "Jobs that were ended."),
            ("unKnowJobs", "Jobs in another phase."),
        )
    }
    status = mapping(
        "What has become of the flow.",
        {
            "state": mapping(
                "Where the flow is.",
                {"phase": text("The phase.", choices=("Pending", "Running", "Succeed", "Failed", "Terminating"))},
            ),
            **jobs,
            "jobStatusList": series("The jobs, one by one.", job_status),
            "conditions": table("The jobs by name.", condition),
        },
    )
    return definition(
        GROUP,
        VERSION,
        "JobFlow",
        description="Jobs in an order, each made from a template when those before it have completed.",
        properties={"spec": spec, "status": status},
        short_names=("jf",),
        columns=(column("Status", ".status.state.phase"), column("Age", ".metadata.creationTimestamp", "date")),
    )
