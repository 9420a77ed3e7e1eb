"""A profile file is either valid or rejected with a list of all its mistakes."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import UsageError
from baton.gpu import profiles
from baton.gpu.profiles import ProfileError


def parse(text: str) -> profiles.Profile:
    return profiles.parse(text, "mine.yaml", "mine")


def complaint(text: str) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        parse(text)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("name", ["p100-16", "t4", "l4", "a100-80", "h100", "rtx-4090"])
def test_a_shipped_profile_passes_the_checks_for_users_files(name: str) -> None:
    assert parse(f"extends: {name}\nname: {name}").model == profiles.find(name).model


def test_a_users_file_changes_only_its_own_fields(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "extends: h100\nmemory_mib: 1024\npower: {idle_w: 30}\nnuma_nodes: [0, 1]\nnvlink_groups: [[0, 1]]\n"
    )
    small, h100 = profiles.find(str(path)), profiles.find("h100")
    assert small.name == "small"
    assert small.memory_mib == 1024
    assert small.power.idle_w == 30
    assert small.power.limit_w == h100.power.limit_w
    assert small.numa_nodes == (0, 1)
    assert small.nvlink_groups == ((0, 1),)
    assert small.sms == h100.sms


def test_all_mistakes_are_reported_at_once_with_lines_and_hints() -> None:
    text = """\
extends: a100-8
memry_mib: 5
sms: many
brand: quadro
power:
  idle_w: -3
  limt_w: 4
clocks: {idle_mhz: 2000}
nvlink_groups: [[0], [1, 2]]
time_scale: 0
numa_nodes: []
"""
    assert complaint(text) == [
        "the profile mine.yaml has 10 mistakes:",
        "  line 1: extends is 'a100-8'; did you mean 'a100-80'?",
        "  line 2: memry_mib is no field of a profile; did you mean 'memory_mib'?",
        "  line 3: sms is 'many'; expected an integer",
        "  line 4: brand is 'quadro'; expected one of tesla, geforce, nvidia",
        "  line 6: power.idle_w is -3; expected a number > 0.0",
        "  line 7: power.limt_w is no field of a profile; did you mean 'limit_w'?",
        "  line 8: clocks.idle_mhz is 2000; expected at most base_mhz, which is 1275",
        "  line 9: nvlink_groups.0 is [0]; expected at least two different card indices",
        "  line 10: time_scale is 0; expected a number > 0.0",
        "  line 11: numa_nodes is []; expected a list of length >= 1",
    ]


def test_a_file_without_a_base_is_rejected_with_the_missing_fields() -> None:
    told = complaint("memory_mib: 1024\n")
    assert {f"  {field} is missing" for field in ("model", "sms", "compute_capability", "clocks", "power")} <= set(told)


def test_a_card_cannot_be_in_two_nvlink_groups() -> None:
    told = complaint("extends: h100\nnvlink_groups: [[0, 1], [1, 2]]\n")
    assert told[1:] == ["  line 2: nvlink_groups.1 names card 1, which is in another group already"]


def test_nvlink_groups_need_cards_with_nvlink() -> None:
    told = complaint("extends: t4\nnvlink_groups: [[0, 1]]\n")
    assert told[1:] == ["  line 2: nvlink_groups needs the section `nvlink` with version, links and link_gb_s"]


def test_a_capability_may_be_written_without_quotes() -> None:
    assert parse("extends: t4\ncompute_capability: 8.9\n").compute_capability_pair == (8, 9)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1", "the profile mine.yaml is not YAML: line 1: "),
        ("just text", "the profile mine.yaml must be a mapping of fields, as in `extends: a100-80`"),
        ("extends: h100\npower: &p {idle_w: *p}", "the profile mine.yaml refers to itself with an anchor"),
        ("", "the profile mine.yaml must be a mapping of fields, as in `extends: a100-80`"),
    ],
)
def test_a_document_that_is_not_a_mapping_is_rejected_in_one_sentence(text: str, told: str) -> None:
    assert complaint(text)[0].startswith(told)


def test_a_model_cannot_inject_other_settings() -> None:
    told = complaint('extends: h100\nmodel: "H100\\n0.memory_bytes=1"\n')
    assert told[1].endswith("expected 1 to 63 printable ASCII characters")


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="no profile 'h10'; did you mean 'h100'"):
        profiles.find("h10")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"gone\.yaml cannot be read: No such file or directory"):
        profiles.find(str(tmp_path / "gone.yaml"))


FIELDS = st.sampled_from([field.name for field in msgspec.structs.fields(profiles.Profile)])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.dates()
    | st.sampled_from(["tesla", "8.9", "1.0", 8.9]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(FIELDS | st.just("extends") | st.integers() | st.text(max_size=6), VALUES, max_size=6)


@given(DOCUMENTS, st.sampled_from(["h100", "t4", None]))
def test_any_document_is_a_profile_or_one_error(document: dict[Any, Any], base: str | None) -> None:
    if base is not None:
        document = {"extends": base, **document}
    with contextlib.suppress(ProfileError):
        profile = parse(yaml.safe_dump(document, allow_unicode=True))
        assert profile.memory_mib > 0


@given(st.text(max_size=60) | st.binary(max_size=40).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_a_profile_or_one_error(text: str) -> None:
    with contextlib.suppress(ProfileError):
        parse(text)
