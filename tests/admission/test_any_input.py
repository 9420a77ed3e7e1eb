"""Every input gets a verdict: objects arrive before their types are checked."""

import contextlib
import copy
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.admission.rules.resource_groups import ResourceGroupError, read_groups
from tests.admission.cases import CASES, Case
from tests.admission.test_refusals import GOOD, review
from tests.volcano_jobs import Object

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    max_leaves=4,
)
GROUP = {
    "resourceGroup": "gpu",
    "object": {"key": "namespace", "value": ["a"]},
    "schedulerName": "volcano",
    "tolerations": [{"key": "gpu"}],
    "labels": {"node": "gpu"},
    "affinity": "nodeAffinity: {}",
}
OBJECTS = [*GOOD, *(case.manifest for case in CASES if not case.delete)]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in the object whose value could be replaced; kind and name stay."""
    found = [path] if path and path[0] not in ("kind", "apiVersion") and path != ("metadata",) else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            found += places(inner, (*path, place))
    return [each for each in found if each != ("metadata", "name")]


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_value_of_any_type_at_any_place_gets_a_verdict(data: st.DataObject) -> None:
    manifest: Object = copy.deepcopy(data.draw(st.sampled_from(OBJECTS)))
    *parents, last = data.draw(st.sampled_from(places(manifest)))
    place: Any = manifest
    for key in parents:
        place = place[key]
    place[last] = data.draw(JSON)
    verdict = review(Case("any", manifest))
    assert verdict.allowed or verdict.findings.message()
    changed = review(Case("any", manifest, before=data.draw(st.sampled_from(OBJECTS))))
    assert changed.allowed or changed.findings.message()


def test_the_name_of_a_variable_may_be_of_any_type_too() -> None:
    """A list cannot be looked up in a set of names."""
    limits = {"nvshare.com/gpu": 1}
    main = {"name": "main", "image": "busybox", "env": [{"name": [], "value": "0"}], "resources": {"limits": limits}}
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod"},
        "spec": {"schedulerName": "volcano", "containers": [main]},
    }
    assert review(Case("any", pod)).allowed


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_file_of_resource_groups_gives_groups_or_a_sentence(data: st.DataObject) -> None:
    content: Object = copy.deepcopy({"resourceGroups": [GROUP]})
    *parents, last = data.draw(st.sampled_from(places(content)))
    place: Any = content
    for key in parents:
        place = place[key]
    place[last] = data.draw(JSON)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "groups.yaml")
        path.write_text(json.dumps(content))
        with contextlib.suppress(ResourceGroupError):
            for group in read_groups(path):
                group.fits("a", {})
