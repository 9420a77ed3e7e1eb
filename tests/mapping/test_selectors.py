"""Selectors, affinities and spread constraints in the engine's terms."""

from baton.mapping import selectors
from baton.mapping.pods import PodWords
from baton.model import core
from tests.mapping.objects import pod


def test_a_selector_that_is_absent_selects_nothing_and_an_empty_one_everything() -> None:
    assert not selectors.label_selector(None).matches({"a": "b"})
    assert selectors.label_selector(core.LabelSelector()).matches({"a": "b"})


def test_affinity_and_spread_follow_the_pods_own_labels() -> None:
    spec = {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "x"}}, "matchLabelKeys": ["rev"]}
                ]
            }
        },
        "topologySpreadConstraints": [
            {
                "topologyKey": "zone",
                "maxSkew": 2,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            }
        ],
    }
    found = PodWords().translate(pod(spec, labels={"app": "x", "rev": "3"})).spec
    assert found.anti_affinity[0].selector.labels == (("app", "x"), ("rev", "3"))
    assert (found.spread[0].max_skew, found.spread[0].required) == (2, False)
