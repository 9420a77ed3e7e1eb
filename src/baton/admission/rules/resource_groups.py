"""Groups of pods that an administrator sends to certain nodes or to a certain scheduler.

The file has Volcano's format (`resourceGroups:`). A pod belongs to the first group whose `object` matches: its
namespace, or an annotation `key: value`. Without an `object`, the annotation is `volcano.sh/resource-group` with the
name of the group. Settings of the pod stay: labels and tolerations are added, affinity and scheduler only where the pod
has none.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from baton.admission.findings import Field, Findings, show
from baton.admission.patches import Patches
from baton.errors import BatonError
from baton.model.suggestions import did_you_mean

GROUP_ANNOTATION = "volcano.sh/resource-group"
_KUBERNETES = "default-scheduler"
_KEYS = ("namespace", "annotation")


class ResourceGroupError(BatonError):
    """The configuration cannot be used. The message names the file and the field."""


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pods belong to a group."""

    key: str = "annotation"
    value: tuple[str, ...] = ()


class ResourceGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One group and the settings for its pods."""

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
        content = _given(yaml.safe_load(path.read_text()) or {})
    except OSError as error:
        raise ResourceGroupError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ResourceGroupError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if mistakes := _mistakes(content):
        raise ResourceGroupError(f"{path}: {'; '.join(mistakes)}")
    return msgspec.convert(content, _Configuration).resource_groups or ()


def _given(value: Any) -> Any:
    """Without empty values, which mean nothing, and with all keys as text, which YAML does not require."""
    if isinstance(value, dict):
        return {str(key): _given(inner) for key, inner in value.items() if inner is not None}
    return [_given(inner) for inner in value if inner is not None] if isinstance(value, list) else value


def _mistakes(content: Any) -> list[str]:
    """All mistakes in the content of a file: the field, its value, and what is expected."""
    if not isinstance(content, dict):
        return [f"it holds {show(content)}, expected `resourceGroups:` and a list of groups"]
    findings, mistakes = Findings(), _unknown(Field("", content), _Configuration)
    for group in Field("", content)["resourceGroups"].items(findings):
        if not isinstance(group.value, dict):
            mistakes.append(
                f"{group.path} is {show(group.value)}, expected a group: `resourceGroup:` and the settings for its pods"
            )
            continue
        mistakes += _unknown(group, ResourceGroup)
        if not group["resourceGroup"].text(findings):
            mistakes.append(
                f"{group.path}.resourceGroup is {show(group['resourceGroup'].value)}, expected the group's name"
            )
        group["schedulerName"].text(findings)
        for toleration in group["tolerations"].items(findings):
            toleration.mapping(findings)
        for _, label in group["labels"].fields(findings):
            label.text(findings)
        mistakes += _mistakes_of_match(group["object"], findings)
        if not _is_affinity(group["affinity"].value):
            shown = show(group["affinity"].value)
            mistakes.append(f"{group.path}.affinity is {shown}, expected an affinity as in a pod (`nodeAffinity:` …)")
    return [*(finding.sentence for finding in findings.refusals), *mistakes]


def _mistakes_of_match(match: Field, findings: Findings) -> list[str]:
    match.mapping(findings)
    match["value"].texts(findings)
    mistakes = _unknown(match, Match)
    if match["key"] and match["key"].value not in _KEYS:
        mistakes.append(f"{match['key'].path} is {show(match['key'].value)}, expected {' or '.join(_KEYS)}")
    return mistakes


def _unknown(field: Field, kind: type[msgspec.Struct]) -> list[str]:
    """Unknown names in a mapping. Most are misspelt."""
    known = [each.encode_name for each in msgspec.structs.fields(kind)]
    mistakes = []
    for key in field.value if isinstance(field.value, dict) else ():
        if key not in known:
            hint = did_you_mean(key, known, lead="; ")
            mistakes.append(f"{field[key].path} is not known; the fields are {', '.join(known)}{hint}")
    return mistakes


def _is_affinity(value: Any) -> bool:
    try:
        return value is None or isinstance(yaml.safe_load(value) if isinstance(value, str) else value, dict)
    except yaml.YAMLError:
        return False


def default_pod(pod: Mapping[str, Any], namespace: str, groups: tuple[ResourceGroup, ...]) -> Patches:
    """The settings that a pod gets from its group."""
    patches = Patches()
    ignored = Findings()
    root = Field("", pod)
    annotations = root["metadata"]["annotations"].mapping(ignored)
    group = next((one for one in groups if one.fits(namespace, annotations)), None)
    if group is None:
        return patches
    spec = root["spec"].mapping(ignored)
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
