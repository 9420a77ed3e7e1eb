"""A configuration that changes while the scheduler runs: what is in force, what is refused, and who hears of it."""

from pathlib import Path

import pytest

from baton.engine.configuration import Configuration, ConfigurationError
from baton.errors import UsageError
from baton.kube.objects import ObjectReference
from baton.kube.scheduler.metrics import Metrics
from baton.kube.scheduler.reload import ConfigMapName, LiveConfiguration

GOOD = 'actions: "enqueue, allocate"\ntiers:\n- plugins: [{name: gang}]\n'
ABOUT = ObjectReference(kind="ConfigMap", name="c")


class Listener:
    def __init__(self, live: LiveConfiguration) -> None:
        self.changes: list[Configuration] = []
        self.said: list[tuple[str, str]] = []
        live.changed = self.changes.append
        live.tell = lambda _about, reason, message, _warning: self.said.append((reason, message))


@pytest.fixture
def live() -> LiveConfiguration:
    return LiveConfiguration(Metrics())


def test_a_good_text_is_in_force_at_once(live: LiveConfiguration) -> None:
    listener = Listener(live)
    live.take(GOOD, ABOUT)
    assert [change.actions for change in listener.changes] == [("enqueue", "allocate")]
    assert (live.text, live.problem) == (GOOD, "")


def test_a_bad_text_is_refused_with_all_its_mistakes_and_the_one_before_stays(live: LiveConfiguration) -> None:
    listener = Listener(live)
    live.take(GOOD, ABOUT)
    before = live.current
    live.take('actions: "enqueu"\ntiers: 3\n', ABOUT)
    assert live.current is before
    assert live.text == GOOD
    assert len(listener.changes) == 1
    reason, message = listener.said[-1]
    assert reason == "ConfigurationRefused"
    assert "did you mean enqueue?" in message
    assert "expected a list" in message


def test_the_same_text_again_is_no_news(live: LiveConfiguration) -> None:
    listener = Listener(live)
    live.take(GOOD, ABOUT)
    live.take(GOOD, ABOUT)
    assert len(listener.changes) == 1


def test_a_repaired_text_is_taken(live: LiveConfiguration) -> None:
    live.take("tiers: 3\n", ABOUT)
    assert live.problem
    live.take(GOOD, ABOUT)
    assert live.problem == ""


def test_a_file_that_is_wrong_at_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "conf"
    path.write_text("simple")
    with pytest.raises(ConfigurationError, match="expected a mapping"):
        LiveConfiguration(Metrics(), file=path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        LiveConfiguration(Metrics(), file=tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a/b", {"volcano-scheduler.conf": "1", "other.conf": "2"}, "1"),
        ("a/b:other.conf", {"volcano-scheduler.conf": "1", "other.conf": "2"}, "2"),
        ("a/b", {"volcano-scheduler-ci.conf": "3", "note": ""}, "3"),
        ("a/b", {"x.conf": "1", "y.conf": "2"}, None),
        ("a/b:gone.conf", {"volcano-scheduler.conf": "1"}, None),
    ],
)
def test_which_key_of_a_config_map_counts(name: str, data: dict[str, str], text: str | None) -> None:
    assert ConfigMapName(name).text_in(data) == text


def test_a_config_map_without_a_namespace_is_refused() -> None:
    with pytest.raises(UsageError, match="--config-map is 'b', expected namespace/name"):
        ConfigMapName("b")
