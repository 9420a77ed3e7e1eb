"""How profiles are turned into a machine."""

import re
from pathlib import Path

import pytest

from baton.errors import UsageError
from baton.gpu import profiles, simulated
from baton.gpu.profiles import Profile

ROOT = Path(__file__).resolve().parents[2]


def card_settings(
    *cards: Profile, directory: str = "/machine", time_scale: float | None = None
) -> list[dict[str, str]]:
    """The settings of each card, by setting name."""
    found: list[dict[str, str]] = [{} for _ in cards]
    for line in simulated.settings(cards, Path(directory), time_scale)[1:]:
        card, _, rest = line.partition(".")
        key, _, value = rest.partition("=")
        found[int(card)][key] = value
    return found


def changed(base: str, changes: str) -> Profile:
    return profiles.parse(f"extends: {base}\n{changes}", "test", "test")


def test_links_are_shared_evenly_between_the_peers_of_a_group() -> None:
    card = changed("a100-80", "nvlink_groups: [[0, 1, 2]]")
    first, second, third, outsider = card_settings(card, card, card, card)
    assert first["nvlink_peer"] == ",".join(["1"] * 6 + ["2"] * 6)
    assert second["nvlink_peer"] == ",".join(["0"] * 6 + ["2"] * 6)
    assert third["nvlink_peer"] == ",".join(["0"] * 6 + ["1"] * 6)
    assert outsider["nvlink_peer"] == ",".join(["-1"] * 12)


def test_links_that_cannot_be_shared_evenly_lead_nowhere() -> None:
    card = changed("a100-80", "nvlink: {links: 5}\nnvlink_groups: [[0, 1, 2]]")
    assert card_settings(card, card, card)[0]["nvlink_peer"] == "1,1,2,2,-1"


def test_a_group_cannot_name_a_card_that_does_not_exist() -> None:
    card = changed("a100-80", "nvlink_groups: [[0, 4]]")
    with pytest.raises(UsageError, match="nvlink_groups names card 4, but the machine has cards 0 to 1"):
        card_settings(card, card)


def test_numa_nodes_repeat_cyclically() -> None:
    card = changed("t4", "numa_nodes: [0, 1]")
    assert [settings["numa_node"] for settings in card_settings(card, card, card)] == ["0", "1", "0"]


def test_identities_depend_only_on_the_directory_and_the_index() -> None:
    here = [settings["uuid"] for settings in card_settings(profiles.find("t4"), profiles.find("t4"))]
    again = [settings["uuid"] for settings in card_settings(profiles.find("h100"), profiles.find("l4"))]
    there = [settings["uuid"] for settings in card_settings(profiles.find("t4"), directory="/elsewhere")]
    assert here == again
    assert len({*here, *there}) == 3


def test_a_time_scale_for_the_machine_overrides_the_profiles() -> None:
    card = changed("t4", "time_scale: 5")
    assert card_settings(card)[0]["time_scale"] == "5.0"
    assert card_settings(card, time_scale=20)[0]["time_scale"] == "20"


def test_the_shipped_p100_matches_the_calibrated_card() -> None:
    """The calibration uses the C code's default card; the profile must stay identical to it."""
    source = (ROOT / "native" / "simgpu" / "machine_settings.c").read_text()
    shipped = card_settings(profiles.find("p100-16"))[0]
    for key in ("memory_bytes_per_s", "link_bytes_per_s", "paging_bytes_per_s", "sm_count", "threads_per_sm"):
        default = re.search(rf"\.{key} = ([0-9.e]+)", source)
        assert default is not None
        assert float(shipped[key]) == float(default.group(1)), key
    assert int(shipped["memory_bytes"]) == 16384 << 20
    assert ".memory_bytes = 16384 * SIMGPU_MIB" in source
