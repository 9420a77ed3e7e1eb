"""Builders for schemas, and the parts that several kinds share.

A structural schema is a tree of plain mappings. The builders omit what is not given and require a description for
fields, because `kubectl explain` is the documentation that users always have at hand.
"""

from typing import Any

Schema = dict[str, Any]

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


def mapping(
    description: str = "",
    properties: dict[str, Schema] | None = None,
    *,
    required: tuple[str, ...] = (),
    atomic: bool = False,
) -> Schema:
    """An object with known fields; server-side apply treats an atomic one as a single value."""
    schema: Schema = {"type": "object", "properties": properties or {}}
    if required:
        schema["required"] = list(required)
    if atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    return _described(schema, description)


def table(description: str, values: Schema) -> Schema:
    """An object with arbitrary keys."""
    return _described({"type": "object", "additionalProperties": values}, description)


def series(description: str, items: Schema, *, atomic: bool = False) -> Schema:
    """A list."""
    schema: Schema = {"type": "array", "items": items}
    if atomic:
        schema["x-kubernetes-list-type"] = "atomic"
    return _described(schema, description)


def text(description: str = "", **more: Any) -> Schema:
    """A string; `choices` become an enum."""
    if "choices" in more:
        more["enum"] = list(more.pop("choices"))
    return _described({"type": "string", **more}, description)


def number(description: str = "", minimum: int | None = 0, *, format: str = "int32", **more: Any) -> Schema:  # noqa: A002  # the word of the schema
    """A whole number, by default at least 0."""
    schema: Schema = {"type": "integer", "format": format, **more}
    if minimum is not None:
        schema["minimum"] = minimum
    return _described(schema, description)


def switch(description: str, **more: Any) -> Schema:
    """True or false."""
    return _described({"type": "boolean", **more}, description)


def moment(description: str) -> Schema:
    """A time. Go clients send null for an unset time."""
    return _described({"type": "string", "format": "date-time", "nullable": True}, description)


def quantities(description: str) -> Schema:
    """A Kubernetes ResourceList."""
    amount: Schema = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY_PATTERN,
        "x-kubernetes-int-or-string": True,
    }
    return table(description, amount)


def anything(description: str, properties: dict[str, Schema] | None = None) -> Schema:
    """A Kubernetes object that is preserved as given; only the listed fields are checked."""
    schema: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if properties:
        schema["properties"] = properties
    return _described(schema, description)


def network_topology() -> Schema:
    """The limit on how far apart in the network pods may be placed."""
    return mapping(
        "Limit on how far apart in the network the pods may be placed.",
        {
            "mode": text(
                "Whether the limit is required (hard) or preferred (soft).", choices=("hard", "soft"), default="hard"
            ),
            "highestTierAllowed": {
                "type": "integer",
                "minimum": 0,
                "description": "Highest tier that the pods may span.",
            },
            "highestTierName": text("Name of the highest tier that the pods may span.", maxLength=253),
        },
    )


def label_selector(description: str) -> Schema:
    """A Kubernetes LabelSelector."""
    expression = mapping(
        "",
        {"key": text(), "operator": text(), "values": series("", text(), atomic=True)},
        required=("key", "operator"),
    )
    return mapping(
        description,
        {
            "matchLabels": table("Labels with exact values.", text()),
            "matchExpressions": series("Expressions over labels.", expression, atomic=True),
        },
        atomic=True,
    )


def column(name: str, path: str, type: str = "string", *, wide: bool = False) -> Schema:  # noqa: A002  # the word of the schema
    """A column of `kubectl get`; wide columns appear only with `-o wide`."""
    return {"name": name, "type": type, "jsonPath": path, **({"priority": 1} if wide else {})}


def definition(
    group: str,
    version: str,
    kind: str,
    *,
    description: str,
    properties: dict[str, Schema],
    required: tuple[str, ...] = (),
    short_names: tuple[str, ...] = (),
    columns: tuple[Schema, ...] = (),
    namespaced: bool = True,
    status_subresource: bool = True,
) -> Schema:
    """A CustomResourceDefinition with one version."""
    singular = kind.lower()
    schema = mapping(
        description,
        {
            "apiVersion": text("API version of this object."),
            "kind": text("Kind of this object."),
            "metadata": {"type": "object"},
            **properties,
        },
        required=required,
    )
    served: Schema = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if columns:
        served["additionalPrinterColumns"] = list(columns)
    if status_subresource:
        served["subresources"] = {"status": {}}
    names: Schema = {"kind": kind, "listKind": f"{kind}List", "plural": f"{singular}s", "singular": singular}
    if short_names:
        names["shortNames"] = list(short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{group}", "labels": {"app.kubernetes.io/part-of": "baton"}},
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": names,
            "versions": [served],
        },
    }


def _described(schema: Schema, description: str) -> Schema:
    return {"description": description, **schema} if description else schema
