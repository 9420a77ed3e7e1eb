"""What cluster tests install before they start."""

import functools

from baton.install.apply import FIELD_MANAGER
from baton.install.crds import definitions
from testbed.bed import Bed

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_crds(bed: Bed) -> None:
    """Volcano's kinds, served when this returns. Installing them again does nothing, so every test file may ask."""
    manifests = definitions()
    for manifest in manifests:
        path = f"{_CRDS}/{manifest['metadata']['name']}?fieldManager={FIELD_MANAGER}&force=true"
        bed.api.call("PATCH", path, manifest, content_type="application/apply-patch+yaml")
    for manifest in manifests:
        name, spec = manifest["metadata"]["name"], manifest["spec"]

        bed.wait_for(functools.partial(_established, bed, name), f"{name} to be established")
        collection = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        bed.wait_for(functools.partial(bed.api.exists, collection), f"{name} to be served")


def _established(bed: Bed, name: str) -> bool:
    conditions = bed.api.get(f"{_CRDS}/{name}").get("status", {}).get("conditions", [])
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
