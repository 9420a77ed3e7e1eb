"""`vcctl`: verbs and flags as in Volcano's own command, and the help that its end-to-end suite compares."""

import subprocess
import sys
from pathlib import Path

import pytest

from baton.cli.cluster.requests import Table
from baton.cli.vcctl.verbs import NOUNS
from baton.cli.vcctl.view import events_text, job_text

pytestmark = pytest.mark.process

GLOBAL_FLAGS = """\
Global Flags:
      --log-flush-frequency duration   Maximum number of seconds between log flushes (default 5s)
  -v, --v Level                        number for the log level verbosity
      --vmodule moduleSpec             comma-separated list of pattern=N settings for file-filtered logging (only works for the default text log format)
"""  # noqa: E501  # compared line by line


def vcctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("vcctl"), *words],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
    )


def test_the_help_of_a_noun() -> None:
    shown = vcctl("job", "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(
        """\
vcctl command line operation job

Usage:
  vcctl job [command]

Available Commands:
  delete      delete a job
  list        list job information
  resume      resume a job
  run         run job by parameters from the command line
  suspend     abort a job
  view        show job information

Flags:
  -h, --help   help for job

"""
        + GLOBAL_FLAGS
    )
    assert shown.stdout == vcctl("job").stdout == vcctl("help", "job").stdout


def test_the_help_of_a_verb() -> None:
    assert vcctl("job", "list", "-h").stdout == (
        """\
list job information

Usage:
  vcctl job list [flags]

Flags:
      --all-namespaces      list jobs in all namespaces
  -h, --help                help for list
  -k, --kubeconfig string   (optional) absolute path to the kubeconfig file
  -s, --master string       the address of apiserver
  -n, --namespace string    the namespace of job (default "default")
  -q, --queue string        list job with specified queue name
  -S, --scheduler string    list job with specified scheduler name
      --selector string     fuzzy matching jobName

"""
        + GLOBAL_FLAGS
    )


def test_the_help_of_numbers_shows_their_types_and_defaults() -> None:
    shown = vcctl("queue", "create", "--help").stdout
    assert "  -w, --weight int32        share relative to other queues (default 1)\n" in shown
    assert "  -r, --replicas int        the total tasks of job (default 1)\n" in vcctl("job", "run", "--help").stdout


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("jb",), 'unknown command "jb" for "vcctl"\n\nDid you mean this?\n\tjob\n\n'),
        (("job", "list", "--frob"), "unknown flag: --frob\n"),
        (("job", "list", "-o", "json"), "unknown shorthand flag: 'o' in -o\n"),
        (("job", "view", "--name"), "flag needs an argument: --name\n"),
        (
            ("job", "run", "-r", "x"),
            'invalid argument "x" for "-r, --replicas" flag: strconv.ParseInt: parsing "x": invalid syntax\n',
        ),
    ],
)
def test_usage_errors(words: tuple[str, ...], error: str) -> None:
    shown = vcctl(*words)
    assert (shown.returncode, shown.stdout, shown.stderr) == (1, "", f"Error: {error}")


def test_a_failure_goes_to_standard_output_with_the_exit_code_that_scripts_expect() -> None:
    shown = vcctl("job", "list", "--kubeconfig", "/nonexistent")
    assert shown.returncode == 255
    assert shown.stdout == "Failed to list job: --kubeconfig is '/nonexistent', which is not a file\n"


def test_the_full_view_of_a_job() -> None:
    job = {
        "metadata": {
            "name": "a1",
            "namespace": "default",
            "labels": {"b": "c", "a": "<z>"},
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "generation": 1,
            "resourceVersion": "251",
            "uid": "u-1",
        },
        "spec": {
            "minAvailable": 2,
            "schedulerName": "volcano",
            "plugins": {"env": ["--a", "--b"]},
            "tasks": [
                {
                    "name": "worker",
                    "replicas": 3,
                    "template": {
                        "spec": {
                            "restartPolicy": "Never",
                            "containers": [
                                {
                                    "name": "main",
                                    "image": "busybox",
                                    "command": ["sleep", "1"],
                                    "ports": [{"name": "http", "containerPort": 80}],
                                    "resources": {"limits": {"cpu": "1000m", "memory": "100Mi"}},
                                }
                            ],
                        }
                    },
                }
            ],
        },
        "status": {
            "running": 3,
            "minAvailable": 2,
            "state": {"phase": "Running"},
            "conditions": [{"status": "Running", "lastTransitionTime": "2026-01-02T03:04:06Z"}],
        },
    }
    assert job_text(job) == (
        "Name:       \ta1\n"
        "Namespace:  \tdefault\n"
        'Labels:     \t{"a":"\\u003cz\\u003e","b":"c"}\n'
        "Annotations:\t<none>\n"
        "API Version:\t\n"
        "Kind:       \t\n"
        "Metadata:\n"
        "  Creation Timestamp:\t2026-01-02 03:04:05 +0000 UTC\n"
        "  Generate Name:     \t\n"
        "  Generation:        \t1\n"
        "  Resource Version:  \t251\n"
        "  UID:               \tu-1\n"
        "Spec:\n"
        "  Min Available:     \t2\n"
        "  Plugins:\n"
        "    Env:\t[--a --b]\n"
        "    Ssh:\t[]\n"
        "  Scheduler Name:    \tvolcano\n"
        "  Tasks:\n"
        "    Name:\tworker\n"
        "    Replicas:\t3\n"
        "    Template:\n"
        "      Metadata:\n"
        "        Annotations:\n"
        "          Cri . Cci . Io / Container - Type:          \t\n"
        "          Kubernetes . Io / Availablezone:            \t\n"
        "          Network . Alpha . Kubernetes . Io / Network:\t\n"
        "        Creation Timestamp:\t0001-01-01 00:00:00 +0000 UTC\n"
        "      Spec:\n"
        "        Containers:\n"
        "          Command:\n"
        "            sleep\n"
        "            1\n"
        "          Image:\tbusybox\n"
        "          Name: \tmain\n"
        "          Ports:\n"
        "            Container Port:\t80\n"
        "            Name:          \thttp\n"
        "          Resources:\n"
        "            Limits:\n"
        "              Cpu:   \t1\n"
        "              Memory:\t100Mi\n"
        "            Requests:\n"
        "              Cpu:   \t0\n"
        "              Memory:\t0\n"
        "            Working Dir:\t\n"
        "        Image Pull Secrets:\n"
        "        Restart Policy:   \tNever\n"
        "Status:\n"
        "  Running:      \t3\n"
        "  Min Available:\t2\n"
        "  State:\n"
        "    Phase:\tRunning\n"
        "  Conditions:\n"
        "    Status\tTransitionTime\n"
        "    Running \t2026-01-02 03:04:06 +0000 UTC \n"
    )


class Pods:
    """A cluster with one pod in each of two namespaces."""

    def table(self, _resource: object, namespace: str | None, **_: str) -> Table:
        columns = [Table.Column(name) for name in ("Name", "Ready", "Status", "Restarts", "Age")]
        found = [name for name in ("ml", "team") if namespace in (None, name)]
        return Table(
            columns, [Table.Row(["p", "1/1", "Running", 0, "5m"], {"metadata": {"namespace": n}}) for n in found]
        )


def test_pods_of_all_namespaces_show_their_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"job": "", "queue": "", "namespace": "ml", "all-namespaces": False}
    run = NOUNS["pod"].verbs["list"].run
    run(Pods(), values)  # type: ignore[arg-type]  # stands in for a Cluster
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["Name", "Ready", "Status", "Restart", "Age"],
        ["p", "1/1", "Running", "0", "5m"],
    ]
    run(Pods(), {**values, "all-namespaces": True})  # type: ignore[arg-type]  # stands in for a Cluster
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["Namespace", "Name"],
        ["ml", "p"],
        ["team", "p"],
    ]


def test_events_are_a_table_or_none() -> None:
    assert events_text([]) == "Events: \t<none>\n"
    event = {"type": "Normal", "reason": "Why", "message": " because ", "source": {"component": "vc"}}
    lines = events_text([event]).splitlines()
    assert lines[0] == "Events:"
    assert lines[1].split("\t")[0] == f"{'Type':<15}"
    assert lines[3].split("\t") == [f"{'Normal':<15}", f"{'Why':<40}", f"{'<unknown>':<30}", f"{'vc':<40}", "because"]
