"""topology.volcano.sh/v1alpha1: HyperNode."""

from baton.install.crds.schemas import (
    NAME_PATTERN,
    Schema,
    column,
    definition,
    label_selector,
    mapping,
    moment,
    number,
    series,
    text,
)


def hyper_node() -> Schema:
    """Nodes that are close to each other in the network."""
    selector = mapping(
        "Selects the nodes or hyper nodes in exactly one of three ways.",
        {
            "exactMatch": mapping(
                "Selects by name.",
                {"name": text("Name of the member.", minLength=1, maxLength=253, pattern=NAME_PATTERN)},
                required=("name",),
            ),
            "regexMatch": mapping(
                "Selects by a regular expression that the name must contain.",
                {"pattern": text("Regular expression.", minLength=1)},
                required=("pattern",),
            ),
            "labelMatch": label_selector("Selects nodes by labels."),
        },
    )
    selector["x-kubernetes-validations"] = [
        {
            "rule": (
                "has(self.exactMatch) ? !has(self.regexMatch) && !has(self.labelMatch)"
                " : has(self.regexMatch) != has(self.labelMatch)"
            ),
            "message": "give exactly one of exactMatch, regexMatch and labelMatch",
        }
    ]
    member = mapping(
        "",
        {
            "type": text(
                "Whether the members are nodes or hyper nodes of a lower tier.", choices=("Node", "HyperNode")
            ),
            "selector": selector,
        },
        required=("type",),
    )
    spec = mapping(
        "Specification of the hyper node.",
        {
            "tier": number("Distance between its nodes; a lower tier is closer."),
            "tierName": text("Name of the tier, to which jobs can refer.", maxLength=253),
            "members": {**series("Members of the hyper node.", member), "minItems": 1},
        },
        required=("tier",),
    )
    condition = mapping(
        "",
        {
            "type": text("Valid."),
            "status": text("True or False.", choices=("True", "False", "Unknown")),
            "lastTransitionTime": moment("Time of the last change."),
            "reason": text("Reason in one word."),
            "message": text("Reason in a sentence."),
            "observedGeneration": number("Generation of the object that the condition describes.", format="int64"),
        },
        required=("type", "status"),
    )
    status = mapping(
        "Status of the hyper node.",
        {
            "nodeCount": number("Number of the cluster's nodes in the hyper node.", format="int64"),
            "conditions": series("Conditions that the scheduler has set.", condition),
        },
    )
    return definition(
        "topology.volcano.sh",
        "v1alpha1",
        "HyperNode",
        description="Nodes that are close to each other in the network, such as a rack or the nodes of one switch.",
        properties={"spec": spec, "status": status},
        short_names=("hn",),
        columns=(
            column("Tier", ".spec.tier"),
            column("TierName", ".spec.tierName"),
            column("NodeCount", ".status.nodeCount", "integer"),
            column("Age", ".metadata.creationTimestamp", "date"),
        ),
        namespaced=False,
    )
