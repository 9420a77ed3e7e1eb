"""Configuration: all mistakes at once, each with its field, its value and the expected one."""

from pathlib import Path

import pytest

from baton.errors import UsageError
from baton.lock.config import Rule, load
from baton.lock.core.events import Measure, Priority


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lockd.yaml"
    path.write_text(
        "control_group: gpu-admins\nsettings: {measure: kill, switch_share: 0.1}\n"
        "rules:\n- {namespace: 'team-*', weight: 2, priority: high}\n"
    )
    config = load(path)
    assert config.settings.measure is Measure.KILL
    rule = config.rules[0]
    assert rule.terms().priority is Priority.HIGH
    assert rule.matches(tenant="x", namespace="team-a", pod="p", pod_uid="", uid=5)
    assert not rule.matches(tenant="x", namespace="other", pod="p", pod_uid="", uid=5)


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "lockd.yaml"
    path.write_text(
        "settings: {min_quantum_s: -1, switch_share: 2, fits_below: 0.99, full_above: 0.5}\n"
        "rules:\n- {weight: 0}\n- {priority: urgent, cores_percent: 120}\n"
    )
    with pytest.raises(UsageError) as caught:
        load(path)
    sentence = str(caught.value)
    for part in (
        "settings.min_quantum_s is -1.0, expected a number above 0",
        "settings.switch_share is 2.0, expected a share above 0 and at most 1",
        "settings.fits_below is above settings.full_above",
        "rules[0].weight is 0.0",
        "rules[1].priority is 'urgent', expected one of low, normal, high",
        "rules[1].cores_percent is 120.0",
    ):
        assert part in sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("settings: {quantums: 3}", "quantums"),
        ("settings: [", "not valid YAML"),
        ("- 1", "Expected `object`"),
        ("rules: [{uid: root}]", "rules[0].uid"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_position(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "lockd.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_pod_is_recognised_by_its_cgroup_uid() -> None:
    rule = Rule(pod_uid="11111111-2222-3333-4444-555555555555", cores_percent=10)
    assert rule.matches(tenant="", namespace="", pod="", pod_uid="11111111-2222-3333-4444-555555555555", uid=0)
    assert not rule.matches(tenant="", namespace="", pod="", pod_uid="", uid=0)
