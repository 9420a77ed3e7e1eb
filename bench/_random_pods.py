"""Random clusters and pods as Kubernetes manifests, with many of the properties that kube-scheduler filters by.

There are few distinct labels, ports and taints, so that rules often apply; nodes are small, so that some pods fit
nowhere.
"""

import random
from typing import Any

Object = dict[str, Any]

ZONES, RACKS, APPS, ROLES = ("a", "b", "c"), ("r0", "r1", "r2", "r3"), ("web", "train", "store"), ("front", "back")
GENERATIONS = ("1", "3", "10", "1_0", "new")
"""Values of a label that is compared as a number; not all of them are numbers."""
TAINTS = (
    {"key": "dedicated", "value": "train", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "web", "effect": "NoExecute"},
    {"key": "worn", "effect": "PreferNoSchedule"},
    {"key": "repair", "effect": "NoSchedule"},
)
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
TEAMS = ("red", "blue", "green")
"""The label `team` of the namespaces in which pods are created, in the order of the namespaces."""


class Dice:
    """Random choices from one seed."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def often(self, chance: float) -> bool:
        return self.random.random() < chance

    def one(self, items: Any) -> Any:
        return self.random.choice(items)

    def some(self, items: Any, most: int) -> list[Any]:
        return self.random.sample(list(items), self.random.randint(1, min(most, len(items))))

    def upto(self, low: int, high: int) -> int:
        return self.random.randint(low, high)


def random_node(dice: Dice, name: str) -> Object:
    labels = {"kubernetes.io/hostname": name}
    if dice.often(0.9):
        labels["zone"] = dice.one(ZONES)
    if dice.often(0.7):
        labels["rack"] = dice.one(RACKS)
    if dice.often(0.7):
        labels["generation"] = dice.one(GENERATIONS)
    spec: Object = {}
    if dice.often(0.3):
        spec["taints"] = dice.some(TAINTS, 2)
    if dice.often(0.12):
        spec["unschedulable"] = True
    amounts = {"cpu": str(dice.upto(4, 16)), "memory": f"{dice.upto(4, 24)}Gi", "pods": str(dice.upto(3, 14))}
    if dice.often(0.4):
        amounts["example.com/card"] = str(dice.upto(0, 4))
    if dice.often(0.5):
        amounts["ephemeral-storage"] = f"{dice.upto(1, 8)}Gi"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def random_pod(dice: Dice, name: str, nodes: list[str], *, plain: bool = False) -> Object:
    """A pod; `plain` pods have no node rules, only labels, requests and terms that concern other pods."""
    labels = {"app": dice.one(APPS)}
    if dice.often(0.7):
        labels["role"] = dice.one(ROLES)
    spec: Object = {
        "containers": _containers(dice),
        "terminationGracePeriodSeconds": 30,
        "automountServiceAccountToken": False,
    }
    inits = _init_containers(dice)
    if inits:
        spec["initContainers"] = inits
    affinity: Object = {}
    if not plain:
        if dice.often(0.2):
            spec["nodeSelector"] = {"zone": dice.one(ZONES)} if dice.often(0.7) else {"rack": dice.one(RACKS)}
        if dice.often(0.4):
            affinity["nodeAffinity"] = _node_affinity(dice, nodes)
        if dice.often(0.5):
            spec["tolerations"] = _tolerations(dice)
        if dice.often(0.35):
            affinity["podAffinity"] = _pod_terms(dice)
        if dice.often(0.35):
            spec["topologySpreadConstraints"] = _spread(dice)
    if dice.often(0.3):
        affinity["podAntiAffinity"] = _pod_terms(dice)
    if affinity:
        spec["affinity"] = affinity
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _containers(dice: Dice) -> list[Object]:
    made = []
    for number in range(2 if dice.often(0.2) else 1):
        container: Object = {"name": f"main-{number}", "image": "none", "resources": {"requests": _requests(dice)}}
        if number == 0 and dice.often(0.2):
            container["ports"] = [_port(dice) for _ in range(dice.upto(1, 2))]
            unique = {
                (item["containerPort"], item["protocol"], item.get("hostIP")): item for item in container["ports"]
            }
            container["ports"] = list(unique.values())
        card = container["resources"]["requests"].get("example.com/card")
        if card:
            container["resources"]["limits"] = {"example.com/card": card}
        made.append(container)
    return made


def _init_containers(dice: Dice) -> list[Object]:
    made: list[Object] = []
    while dice.often(0.2) and len(made) < 3:
        container: Object = {"name": f"init-{len(made)}", "image": "none"}
        container["resources"] = {"requests": {"cpu": f"{dice.upto(1, 30)}00m", "memory": f"{dice.upto(1, 6)}Gi"}}
        if dice.often(0.5):
            container["restartPolicy"] = "Always"
            if dice.often(0.3):
                container["ports"] = [_port(dice)]
        made.append(container)
    return made


def _requests(dice: Dice) -> Object:
    amounts: Object = {}
    if dice.often(0.8):
        amounts["cpu"] = f"{dice.upto(1, 12)}00m"
    if dice.often(0.8):
        amounts["memory"] = f"{dice.upto(1, 20)}00Mi"
    if dice.often(0.15):
        amounts["example.com/card"] = str(dice.upto(1, 2))
    if dice.often(0.15):
        amounts["ephemeral-storage"] = f"{dice.upto(1, 3)}Gi"
    return amounts


def _port(dice: Dice) -> Object:
    number = dice.one((8080, 9090))
    port: Object = {"containerPort": number, "hostPort": number, "protocol": dice.one(("TCP", "TCP", "UDP"))}
    if dice.often(0.5):
        port["hostIP"] = dice.one(("10.0.0.1", "10.0.0.2", "0.0.0.0"))
    return port


def _node_affinity(dice: Dice, nodes: list[str]) -> Object:
    result: Object = {}
    if dice.often(0.8):
        terms = [_node_term(dice, nodes) for _ in range(dice.upto(1, 2))]
        result["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if dice.often(0.3):
        preference = {"weight": dice.upto(1, 100), "preference": _node_term(dice, nodes)}
        result["preferredDuringSchedulingIgnoredDuringExecution"] = [preference]
    return result


def _node_term(dice: Dice, nodes: list[str]) -> Object:
    term: Object = {}
    if dice.often(0.8):
        term["matchExpressions"] = [_node_expression(dice) for _ in range(dice.upto(1, 2))]
    if dice.often(0.3):
        operator = dice.one(("In", "In", "NotIn"))
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [dice.one(nodes)]}]
    return term


def _node_expression(dice: Dice) -> Object:
    operator = dice.one(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    if operator in ("Gt", "Lt"):
        return {"key": "generation", "operator": operator, "values": [str(dice.upto(0, 10))]}
    key, values = dice.one((("zone", ZONES), ("rack", RACKS), ("generation", GENERATIONS)))
    expression: Object = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        expression["values"] = dice.some(values, 2)
    return expression


def _tolerations(dice: Dice) -> list[Object]:
    made: list[Object] = []
    for _ in range(dice.upto(1, 2)):
        if dice.often(0.15):
            made.append({"operator": "Exists"})
        elif dice.often(0.2):
            made.append({"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"})
        else:
            taint = dice.one(TAINTS)
            toleration: Object = {"key": taint["key"], "operator": dice.one(("Equal", "Exists"))}
            if toleration["operator"] == "Equal":
                toleration["value"] = dice.one((taint.get("value", ""), "other"))
            if dice.often(0.5):
                toleration["effect"] = dice.one(("NoSchedule", "NoExecute"))
            made.append(toleration)
    return made


def _selector(dice: Dice) -> Object:
    if dice.often(0.6):
        return {"matchLabels": {"app": dice.one(APPS)}}
    if dice.often(0.1):
        return {}
    operator = dice.one(("In", "NotIn", "Exists", "DoesNotExist"))
    expression: Object = {"key": "role", "operator": operator}
    if operator in ("In", "NotIn"):
        expression["values"] = [dice.one(ROLES)]
    return {"matchExpressions": [expression]}


def _pod_terms(dice: Dice) -> Object:
    result: Object = {}
    if dice.often(0.8):
        result["requiredDuringSchedulingIgnoredDuringExecution"] = [_pod_term(dice) for _ in range(dice.upto(1, 2))]
    if dice.often(0.3):
        preference = {"weight": dice.upto(1, 100), "podAffinityTerm": _pod_term(dice)}
        result["preferredDuringSchedulingIgnoredDuringExecution"] = [preference]
    return result


def _pod_term(dice: Dice) -> Object:
    term: Object = {"topologyKey": dice.one(("zone", "rack", "kubernetes.io/hostname"))}
    if dice.often(0.95):
        term["labelSelector"] = _selector(dice)
        if dice.often(0.15):
            used = {item["key"] for item in term["labelSelector"].get("matchExpressions", ())}
            used |= set(term["labelSelector"].get("matchLabels", ()))
            key = dice.one(("app", "role"))
            if key not in used:
                term[dice.one(("matchLabelKeys", "mismatchLabelKeys"))] = [key]
    if dice.often(0.2):
        term["namespaceSelector"] = {} if dice.often(0.4) else {"matchLabels": {"team": dice.one(TEAMS)}}
    return term


def _spread(dice: Dice) -> list[Object]:
    made = {}
    for _ in range(dice.upto(1, 2)):
        constraint: Object = {
            "maxSkew": dice.upto(1, 2),
            "topologyKey": dice.one(("zone", "rack", "kubernetes.io/hostname")),
            "whenUnsatisfiable": "DoNotSchedule" if dice.often(0.8) else "ScheduleAnyway",
        }
        if dice.often(0.95):
            constraint["labelSelector"] = _selector(dice)
        if constraint["whenUnsatisfiable"] == "DoNotSchedule" and dice.often(0.2):
            constraint["minDomains"] = dice.upto(1, 4)
        if dice.often(0.3):
            constraint["nodeAffinityPolicy"] = dice.one(("Honor", "Ignore"))
        if dice.often(0.3):
            constraint["nodeTaintsPolicy"] = dice.one(("Honor", "Ignore"))
        made[constraint["topologyKey"]] = constraint
    return list(made.values())
