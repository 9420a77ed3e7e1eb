"""volcano-scheduler.conf is read verbatim; all problems are reported at once, each with its path."""

import pytest

from baton.engine.configuration import Configuration, ConfigurationError
from baton.engine.plugins.places.binpack import BinpackArguments
from baton.engine.plugins.places.deviceshare import DeviceShareArguments
from baton.engine.presets import PRESETS, configured

VOLCANO_HELM_DEFAULT = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""

EVERYTHING = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: priority
    enabledVictim: "true"
  - name: gang
    enableJobReady: "false"
- plugins:
  - name: binpack
    arguments:
      binpack.weight: 10
      binpack.cpu: 5
      binpack.resources: nvidia.com/gpu, example.com/foo
      binpack.resources.nvidia.com/gpu: 2
  - name: deviceshare
    arguments:
      deviceshare.VGPUEnable: "true"
      deviceshare.SchedulePolicy: binpack
  - name: tdm
    arguments:
      tdm.revocable-zone.rz1: 10:00-21:00
      tdm.evict.period: 1m
  - name: numa-aware
configurations:
- name: preempt
  arguments:
    enableTopologyAwarePreemption: true
metrics:
  type: prometheus
  address: http://192.0.2.1:9090
"""


def options(configuration: Configuration) -> dict[str, object]:
    return {option.name: option.arguments for tier in configuration.tiers for option in tier}


def test_the_chart_default_is_accepted() -> None:
    configuration = configured(VOLCANO_HELM_DEFAULT)
    assert configuration.actions == ("enqueue", "allocate", "backfill")
    assert configuration.tiers[0][1].flags == {"enablePreemptable": False}
    assert configuration.warnings == ()


def test_arguments_flags_and_families() -> None:
    configuration = configured(EVERYTHING)
    binpack = options(configuration)["binpack"]
    assert isinstance(binpack, BinpackArguments)
    assert (binpack.weight, binpack.cpu, binpack.memory) == (10, 5, 1)
    assert binpack.by_resource == {"nvidia.com/gpu": 2}
    deviceshare = options(configuration)["deviceshare"]
    assert isinstance(deviceshare, DeviceShareArguments)
    assert deviceshare.vgpu
    assert configuration.tiers[0][1].flags == {"enableJobReady": False}
    assert configuration.action_arguments == {"preempt": {"enableTopologyAwarePreemption": True}}
    assert [warning for warning in configuration.warnings if "numa-aware" in warning]


def test_all_problems_are_reported_at_once_with_path_and_suggestion() -> None:
    with pytest.raises(ConfigurationError) as caught:
        configured(
            """
actions: "enqueue, alocate"
tiers:
- plugins:
  - name: gang
    enableJobOrder: perhaps
  - name: overcommit
    arguments: {overcommit-factor: 0.5}
- plugins:
  - name: binpack
    arguments: {binpack.weight: heavy}
  - name: deviceshare
    arguments: {deviceshare.GPUSharingEnable: true, deviceshare.VGPUEnable: true}
  - name: gang
"""
        )
    problems = caught.value.problems
    expected = [
        ("actions[1]", "did you mean 'allocate'"),
        ("tiers[0].plugins[0].enableJobOrder", "true or false"),
        ("tiers[0].plugins[1].arguments.overcommit-factor", "0.5"),
        ("tiers[1].plugins[0].arguments.binpack.weight", "heavy"),
        ("tiers[1].plugins[1].arguments", "legacy sharing"),
        ("tiers[1].plugins[2].name", "already configured at tiers[0].plugins[0]"),
    ]
    assert len(problems) == len(expected)
    for problem, parts in zip(problems, expected, strict=True):
        for part in parts:
            assert part in problem


def test_settings_that_volcano_ignores_are_warnings_with_a_suggestion() -> None:
    configuration = configured(
        'actions: "allocate"\ntiers:\n- plugins:\n  - {name: gangg}\n'
        "  - {name: binpack, enableJobOrdr: true, arguments: {binpack.wieght: 3}}\n"
    )
    text = "\n".join(configuration.warnings)
    for guess in ("did you mean 'gang'?", "did you mean 'enableJobOrder'?", "did you mean 'binpack.weight'?"):
        assert guess in text


@pytest.mark.parametrize(
    "text",
    ["actions: [", "- just\n- a list", 'actions: ""\ntiers: []', 'actions: "allocate"\ntiers: {plugins: []}'],
)
def test_text_that_is_not_a_configuration_is_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError):
        configured(text)


def test_plugins_that_conflict_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="drf with enableHierarchy and proportion"):
        configured('actions: "allocate"\ntiers:\n- plugins: [{name: drf, enableHierarchy: true}, {name: proportion}]\n')
    with pytest.raises(ConfigurationError, match="proportion and capacity"):
        configured('actions: "allocate"\ntiers:\n- plugins: [{name: capacity}, {name: proportion}]\n')


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_valid_without_a_warning(name: str) -> None:
    assert configured(name).warnings == ()


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="multi-tenant"):
        configured("multitenant")
