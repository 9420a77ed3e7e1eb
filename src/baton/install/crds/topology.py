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
        "Which nodes or hyper nodes: in exactly one of three ways.",
        {
            "exactMatch": mapping(
                "By name.",
                {"name": text("The name.", minLength=1, maxLength=253, pattern=NAME_PATTERN)},
                required=("name",),
            ),
            "regexMatch": mapping(
                "By a regular expression that is found in the name.",
                {"pattern": text("The expression.", minLength=1)},
                required=("pattern",),
            ),
            "labelMatch": label_selector("By labels; for nodes only."),
        },
    )
    selector["x-kubernetes-validations"] = [
        {
            "rule": (
                "has(self.exactMatch) ? !has(self.regexMatch) && !has(self.labelMatch)"
                " : has(self.regexMatch) != has(self.labelMatch)"
            ),
            "message": "give one of exactMatch, regexMatch, labelMatch, and only one",
        }
    ]
    member = mapping(
        "",
        {
            "type": text("Whether nodes or hyper nodes of a lower tier.", choices=("Node", "HyperNode")),
            "selector": selector,
        },
        required=("type",),
    )
    spec = mapping(
        "What belongs to it.",
        {
            "tier": number("How far apart its nodes are: a lower tier is closer."),
            "tierName": text("The tier by a name, for jobs to refer to.", maxLength=253),
            "members": {**series("Nodes and hyper nodes.", member), "minItems": 1},
        },
        required=("tier",),
    )
    condition = mapping(
        "",
        {
            "type": text("Valid."),
            "status": text("True or False.", choices=("True", "False", "Unknown")),
            "lastTransitionTime": moment("Since when."),
            "reason": text("Why, in one word."),
            "message": text("Why, in a sentence."),
            "observedGeneration": number("Of which version of the object this is said.", format="int64"),
        },
        required=("type", "status"),
    )
    status = mapping(
        "What became of it.",
        {
            "nodeCount": number("How many nodes of the cluster it holds.", format="int64"),
            "conditions": series("What the scheduler has to say.", condition),
        },
    )
    return definition(
        "topology.volcano.sh",
        "v1alpha1",
        "HyperNode",
        description="Nodes that are close to each other in the network: a rack, a row, what one switch joins.",
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
