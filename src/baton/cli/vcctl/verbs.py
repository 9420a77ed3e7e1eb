"""The behaviour and output of each verb of `vcctl`."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from baton.cli.cluster import workloads
from baton.cli.cluster.requests import Cluster, Object
from baton.cli.vcctl import view
from baton.cli.vcctl.command import Flag, Noun, Values, Verb
from baton.errors import BatonError
from baton.kube.errors import ApiError
from baton.model.core import PODS
from baton.model.meta import EVENTS
from baton.model.names import QUEUE_NAME
from baton.model.resource import Resource
from baton.model.volcano import BATCH, COMMANDS, FLOW, JOB_FLOWS, JOB_TEMPLATES, JOBS, POD_GROUPS, QUEUES, SCHEDULING

_NOTHING = "No resources found\n"
_JOB_COLUMNS = (("Creation", 15), ("Phase", 12), ("JobType", 12), ("Replicas", 12), ("Min", 6), ("Pending", 10),
                ("Running", 10), ("Succeeded", 12), ("Failed", 10), ("Unknown", 12), ("RetryCount", 10))  # fmt: skip
_QUEUE_COLUMNS = ("Weight", "State", "Parent", *workloads.PHASES)
_WHICH_QUEUE = "give the name of the queue with --name (-n)"
_POD_COLUMNS = {"Name": "Name", "Ready": "Ready", "Status": "Status", "Restart": "Restarts", "Age": "Age"}
"""The heading here, and the column of the API server's own table that it shows."""


def _out(text: str) -> None:
    sys.stdout.write(text)


def _fixed(widths: Iterable[int], cells: Iterable[Any]) -> str:
    return "".join(f"{cell!s:<{width}}" for width, cell in zip(widths, cells, strict=True)) + "\n"


def _fitted(rows: Sequence[Sequence[str]], spacing: int, *, from_row: int = 0) -> str:
    """Columns as wide as their widest cell in the rows from `from_row` on."""
    widths = [max(len(row[place]) for row in rows[from_row:]) + spacing for place in range(len(rows[0]))]
    return "".join(_fixed(widths, row) for row in rows)


def _name(values: Values, refusal: str) -> str:
    if not values["name"]:
        raise BatonError(refusal)
    return str(values["name"])


def _run_job(cluster: Cluster, values: Values) -> None:
    if not values["name"] and not values["filename"]:
        raise BatonError("give the name of the job with --name, or a manifest with --filename")
    requests = workloads.parse_amounts(values["requests"], "--requests")
    limits = workloads.parse_amounts(values["limits"], "--limits")
    if values["filename"]:
        if Path(values["filename"]).suffix not in (".yaml", ".yml"):
            raise BatonError(f"--filename is {values['filename']}, expected a file that ends in .yaml or .yml")
        (job, *_) = workloads.read_documents(Path(values["filename"]), "Job")
    else:
        job = workloads.job_object(
            values["name"],
            image=values["image"],
            replicas=values["replicas"],
            min_available=values["min"],
            requests=requests,
            limits=limits,
            scheduler=values["scheduler"],
        )
    made = cluster.create(JOBS, job, values["namespace"])
    _out(f"run job {made['metadata']['name']} successfully\n")


def _list_jobs(cluster: Cluster, values: Values) -> None:
    everywhere = values["all-namespaces"]
    jobs = [
        job
        for job in cluster.list(JOBS, None if everywhere else values["namespace"])
        if values["queue"] in ("", job["spec"].get("queue", ""))
        and values["scheduler"] in ("", job["spec"].get("schedulerName", ""))
        and values["selector"] in job["metadata"]["name"]
    ]
    if not jobs:
        _out(_NOTHING)
        return
    names = ["Name", *(job["metadata"]["name"] for job in jobs)]
    spaces = ["Namespace", *(job["metadata"]["namespace"] for job in jobs)]
    rows = [[heading for heading, _ in _JOB_COLUMNS], *(_job_cells(job) for job in jobs)]
    leading = [spaces, names] if everywhere else [names]
    widths = [max(map(len, column)) + 3 for column in leading] + [width for _, width in _JOB_COLUMNS]
    for place, row in enumerate(rows):
        _out(_fixed(widths, [*(column[place] for column in leading), *row]))


def _job_cells(job: Object) -> list[Any]:
    status = job.get("status", {})
    counts = ("minAvailable", "pending", "running", "succeeded", "failed", "unknown", "retryCount")
    return [
        job["metadata"]["creationTimestamp"].partition("T")[0],
        workloads.phase_of(job),
        workloads.type_of(job),
        workloads.replicas_of(job),
        *(status.get(key, 0) for key in counts),
    ]


def _view_job(cluster: Cluster, values: Values) -> None:
    name = _name(values, "which job? name it with --name (-N)")
    job = cluster.get(JOBS, name, values["namespace"])
    events = [
        event for event in cluster.list(EVENTS, values["namespace"]) if event["metadata"]["name"].startswith(f"{name}.")
    ]
    _out(view.job_text(job) + view.events_text(events))


def _order_job(action: str, word: str) -> Callable[[Cluster, Values], None]:
    def order(cluster: Cluster, values: Values) -> None:
        name = _name(values, f"give the name of the job to {word} with --name (-N)")
        job = cluster.get(JOBS, name, values["namespace"])
        cluster.create(COMMANDS, workloads.command_object(job, BATCH, "Job", action), values["namespace"])

    return order


def _delete_job(cluster: Cluster, values: Values) -> None:
    name = _name(values, "which job? name it with --name (-N)")
    cluster.delete(JOBS, name, values["namespace"])
    _out(f"delete job {name} successfully\n")


def _create_queue(cluster: Cluster, values: Values) -> None:
    cluster.create(
        QUEUES,
        {
            "apiVersion": SCHEDULING,
            "kind": "Queue",
            "metadata": {"name": values["name"]},
            "spec": {"weight": values["weight"]},
            "status": {"state": values["state"]},
        },
    )


def _list_queues(cluster: Cluster, _: Values) -> None:
    queues = cluster.list(QUEUES)
    if not queues:
        _out(_NOTHING)
        return
    _print_queues(cluster, queues)


def _get_queue(cluster: Cluster, values: Values) -> None:
    _print_queues(cluster, [cluster.get(QUEUES, _name(values, _WHICH_QUEUE))])


def _print_queues(cluster: Cluster, queues: list[Object]) -> None:
    counts = workloads.phases_by_queue(cluster.list(POD_GROUPS))
    widths = (25, *(8 for _ in _QUEUE_COLUMNS))
    _out(_fixed(widths, ("Name", *_QUEUE_COLUMNS)))
    for queue in queues:
        name, spec = queue["metadata"]["name"], queue.get("spec", {})
        phases = counts.get(name, Counter())
        facts = (spec.get("weight", 0), queue.get("status", {}).get("state", ""), spec.get("parent", ""))
        _out(_fixed(widths, (name, *facts, *(phases[phase] for phase in workloads.PHASES))))


def _operate_queue(cluster: Cluster, values: Values) -> None:
    name, action = _name(values, _WHICH_QUEUE), values["action"]
    actions = {"open": "OpenQueue", "close": "CloseQueue"}
    if not action:
        raise BatonError("give the --action: open, close or update")
    if action in actions:
        workloads.order_queue(cluster, name, actions[action])
    elif action != "update":
        raise BatonError(f"--action is {action}, expected open, close or update")
    elif not values["weight"]:
        raise BatonError(f"update changes the weight of queue {name}: give the new weight, at least 1, with --weight")
    else:
        cluster.patch(QUEUES, name, {"spec": {"weight": values["weight"]}})


def _delete_queue(cluster: Cluster, values: Values) -> None:
    cluster.delete(QUEUES, _name(values, _WHICH_QUEUE))


def _list_pods(cluster: Cluster, values: Values) -> None:
    job, queue = values["job"], values["queue"]
    where = None if values["all-namespaces"] else values["namespace"]
    table = cluster.table(PODS, where, label_selector=workloads.pod_selector(job, queue))
    labels = [row.object["metadata"].get("labels") or {} for row in table.rows]
    if job and queue and any(found.get(QUEUE_NAME, queue) != queue for found in labels):
        raise BatonError(f"job {job} is not in queue {queue}; use only one of --job and --queue")
    rows = [row for row in table.rows if job or not queue or workloads.belongs_to_queue(row.object["metadata"], queue)]
    if not rows:
        _out(_NOTHING)
        return
    cells = [[table.cell(row, column) for column in _POD_COLUMNS.values()] for row in rows]
    headings = list(_POD_COLUMNS)
    if where is None:
        headings.insert(0, "Namespace")
        cells = [[row.object["metadata"]["namespace"], *own] for row, own in zip(rows, cells, strict=True)]
    _out(_fitted([headings, *cells], 8, from_row=1))


def _called(document: Object) -> str:
    metadata = document["metadata"]
    return str(metadata.get("name") or metadata["generateName"])


_WHERE = Flag("namespace", "n", "default", "namespace to use")
_ANYWHERE = Flag("all-namespaces", "", False, "list every namespace")


class _Flow(msgspec.Struct):
    """A job flow or a job template, which have the same verbs."""

    resource: Resource[Any]
    kind: str
    noun: str
    with_phase: bool

    def cells(self, item: Object) -> list[str]:
        metadata = item["metadata"]
        more = [workloads.phase_of(item), workloads.age(metadata.get("creationTimestamp"))] if self.with_phase else []
        return [metadata["name"], metadata["namespace"], *more]

    def show(self, items: list[Object]) -> None:
        if not items:
            _out(_NOTHING)
            return
        headings = ["Name", "Namespace", *(["Phase", "Age"] if self.with_phase else [])]
        _out(_fitted([headings, *(self.cells(item) for item in items)], 4))

    def create(self, cluster: Cluster, values: Values) -> None:
        for document in workloads.read_documents(Path(values["file"]), self.kind):
            name, where = _called(document), document["metadata"].get("namespace", "default")
            self._attempt("create", f"Created {self.kind}: {where}/{name}", cluster.create, document, where)

    def list(self, cluster: Cluster, values: Values) -> None:
        everywhere = values.get("all-namespaces", False)
        self.show(cluster.list(self.resource, None if everywhere else values["namespace"]))

    def get(self, cluster: Cluster, values: Values) -> None:
        name = _name(values, f"give the name of the {self.noun} with --name (-N)")
        self.show([cluster.get(self.resource, name, values["namespace"])])

    def describe(self, cluster: Cluster, values: Values) -> None:
        name, where = values["name"], values["namespace"]
        items = [cluster.get(self.resource, name, where)] if name else cluster.list(self.resource, where)
        texts = []
        for item in items:
            whole = {"apiVersion": FLOW, "kind": self.kind, **item}
            if values["format"] == "json":
                texts.append(msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n")
            elif values["format"] == "yaml":
                texts.append(yaml.safe_dump(whole))
            else:
                texts.append(f"Unsupported format: {values['format']}")
        _out("\n\n".join(texts))

    def delete(self, cluster: Cluster, values: Values) -> None:
        if values["file"]:
            for document in workloads.read_documents(Path(values["file"]), self.kind):
                name, where = _called(document), document["metadata"].get("namespace", "default")
                self._attempt("delete", f"Deleted {self.kind}: {where}/{name}", cluster.delete, name, where)
            return
        name, where = (
            _name(values, f"give the name of the {self.noun} with --name (-N), or a --file"),
            values["namespace"],
        )
        cluster.delete(self.resource, name, where)
        _out(f"Deleted {self.kind}: {where}/{name}\n")

    def _attempt(self, word: str, done: str, work: Callable[..., Any], *details: Any) -> None:
        """Continue with the next document of a file when one of them fails."""
        try:
            work(self.resource, *details)
        except ApiError as error:
            _out(f"Failed to {word} {self.kind}: {error.message}\n")
        else:
            _out(f"{done}\n")

    def noun_with(self, called: str, *, all_namespaces: bool) -> Noun:
        """The noun with its verbs; `called` is its name in help texts."""
        name = Flag("name", "N", "", f"name of the {called}")
        file = Flag("file", "f", "", f"YAML file with one or more {called}s")
        return Noun(
            f"vcctl command line operation {self.noun}",
            {
                "create": Verb(f"create the {called}s in a file", (file,), self.create),
                "delete": Verb(f"delete one {called}, or those in a file", (file, name, _WHERE), self.delete),
                "describe": Verb(
                    f"print one {called}, or all of a namespace, in full",
                    (Flag("format", "o", "yaml", "yaml or json"), name, _WHERE),
                    self.describe,
                ),
                "get": Verb(f"show one {called}", (name, _WHERE), self.get),
                "list": Verb(f"list the {called}s", (_WHERE, *((_ANYWHERE,) if all_namespaces else ())), self.list),
            },
        )


# The words of the flags and verbs of `job` are part of the interface: the suite compares them.
_JOB = Flag("name", "N", "", "the name of job")
_NAMESPACE = Flag("namespace", "n", "default", "the namespace of job")
_EVERYWHERE = Flag("all-namespaces", "", False, "list jobs in all namespaces")
_QUEUE = Flag("name", "n", "", "name of the queue")
_AMOUNTS = "cpu=1000m,memory=100Mi"

NOUNS: dict[str, Noun] = {
    "job": Noun(
        "vcctl command line operation job",
        {
            "delete": Verb("delete a job", (_JOB, _NAMESPACE), _delete_job),
            "list": Verb(
                "list job information",
                (
                    _EVERYWHERE,
                    _NAMESPACE,
                    Flag("queue", "q", "", "list job with specified queue name"),
                    Flag("scheduler", "S", "", "list job with specified scheduler name"),
                    Flag("selector", "", "", "fuzzy matching jobName"),
                ),
                _list_jobs,
            ),
            "resume": Verb("resume a job", (_JOB, _NAMESPACE), _order_job("ResumeJob", "resume")),
            "run": Verb(
                "run job by parameters from the command line",
                (
                    Flag("filename", "f", "", "the yaml file of job"),
                    Flag("image", "i", "busybox", "the container image of job"),
                    Flag("limits", "L", _AMOUNTS, "the resource limit of the task"),
                    Flag("min", "m", 1, "the minimal available tasks of job"),
                    _JOB,
                    _NAMESPACE,
                    Flag("replicas", "r", 1, "the total tasks of job"),
                    Flag("requests", "R", _AMOUNTS, "the resource request of the task"),
                    Flag("scheduler", "S", "volcano", "the scheduler for this job"),
                ),
                _run_job,
            ),
            "suspend": Verb("abort a job", (_JOB, _NAMESPACE), _order_job("AbortJob", "suspend")),
            "view": Verb("show job information", (_JOB, _NAMESPACE), _view_job),
        },
    ),
    "jobflow": _Flow(JOB_FLOWS, "JobFlow", "jobflow", with_phase=True).noun_with("job flow", all_namespaces=True),
    "jobtemplate": _Flow(JOB_TEMPLATES, "JobTemplate", "jobtemplate", with_phase=False).noun_with(
        "job template", all_namespaces=False
    ),
    "pod": Noun(
        "vcctl command line operation pod",
        {
            "list": Verb(
                "list the pods of jobs",
                (
                    _ANYWHERE,
                    Flag("job", "j", "", "list only the pods of this job"),
                    _WHERE,
                    Flag("queue", "q", "", "list only the pods in this queue"),
                ),
                _list_pods,
            )
        },
    ),
    "queue": Noun(
        "Queue Operations",
        {
            "create": Verb(
                "create a queue",
                (
                    Flag("name", "n", "test", "name of the queue"),
                    Flag("state", "S", "Open", "Open or Closed"),
                    Flag("weight", "w", 1, "share relative to other queues", "int32"),
                ),
                _create_queue,
            ),
            "delete": Verb("delete a queue", (_QUEUE,), _delete_queue),
            "get": Verb("show one queue", (_QUEUE,), _get_queue),
            "list": Verb("list all queues", (), _list_queues),
            "operate": Verb(
                "open or close a queue, or change its weight",
                (
                    Flag("action", "a", "", "open, close or update"),
                    _QUEUE,
                    Flag("weight", "w", 0, "new weight, with update", "int32"),
                ),
                _operate_queue,
            ),
        },
    ),
}
