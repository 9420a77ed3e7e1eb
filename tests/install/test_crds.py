"""The manifests for kubectl contain the same objects as their source."""

from pathlib import Path

import yaml

from baton.install.crds import definitions

MANIFESTS = Path(__file__).parents[2] / "deploy" / "crds" / "crds.yaml"


def test_the_manifests_match_their_source() -> None:
    assert list(yaml.safe_load_all(MANIFESTS.read_text())) == definitions(), "run `make manifests`"
