"""Groups of pods that an administrator sends to certain nodes or to a certain scheduler.

The file has Volcano's format (`resourceGroups:`). A pod belongs to the first group whose `object` fits: its namespace,
or an annotation `key: value`; without an `object` the annotation is `volcano.sh/resource-group` with the group's name.
What a pod says itself stays: labels and tolerations are added, affinity and scheduler only where it has none.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from baton.errors import BatonError
from baton.jobs.admission.findings import Field, Findings
from baton.jobs.admission.patches import Patches

GROUP_ANNOTATION = "volcano.sh/resource-group"
_KUBERNETES = "default-scheduler"


class ResourceGroupError(BatonError):
    """The configuration cannot be used; the sentence names the file and the field."""


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pods are meant."""

    key: str = "annotation"
    value: tuple[str, ...] = ()


class ResourceGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One group and what its pods get."""

    resource_group: str
    object: Match | None = None
    scheduler_name: str = ""
    tolerations: tuple[dict[str, Any], ...] = ()
    labels: dict[str, str] = {}
    affinity: str | dict[str, Any] | None = None

    def fits(self, namespace: str, annotations: Mapping[str, Any]) -> bool:
        """Whether a pod belongs to the group."""
        if self.object is None:
            return annotations.get(GROUP_ANNOTATION) == self.resource_group
        if self.object.key == "namespace":
            return namespace in self.object.value
        wanted = [entry.partition(":") for entry in self.object.value]
        return any(annotations.get(key.strip()) == value.strip() for key, _, value in wanted)


class _Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    resource_groups: tuple[ResourceGroup, ...] | None = None


def read_groups(path: Path) -> tuple[ResourceGroup, ...]:
    """The groups of a file."""
    try:
        content = yaml.safe_load(path.read_text())
        groups = msgspec.convert(content or {}, _Configuration).resource_groups or ()
    except OSError as error:
        raise ResourceGroupError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ResourceGroupError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        raise ResourceGroupError(f"{path}: {error}") from None
    for place, group in enumerate(groups):
        if group.object is not None and group.object.key not in ("namespace", "annotation"):
            raise ResourceGroupError(
                f"{path}: resourceGroups[{place}].object.key is {group.object.key!r}, expected namespace or annotation"
            )
        if isinstance(group.affinity, str):
            try:
                msgspec.convert(yaml.safe_load(group.affinity), dict[str, Any])
            except (yaml.YAMLError, msgspec.ValidationError):
                raise ResourceGroupError(
                    f"{path}: resourceGroups[{place}].affinity is {group.affinity!r}, expected an affinity as in a pod"
                ) from None
    return groups


def default_pod(pod: Mapping[str, Any], namespace: str, groups: tuple[ResourceGroup, ...]) -> Patches:
    """What the pod's group adds to it."""
    patches = Patches()
    nobody = Findings()
    root = Field("", pod)
    annotations = root["metadata"]["annotations"].mapping(nobody)
    group = next((one for one in groups if one.fits(namespace, annotations)), None)
    if group is None:
        return patches
    spec = root["spec"].mapping(nobody)
    if group.labels:
        patches.set("spec", "nodeSelector", value={**(spec.get("nodeSelector") or {}), **group.labels})
    if group.tolerations:
        patches.set("spec", "tolerations", value=[*(spec.get("tolerations") or []), *group.tolerations])
    if group.affinity and not spec.get("affinity"):
        affinity = yaml.safe_load(group.affinity) if isinstance(group.affinity, str) else group.affinity
        patches.set("spec", "affinity", value=affinity)
    if group.scheduler_name and spec.get("schedulerName") in (None, "", _KUBERNETES):
        patches.set("spec", "schedulerName", value=group.scheduler_name)
    return patches
