"""Reading traces: each format once, and every mistake in a file."""

import gzip
from pathlib import Path

import pytest

from baton.errors import BatonError, UsageError
from baton.sim.traces.readers import format_jobs, read_jobs, read_nodes, split_gang
from baton.sim.traces.synthetic import SyntheticSettings, generate
from baton.sim.traces.workload import Skipped, TraceJob, TraceNode, total_cards, uniform_cluster


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_openb_pods(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "pods.csv",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "a,12000,16384,1,460,V100M16|T4,LS,Running,100,160,101\n"
        "b,4000,8192,0,0,,BE,Running,200,200,\n",
    )
    assert read_jobs(path).jobs == (
        TraceJob(
            name="a",
            submit_s=100,
            duration_s=60,
            cards=1,
            milli=460,
            cpu_milli=12000,
            memory_mib=16384,
            models=("T4", "V100M16"),
            tenant="LS",
            queue="LS",
            utilisation=0.46,
        ),
        TraceJob(
            name="b",
            submit_s=200,
            duration_s=1,
            cards=0,
            milli=0,
            cpu_milli=4000,
            memory_mib=8192,
            tenant="BE",
            queue="BE",
        ),
    )


def test_openb_pods_of_five_columns_have_no_times(tmp_path: Path) -> None:
    path = file(tmp_path, "pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1,2,1000\n")
    (job,) = read_jobs(path).jobs
    assert (job.duration_s, job.cards, job.milli) == (None, 2, 1000)


def test_philly_jobs_become_gangs_of_whole_nodes(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "philly.csv",
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-09-04 10:30:41,100.0,16,1600.0,7f04ca\n"
        "2017-09-04 10:30:40,50.0,1,50.0,6214e9\n",
    )
    first, second = read_jobs(path).jobs
    assert (first.name, first.tenant, first.tasks, first.cards) == ("philly-00002", "6214e9", 1, 1)
    assert (second.tasks, second.cards, second.submit_s - first.submit_s) == (2, 8, 1.0)


def test_muri_and_tiresias(tmp_path: Path) -> None:
    muri = file(
        tmp_path,
        "muri.csv",
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
        "resource_time_0,resource_time_1,resource_time_2,priority\n"
        "0,8,1500,10956,gpt2,4,5095000,91000,400,0.6,300,49,2\n",
    )
    (job,) = read_jobs(muri).jobs
    assert (job.submit_s, job.duration_s, job.cards, job.priority, job.utilisation) == (1.5, 5095.0, 8, 2, 0.75)
    tiresias = file(
        tmp_path,
        "60.csv",
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n7,4,30,133,vgg11,147,23\n",
    )
    (job,) = read_jobs(tiresias).jobs
    assert (job.name, job.submit_s, job.duration_s, job.cards) == ("tiresias-7", 30, 147, 4)


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.jsonl", "jobs.csv.gz"])
def test_batons_own_format_survives_a_round_trip(tmp_path: Path, name: str) -> None:
    jobs = generate(SyntheticSettings(jobs=50, fractions=0.3))
    data = format_jobs(jobs, json_lines=".jsonl" in name)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read_jobs(tmp_path / name).jobs == jobs


def test_nodes(tmp_path: Path) -> None:
    openb = file(tmp_path, "openb.csv", "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\n")
    expected = TraceNode(name="n1", cards=2, cpu_milli=64000, memory_mib=262144, model="P100")
    assert read_nodes(openb) == ((expected,), ())
    own = file(tmp_path, "own.csv", "name,cards\nn1,4\nn2,-1\n")
    nodes, skipped = read_nodes(own)
    assert [node.cards for node in nodes] == [4]
    assert skipped == (Skipped(3, "cards is -1, expected at least 0"),)


OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\ngood,1,1,1,1000\n"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,x,1,1,1000", "cpu_milli is 'x', expected a number"),
        ("a,nan,1,1,1000", "cpu_milli is 'nan', expected a finite number"),
        ("a,1,1,-1,1000", "num_gpu is '-1', expected at least 0"),
        ("a,1,1,1.5,1000", "num_gpu is '1.5', expected a whole number"),
        ("a,1,1,1,1001", "gpu_milli is '1001', expected at most 1000"),
        ("a,1,1,1,0", "gpu_milli is '0', expected at least 1"),
        ("a,1,1,2,500", "gpu_milli is '500', expected 1000 when num_gpu is 2"),
        ("a,1,1", "the row has 3 columns and the header 5"),
        ("good,1,1,1,1000", "name is 'good', expected a name that no earlier row uses"),
    ],
)
def test_an_invalid_row_is_skipped_and_reported(tmp_path: Path, row: str, reason: str) -> None:
    trace = read_jobs(file(tmp_path, "t.csv", f"{OPENB}{row}\n"))
    assert [job.name for job in trace.jobs] == ["good"]
    assert trace.skipped == (Skipped(3, reason),)
    assert f"1 jobs, 1 rows skipped (first: line 3, {reason})" in trace.report()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"name": "a", "milli": 0}', "milli is 0, expected 1 to 1000"),
        ('{"name": "a", "duration_s": 0}', "duration_s is 0.0, expected a finite number above 0"),
        ('{"name": "a", "tasks": 0}', "tasks is 0, expected at least 1"),
        ('{"name": "a", "cards": 2, "milli": 500}', "milli is 500, expected 1000 when cards is 2"),
        ('{"name": "a", "utilisation": 2}', "utilisation is 2.0, expected 0 to 1"),
        ('{"name": "a", "cards": "two"}', "cards is 'two', expected `int`, got `str`"),
        ('{"name": ""}', "invalid row: object missing required field `name`"),
        ('{"name": "a", "gpu": 1}', "invalid row: object contains unknown field `gpu`"),
        ("{", "not JSON"),
        ("[1]", "expected an object, got '[1]'"),
    ],
)
def test_an_invalid_line_of_batons_own_format_is_skipped_and_reported(tmp_path: Path, line: str, reason: str) -> None:
    trace = read_jobs(file(tmp_path, "t.jsonl", f'{{"name": "good"}}\n\n{line}\n'))
    assert [job.name for job in trace.jobs] == ["good"]
    (skipped,) = trace.skipped
    assert skipped.line == 3
    assert reason in skipped.reason


def test_unusable_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(BatonError, match="cannot be opened: No such file"):
        read_jobs(tmp_path / "none.csv")
    with pytest.raises(BatonError, match="is empty; expected a header"):
        read_jobs(file(tmp_path, "empty.csv", ""))
    with pytest.raises(BatonError, match=r"line 1: the columns a, b match no known format \(openb: cpu_milli"):
        read_jobs(file(tmp_path, "strange.csv", "a,b\n1,2\n"))
    with pytest.raises(BatonError, match=r"line 1: no field 'dration_s' in a baton trace; did you mean 'duration_s'\?"):
        read_jobs(file(tmp_path, "typo.csv", "name,dration_s\na,1\n"))
    with pytest.raises(BatonError, match="no usable row; first of 1 invalid rows: line 2, duration is '0'"):
        read_jobs(file(tmp_path, "bad.csv", "timestamp,duration,num_gpus,cluster\n2017-09-04 10:30:41,0,1,x\n"))
    with pytest.raises(BatonError, match="not a philly trace, the header lacks cluster, duration"):
        read_jobs(file(tmp_path, "t.csv", OPENB), form="philly")
    with pytest.raises(UsageError, match="no trace format 'phily'; there are openb, philly"):
        read_jobs(file(tmp_path, "t.csv", OPENB), form="phily")


def test_corrupt_bytes_are_an_error_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(OPENB.encode() * 100)[:60])
    (tmp_path / "latin.csv").write_bytes(b"name\n\xff\xfe\n")
    (tmp_path / "plain.csv.gz").write_text(OPENB)
    for name in ("cut.csv.gz", "latin.csv", "plain.csv.gz"):
        with pytest.raises(BatonError, match="cannot be read to its end"):
            read_jobs(tmp_path / name)


@pytest.mark.parametrize(
    ("gpus", "shape"), [(1, (1, 1)), (8, (1, 8)), (16, (2, 8)), (12, (2, 6)), (7, (1, 7)), (11, (11, 1))]
)
def test_gangs_are_cut_into_as_few_equal_tasks_as_nodes_allow(gpus: int, shape: tuple[int, int]) -> None:
    assert split_gang(gpus, 8) == shape


def test_a_uniform_cluster_has_the_requested_cards() -> None:
    nodes = uniform_cluster(20, cards_per_node=8)
    assert [node.cards for node in nodes] == [8, 8, 4]
    assert total_cards(nodes) == 20


def test_a_generated_trace_follows_its_seed_and_its_load() -> None:
    settings = SyntheticSettings(jobs=2000, gpus=64, load=1.5, fractions=0.5)
    jobs = generate(settings)
    assert jobs == generate(settings)
    assert jobs != generate(SyntheticSettings(jobs=2000, gpus=64, load=1.5, fractions=0.5, seed=43))
    demand_s = sum(job.gpus * (job.duration_s or 0) for job in jobs)
    assert demand_s / (64 * jobs[-1].submit_s) == pytest.approx(1.5, rel=0.05)
    assert 0.3 < sum(job.milli < 1000 for job in jobs) / len(jobs) < 0.6


def test_every_invalid_setting_of_a_generated_trace_is_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"load is 0, expected more than 0; fractions is 2, expected 0 to 1"):
        generate(SyntheticSettings(load=0, fractions=2))
