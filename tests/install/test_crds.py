"""The custom resources' source and the manifests for kubectl are the same objects."""

from pathlib import Path

import yaml

from baton.install.crds import definitions

MANIFESTS = Path(__file__).parents[2] / "deploy" / "crds" / "crds.yaml"


def test_the_manifests_are_what_the_source_says() -> None:
    assert list(yaml.safe_load_all(MANIFESTS.read_text())) == definitions(), "run `make manifests`"
