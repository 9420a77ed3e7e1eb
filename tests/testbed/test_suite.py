"""Volcano's suite without a cluster: the effects of its containers' commands, and parsing of its reports."""

from typing import Any

import pytest

from testbed.errors import BedError
from testbed.suite import PACKAGES, Failure, check_packages, progress_of, read_report
from testbed.suite_containers import FRAMEWORK_S, End, Step, end_of_pod, end_of_script, ended_status, steps

TENSORFLOW = (
    'PS_HOST=`cat /etc/volcano/ps.host | sed \'s/$/&:2222/g\' | sed \'s/^/"/;s/$/"/\' | tr "\n" ","`; '
    'export TF_CONFIG={\\"cluster\\":{\\"ps\\":[${PS_HOST}]}}; echo ${TF_CONFIG}; '
    "python /var/tf_dist_mnist/dist_mnist.py --train_steps 1000"
)
MPI_MASTER = """sleep 5;
mkdir -p /var/run/sshd; /usr/sbin/sshd;
mpiexec --allow-run-as-root --hostfile /etc/volcano/mpiworker.host -np 2 mpi_hello_world > /home/re"""


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("sleep 10s && exit 3", End(10, 3)),
        ("sleep 10s && xxx", End(10, 127)),
        ("sleep 5", End(5, 0)),
        ("sleep 2m", End(120, 0)),
        ("sleep 0.5 && sleep 1", End(1.5, 0)),
        ("sh fake.sh", End(0, 2)),
        ("xxx && sleep 10", End(0, 127)),
        ("xxx; sleep 10", End(10, 0)),
        ("xxx; exit", End(0, 127)),
        ("xxx; exit $?", End(0, 127)),
        ("sleep infinity", None),
        ("exit 1; sleep 10", End(0, 1)),
        ("echo 'CronJob executed at' $(date)", End(0, 0)),
        ("echo 'not; && cut' $(date); exit 1", End(0, 1)),
        ("mkdir -p /var/run/sshd; /usr/sbin/sshd -D;", None),
        (MPI_MASTER, End(5 + FRAMEWORK_S, 0)),
        (TENSORFLOW, End(FRAMEWORK_S, 0)),
        ("", End(0, 0)),
    ],
)
def test_a_script_ends_as_a_shell_would_end_it(script: str, end: End | None) -> None:
    assert end_of_script(script) == end


def test_separators_in_quotes_do_not_cut() -> None:
    assert list(steps("""a '1;2' && b "3 && 4"; c `5;6`\nd 7\\;8""")) == [
        Step("a '1;2'", False),
        Step('b "3 && 4"', True),
        Step("c `5;6`", False),
        Step("d 7\\;8", False),
    ]


def pod(*commands: str, policy: str = "Never") -> dict[str, Any]:
    containers = [
        {"name": f"c{number}", "image": "busybox", **({"command": ["/bin/sh"], "args": ["-c", text]} if text else {})}
        for number, text in enumerate(commands)
    ]
    return {
        "spec": {"restartPolicy": policy, "containers": containers},
        "status": {"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (pod("sleep 1", "sleep 3 && exit 4"), End(3, 4)),
        (pod("exit 2", "sleep 3"), End(3, 2)),
        (pod("sleep 1", ""), None),
        (pod(""), None),
        (pod("sleep 1", policy="OnFailure"), End(1, 0)),
        (pod("exit 1", policy="OnFailure"), None),
        (pod("sleep 1", policy="Always"), None),
    ],
)
def test_a_pod_ends_with_its_last_container_unless_one_continues_or_is_restarted(
    given: dict[str, Any], end: End | None
) -> None:
    assert end_of_pod(given) == end


def test_an_ended_pod_reports_its_exit_code_and_stays_scheduled() -> None:
    status = ended_status(pod("exit 3"), 3, "2026-01-01T00:00:09Z")
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"] == {
        "exitCode": 3,
        "reason": "Error",
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:00:09Z",
    }
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "PodScheduled": "True",
        "ContainersReady": "False",
        "Ready": "False",
    }


def spec(state: str, message: str = "", *, text: str = "works", kind: str = "It") -> dict[str, Any]:
    found = {
        "ContainerHierarchyTexts": ["Job ", "Life"] if kind == "It" else None,
        "LeafNodeType": kind,
        "LeafNodeText": text if kind == "It" else "",
        "State": state,
    }
    return {**found, "Failure": {"Message": message}} if message else found


def test_a_report_becomes_a_row() -> None:
    specs = [
        spec("passed", kind="BeforeSuite"),
        spec("passed"),
        spec("passed"),
        spec("failed", "Unexpected error:\n    <*errors.errorString | 0xdf>: \n    too late\n", text="breaks"),
        spec("timedout", text="hangs"),
        spec("skipped", "See issue: #3562"),
        spec("pending"),
        spec("skipped", text="left out by a filter"),
    ]
    tally = read_report("jobp", [{"SpecReports": specs, "RunTime": 90 * 10**9}])
    assert tally.row() == ["jobp", "6", "2", "2", "2", "1.5 min"]
    assert tally.failed == (Failure("Job Life breaks", "too late"), Failure("Job Life hangs", "timedout"))


def test_a_failed_setup_of_the_whole_suite_is_a_failure() -> None:
    report = [{"SpecReports": [spec("failed", "no cluster", kind="BeforeSuite")], "RunTime": 0}]
    assert read_report("jobp", report).failed == (Failure("BeforeSuite", "no cluster"),)


def test_a_suite_without_cases_has_an_empty_row() -> None:
    assert read_report("jobp", [{"SpecReports": None, "RunTime": 0}]).row()[1:5] == ["0", "0", "0", "0"]


def test_progress_is_read_from_the_output() -> None:
    output = (
        "Will run 17 of 30 specs\n---\nJob works\n• [1.2 seconds]\n---\n• [FAILED] [3.4 seconds]\nS [SKIPPED] [0.1 s]\n"
    )
    assert progress_of(output) == "3 of 17 cases, 1 failed"
    assert progress_of("") == "0 cases"


def test_an_unknown_package_is_rejected_with_a_list_of_known_ones() -> None:
    with pytest.raises(BedError, match="unknown package 'jobq' of the suite; choose from admission, jobp"):
        check_packages(["jobp", "jobq"])
    assert check_packages([]) == list(PACKAGES)
    assert check_packages(["jobp", "jobp"]) == ["jobp"]
