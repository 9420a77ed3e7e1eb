"""Predicted durations: the mean of the last two similar runs, corrected upwards, never a reason to stop a job."""

from baton.engine.history import DurationHistory, history_key
from baton.model.ids import GroupKey


def test_the_mean_of_the_last_two_runs() -> None:
    history = DurationHistory()
    for number, duration_s in enumerate((1000.0, 100.0, 200.0)):
        history.finished(GroupKey(f"team/train-bert-{number}"), 1000, duration_s)
    assert history.predict_s(GroupKey("team/train-bert-99"), 1000) == 150.0


def test_unknown_jobs_fall_back_to_their_namespace_and_then_to_nothing() -> None:
    history = DurationHistory()
    history.finished(GroupKey("team/a-1"), 1000, 60.0)
    assert history.predict_s(GroupKey("team/other"), 8000) == 60.0
    assert history.predict_s(GroupKey("elsewhere/a-1"), 1000) is None


def test_the_prediction_grows_when_a_job_exceeds_it() -> None:
    history = DurationHistory()
    history.finished(GroupKey("team/a-1"), 1000, 60.0)
    assert history.predict_s(GroupKey("team/a-2"), 1000, running_s=100.0) == 120.0


def test_serial_numbers_and_hashes_do_not_distinguish_jobs() -> None:
    keys = {history_key(GroupKey(f"team/{name}"), 0) for name in ("train-1", "train-27", "train-6f9c1b2d")}
    assert len(keys) == 1


def test_old_kinds_are_forgotten() -> None:
    history = DurationHistory(kinds_kept=2)
    for name in ("x", "y", "z"):
        history.finished(GroupKey(f"{name}/job"), 0, 10.0)
    assert history.predict_s(GroupKey("x/job"), 0) is None
    assert history.predict_s(GroupKey("z/job"), 0) == 10.0
