"""kube-scheduler as the reference for our predicates: the same random pods, one by one, in the same clusters.

A *world* is a handful of random nodes with pods already bound to some of them, a few of which are being deleted. Then
pods are created one by one; kube-scheduler binds each pod or reports it as unschedulable, and the engine, given the
same objects, computes the feasible nodes. They differ if kube-scheduler chooses a node that the engine rejects, or
finds no node although the engine has one.

Creating pods one by one makes the state at each decision known. A world begins behind a barrier: a pod that can be
bound only after kube-scheduler has seen the last node and the last bound pod, and so all objects before them.
"""

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from baton.engine.engine import Engine
from baton.engine.events import NamespaceChanged, NodeChanged, PodChanged, PodRemoved
from baton.engine.objects import Pod
from baton.engine.presets import configured
from baton.engine.state.columns import NOW
from baton.mapping.cards import CardWords
from baton.mapping.cluster import namespace_of, node_of
from baton.mapping.pods import PodWords
from baton.model import core
from bench._random_pods import TEAMS, Dice, Object, random_node, random_pod
from testbed.bed import Bed, BedOptions

NODES, BOUND, PODS = 10, 12, 40
"""Per world."""
_CONFIGURATION = 'actions: "allocate"\ntiers:\n- plugins:\n  - name: predicates\n'


class Difference(NamedTuple):
    """One pod on which the two disagree."""

    seed: str
    pod: Object
    chosen: str | None
    """The node that kube-scheduler chose; None: it reported the pod as unschedulable."""
    feasible: list[str]
    """The nodes that the engine considers feasible."""
    reasons: dict[str, str]
    """The engine's reason for rejecting each of the other nodes."""

    def __str__(self) -> str:
        theirs = f"bound to {self.chosen}" if self.chosen else "unschedulable"
        ours = f"feasible on {', '.join(self.feasible)}" if self.feasible else "feasible nowhere"
        return f"{self.seed} {self.pod['metadata']['name']}: kube-scheduler {theirs}, engine {ours} {self.reasons}"


class Tally(NamedTuple):
    bound: int
    unschedulable: int
    differences: list[Difference]


def compare(seeds: range, *, pods: int = PODS) -> Iterator[Tally]:
    """One tally per world, each on its own bed."""
    with Bed(BedOptions(scheduler=True)) as bed, contextlib.ExitStack() as stack:
        namespaces = [stack.enter_context(bed.namespace(f"team-{team}")) for team in TEAMS]
        for name, team in zip(namespaces, TEAMS, strict=True):
            bed.api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"team": team}}})
        for seed in seeds:
            yield _World(bed, namespaces, str(seed)).judge(pods)


class Judge:
    """The engine, given the API server's objects."""

    def __init__(self) -> None:
        self._engine = Engine(configured(_CONFIGURATION))
        self._words = PodWords(scheduler_names=("default-scheduler",))

    def update(
        self, *, namespaces: Sequence[Object] = (), nodes: Sequence[Object] = (), pods: Sequence[Object] = ()
    ) -> None:
        cards = CardWords()
        made = [msgspec.convert(item, core.Namespace) for item in namespaces]
        self._engine.apply([NamespaceChanged(namespace_of(item)) for item in made])
        self._engine.apply([NodeChanged(node_of(msgspec.convert(item, core.Node), cards)) for item in nodes])
        self._engine.apply([PodChanged(self._pod(item)) for item in pods])

    def _pod(self, manifest: Object) -> Pod:
        return self._words.translate(msgspec.convert(manifest, core.Pod))

    def feasible(self, manifest: Object) -> tuple[list[str], dict[str, str]]:
        """Nodes that pass every predicate, and for each other node the first predicate that it fails."""
        pod = self._pod(manifest)
        self._engine.apply([PodChanged(pod)])
        session = self._engine.session(now_s=0.0)
        try:
            table = session.state.table
            view = table.view(plane=NOW)
            names = view.names()
            refused: dict[str, str] = {}
            for check in session.places.checks(session.state.tasks[pod.key], view):
                for name, ok in zip(names, check.ok.tolist(), strict=True):
                    if not ok:
                        refused.setdefault(name, check.reason)
        finally:
            session.close()
        self._engine.apply([PodRemoved(pod.key)])
        return [name for name in names if name not in refused], refused


Events = Generator[tuple[str, Object]]


class _World:
    def __init__(self, bed: Bed, namespaces: list[str], seed: str) -> None:
        self._api = bed.api
        self._namespaces = namespaces
        self._dice = Dice(seed)
        self._seed = seed
        self._judge = Judge()
        self._nodes: list[str] = []

    def judge(self, pods: int) -> Tally:
        version = str(self._api.get("/api/v1/pods?limit=1")["metadata"]["resourceVersion"])
        events = self._api.watch("/api/v1/pods", version, timeout_s=600.0)
        try:
            self._settle(events)
            return self._run(pods, events)
        finally:
            events.close()
            self._clear()

    def _settle(self, events: Events) -> None:
        api, dice = self._api, self._dice
        namespaces = [api.get(f"/api/v1/namespaces/{name}") for name in self._namespaces]
        self._judge.update(namespaces=namespaces)
        names = [f"node-{self._seed}-{number}" for number in range(NODES)]
        barrier = f"z-barrier-{self._seed}"
        last = random_node(Dice(self._seed), barrier)
        last["metadata"]["labels"] = {"barrier": self._seed}
        last["spec"] = {}
        last["status"]["allocatable"] = last["status"]["capacity"] = {"cpu": "1", "memory": "1Gi", "pods": "2"}
        for node in (*(random_node(dice, name) for name in names), last):
            self._judge.update(nodes=[api.create("/api/v1/nodes", node)])
        self._nodes = [*names, barrier]
        for number in range(BOUND):
            pod = random_pod(dice, f"bound-{number}", names, plain=True)
            pod["spec"]["nodeName"] = dice.one(names)
            path = self._create(pod)
            if dice.often(0.2):
                api.call("DELETE", path)
            self._judge.update(pods=[api.get(path)])
        sentinel = _bare("sentinel", {"sentinel": self._seed}, nodeName=barrier)
        near = {"topologyKey": "barrier", "labelSelector": {"matchLabels": {"sentinel": self._seed}}}
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
        canary = _bare("canary", {}, affinity=affinity, nodeSelector={"barrier": self._seed})
        for pod in (sentinel, canary):
            self._create(pod, self._namespaces[0])
        while self._verdict(events, "canary")["spec"].get("nodeName") != barrier:
            pass
        for name in ("sentinel", "canary"):
            self._judge.update(pods=[api.get(f"/api/v1/namespaces/{self._namespaces[0]}/pods/{name}")])

    def _run(self, pods: int, events: Events) -> Tally:
        bound = unschedulable = 0
        differences: list[Difference] = []
        for number in range(pods):
            name = f"pod-{number}"
            path = self._create(random_pod(self._dice, name, self._nodes[:-1]))
            pod = self._verdict(events, name)
            chosen = pod["spec"].get("nodeName")
            pending = {**pod, "spec": {key: value for key, value in pod["spec"].items() if key != "nodeName"}}
            feasible, reasons = self._judge.feasible(pending)
            if chosen:
                bound += 1
                self._judge.update(pods=[pod])
            else:
                unschedulable += 1
                self._api.delete(path, grace_s=0)
            if (chosen not in feasible) if chosen else feasible:
                differences.append(Difference(self._seed, pending, chosen, feasible, reasons))
        return Tally(bound, unschedulable, differences)

    def _create(self, pod: Object, namespace: str | None = None) -> str:
        where = f"/api/v1/namespaces/{namespace or self._dice.one(self._namespaces)}/pods"
        self._api.create(where, pod)
        return f"{where}/{pod['metadata']['name']}"

    def _verdict(self, events: Events, name: str) -> Object:
        """The pod once kube-scheduler has bound it or reported it as unschedulable."""
        for _, pod in events:
            if pod["metadata"]["name"] != name:
                continue
            conditions = {item["type"]: item for item in pod["status"].get("conditions", ())}
            refused = conditions.get("PodScheduled", {}).get("reason") == "Unschedulable"
            if pod["spec"].get("nodeName") or refused:
                found: Object = pod
                return found
        raise AssertionError("the watch ended")

    def _clear(self) -> None:
        for namespace in self._namespaces:
            self._api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_s=0)
        for name in self._nodes:
            self._api.delete(f"/api/v1/nodes/{name}")


def _bare(name: str, labels: dict[str, str], **spec: Any) -> Object:
    containers = [{"name": "main", "image": "none"}]
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": containers, **spec}}
