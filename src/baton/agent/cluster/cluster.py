"""The agent's connection to the API server: what it reports about this node, and what it learns about its pods.

The agent writes labels, the annotation in which Volcano expects vGPUs, load for schedulers, a node condition with the
reason for unhealthy cards, and events on the node and on pods. It watches the pods of this node, for the scheduler's
choice of cards and for limits. All of this is optional: while the API server is unreachable, kubelet is served as
before, and the agent catches up later.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from baton.agent.cluster import annotations, assignments, labels
from baton.agent.cluster.assignments import Container, NodePod, Settlement
from baton.agent.config import Kind
from baton.agent.daemon import Agent, Companion
from baton.agent.kubelet.answers import overridden
from baton.agent.kubelet.podresources import read_checkpoint
from baton.agent.kubelet.records import Recorded, owners_of
from baton.agent.node.lock_port import LockPort, PodLimits
from baton.agent.offers.offers import Offer, Role
from baton.errors import BatonError, UnavailableError
from baton.gpu.cards import Sample
from baton.kube.client import STRATEGIC_PATCH, Client
from baton.kube.errors import ConflictError
from baton.kube.recorder import Recorder
from baton.kube.reflector import Reflector
from baton.kube.store import Delta, Store
from baton.model import card_annotations, times
from baton.model.card_annotations import LOAD, NODE_LOCK, NODE_LOCK_OWNER, OFFERED_CARDS, REGISTER, Share, lock_owner
from baton.model.ids import CardId, Key, PodUid
from baton.model.meta import Metadata, ObjectReference
from baton.model.names import ENDED_PHASES
from baton.model.resource import Resource
from baton.observe.program import together

_log = structlog.get_logger("baton.agent")

T = TypeVar("T")

CONDITION = "BatonGpusHealthy"
_UNKNOWN_POD_LIMIT_S = 1.0
"""How long a preference waits for a pod that kubelet knows before the agent does. Kubelet admits no other pod
meanwhile, but without the pod the scheduler's choice is lost for good; usually the wait takes milliseconds."""
_UNKNOWN_START_LIMIT_S = 10.0
"""The same before a container with limits starts. Kubelet allows 30 s and starts other pods meanwhile."""
_LIMITS_LIMIT_S = 15.0
"""How long a container's start waits for the lock daemon to accept its limits. Together with the wait for its pod this
is less than the 30 s that kubelet allows; after those kubelet would report a timeout instead of the reason."""
_LIMITS_AGAIN_S = 0.2
_MIRRORED = "kubernetes.io/config.mirror"
"""On the API server's copy of a static pod: its UID at kubelet."""
_REPEAT_S = 60.0
"""How often everything is compared with the node, in case another program changed it."""


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class _ContainerState(msgspec.Struct, frozen=True):
    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None

    @property
    def started(self) -> bool:
        return self.running is not None or self.terminated is not None


class _ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_id: str = msgspec.field(name="containerID", default="")
    state: _ContainerState = _ContainerState()
    last_state: _ContainerState = _ContainerState()


class _PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    container_statuses: tuple[_ContainerStatus, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()

    @property
    def container_names(self) -> dict[str, str]:
        """By id, without the runtime's name in front of it (`containerd://…`)."""
        every = (*self.container_statuses, *self.init_container_statuses)
        return {one.container_id.rpartition("/")[2]: one.name for one in every if one.container_id}


class _Pod(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str = ""


class _NodeStatus(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: _NodeStatus = _NodeStatus()


_PODS: Resource[_Pod] = Resource("", "v1", "pods", _Pod)
_NODES: Resource[_Node] = Resource("", "v1", "nodes", _Node, namespaced=False)


class ClusterSide(Companion):
    """Follows an agent and keeps the API server up to date."""

    name = "API server"

    def __init__(self, client: Client) -> None:
        self._client = client
        self._store: Store[_Pod] = Store()
        self._pods: dict[PodUid, NodePod] = {}
        self._container_names: dict[PodUid, dict[str, str]] = {}
        self._admitted: set[assignments.ContainerKey] = set()
        self._hears_of_pods = False
        self._synced = asyncio.Event()
        self._pods_moved = asyncio.Event()
        self._recorder: Recorder | None = None
        self._agent: Agent | None = None
        self._told_bad: dict[CardId, str] = {}

    async def run(self, agent: Agent) -> None:
        self._agent = agent
        self._recorder = Recorder(self._client, "baton-agent", agent.node)
        self._store.subscribe(self._pod_moved)
        parts = [self._report_node(agent), self._report_load(agent)]
        if agent.config.api.events:
            parts.append(self._recorder.run())
        self._hears_of_pods = agent.config.api.pods
        if self._hears_of_pods:
            selector = f"spec.nodeName={agent.node}"
            reflector = Reflector(self._client, _PODS, self._store, field_selector=selector)
            self._synced = reflector.synced
            parts += [reflector.run(), self._restore_limits(agent)]
        try:
            await together(*parts)
        finally:
            await self._client.close()

    async def chosen_cards(self, offer: Offer, size: int) -> Sequence[CardId]:
        agent = self._agent
        if agent is None:
            return ()
        try:
            records = self._records(agent)
        except UnavailableError as error:
            _log.warning("cards are chosen by the policy", reason=str(error))
            return ()
        found = await self._once_known(
            lambda: assignments.cards_for_next(self._pods.values(), records, offer, size), _UNKNOWN_POD_LIMIT_S
        )
        return found or ()

    async def start_refusal(self, offer: Offer, slots: Sequence[str]) -> str:
        agent = self._agent
        if agent is None:
            return ""
        try:
            records = self._records(agent)
        except UnavailableError as error:
            # It is unknown which container starts; a container without limits may start anyway.
            limited = offer.kind is Kind.VGPU and agent.config.hook.enabled
            return f"{error}, so the limits of this container would not be in force" if limited else ""
        owners = owners_of(slots, offer.name, records)
        limit_s = _UNKNOWN_START_LIMIT_S if offer.kind is Kind.VGPU else _UNKNOWN_POD_LIMIT_S
        owner = await self._once_known(lambda: self._known_owner(owners), limit_s) if owners else None
        if owner is None:
            _log.info("start of a pod that the API server has not reported", resource=offer.name, slots=sorted(slots))
            shares = [share for one in owners for share in assignments.recorded_shares(one, records, offer)]
        else:
            settlement = assignments.decide(self._pods, records, owner, offer, self._admitted)
            asyncio.get_running_loop().create_task(self._record(offer, settlement))  # ends by itself, soon
            if settlement.refusal:
                return settlement.refusal
            self._admitted.add((owner.pod_uid, owner.container))
            shares = list(settlement.shares)
        if agent.lock is None or await self._in_force(agent, agent.lock, shares):
            return ""
        return (
            "the lock daemon does not answer, so the limits of this container would not be in force; it starts when "
            "the daemon is back (`baton lock status` on the node)"
        )

    async def _in_force(self, agent: Agent, lock: LockPort, shares: Sequence[Share]) -> bool:
        """Put limits in force before a container can use its cards. The daemon may be starting, so a container with
        limits waits for it; a container without limits, or without the hook that enforces them, needs no daemon."""
        limited = agent.config.hook.enabled and any(share.memory_mib or share.cores_percent for share in shares)
        try:
            async with asyncio.timeout(_LIMITS_LIMIT_S):
                while True:
                    if await lock.limit(lambda: self._limits(agent)) or not limited:
                        return True
                    await asyncio.sleep(_LIMITS_AGAIN_S)
        except TimeoutError:
            return not limited

    async def _once_known(self, find: Callable[[], T | None], limit_s: float) -> T | None:
        """What `find` finds among the pods. Kubelet may learn of a pod before the agent does, over another connection,
        so this waits for a missing pod, unless the configuration disables watching pods."""
        if not self._hears_of_pods:
            return None
        try:
            async with asyncio.timeout(limit_s):
                await self._synced.wait()
                while (found := find()) is None:
                    self._pods_moved.clear()
                    await self._pods_moved.wait()
                return found
        except TimeoutError:
            return None

    def _known_owner(self, owners: Sequence[Recorded]) -> Recorded | None:
        """The owner of the slots; if an init container passes them on to an ordinary container, the latter."""
        known = [owner for owner in owners if owner.pod_uid in self._pods]
        ordinary = [
            owner for owner in known if any(one.name == owner.container for one in self._pods[owner.pod_uid].containers)
        ]
        return next(iter(ordinary or known), None)

    def _records(self, agent: Agent) -> list[Recorded]:
        return read_checkpoint(Path(agent.config.kubelet.plugin_directory))

    def _pod_moved(self, delta: Delta[_Pod]) -> None:
        pod = delta.new
        if pod is None:
            if delta.old is not None:
                gone = _uid(delta.old)
                self._pods.pop(gone, None)
                self._container_names.pop(gone, None)
                self._admitted = {key for key in self._admitted if key[0] != gone}
        else:
            # A restarted container has a new id; its use under the previous id still belongs to it.
            self._container_names.setdefault(_uid(pod), {}).update(pod.status.container_names)
            self._pods[_uid(pod)] = NodePod(
                _uid(pod),
                pod.metadata.namespace,
                pod.metadata.name,
                pod.metadata.creation_timestamp,
                pod.metadata.annotations,
                pod.spec.containers,
                pod.spec.init_containers,
                pod.status.phase in ENDED_PHASES,
                frozenset(
                    one.name for one in pod.status.container_statuses if one.state.started or one.last_state.started
                ),
            )
        self._pods_moved.set()

    def container_name(self, container_id: str) -> str:
        return next((names[container_id] for names in self._container_names.values() if container_id in names), "")

    def ended_pods(self) -> frozenset[tuple[str, str]]:
        return frozenset((pod.namespace, pod.name) for pod in self._pods.values() if pod.ended)

    async def _record(self, offer: Offer, settlement: Settlement) -> None:
        """Write the real cards on the pod if the scheduler chose others, and complete Volcano's bind phase."""
        pod = settlement.pod
        change: dict[str, str | None] = {}
        own_variable = functools.partial(pod.own_variable, settlement.container)
        if sentence := overridden(offer, settlement.given, own_variable):
            self._event(_about_pod(pod), "CardsOverridden", sentence, warning=True)
        if settlement.mismatch:
            self._event(_about_pod(pod), "CardsDiffer", settlement.mismatch, warning=True)
            given = {**card_annotations.our_cards(pod.annotations.get(card_annotations.ACTUAL_CARDS, ""))}
            given[settlement.container] = list(settlement.given)
            change[card_annotations.ACTUAL_CARDS] = card_annotations.our_cards_text(given)
            if offer.kind is Kind.VGPU and card_annotations.ASSIGNED in pod.annotations and not settlement.refusal:
                # The scheduler rebuilds its state from this annotation, so it must be true. A refused container runs
                # nowhere yet, and when kubelet retries, it is compared with the scheduler's choice again.
                lists: list[Any] = card_annotations.assigned_shares(
                    pod.annotations[card_annotations.ASSIGNED], offer.memory_unit_mib
                )
                names = pod.listed(offer)
                if settlement.container in names and names.index(settlement.container) < len(lists):
                    lists[names.index(settlement.container)] = settlement.shares
                    change[card_annotations.ASSIGNED] = card_annotations.assigned_text(lists, offer.memory_unit_mib)
        if settlement.refusal:
            self._event(_about_pod(pod), "CardOverCommitted", settlement.refusal, warning=True)
        phase = pod.annotations.get(card_annotations.BIND_PHASE)
        allocating = phase == "allocating"
        if allocating:
            change[card_annotations.BIND_PHASE] = "failed" if settlement.refusal else "success"
        elif phase == "failed" and all((pod.uid, one.name) in self._admitted for one in pod.requesting(offer.name)):
            change[card_annotations.BIND_PHASE] = "success"
        change = {name: text for name, text in change.items() if pod.annotations.get(name) != text}
        present = self._store.get(Key(f"{pod.namespace}/{pod.name}"))
        if not change or present is None or _uid(present) != pod.uid:
            return
        # With the UID, because another pod may have the same name by now.
        body = {"metadata": {"uid": present.metadata.uid, "annotations": change}}
        try:
            await self._client.patch(_PODS, pod.name, body, pod.namespace)
            if allocating and self._agent is not None:
                await self._unlock(self._agent.node, pod)
        except BatonError as error:
            _log.warning(
                "the pod's annotations cannot be written", pod=f"{pod.namespace}/{pod.name}", reason=str(error)
            )

    async def _unlock(self, node: str, pod: NodePod) -> None:
        """Let the scheduler bind the next pod here, unless it already did: the lock then belongs to that pod."""
        while True:
            metadata = (await self._client.get(_NODES, node)).metadata
            uid, name = lock_owner(metadata.annotations.get(NODE_LOCK_OWNER, ""))
            others = name not in ("", f"{pod.namespace}/{pod.name}") or uid not in ("", pod.uid)
            if others or NODE_LOCK not in metadata.annotations:
                return
            change = {NODE_LOCK: None, NODE_LOCK_OWNER: None}
            body = {"metadata": {"resourceVersion": metadata.resource_version, "annotations": change}}
            with contextlib.suppress(ConflictError):  # the node changed meanwhile; kubelet often does that
                await self._client.patch(_NODES, node, body)
                return

    async def _report_node(self, agent: Agent) -> None:
        while True:
            try:
                await self._tell(agent)
            except BatonError as error:
                _log.warning("the node cannot be updated", reason=str(error))
            async with agent.moved:
                try:
                    async with asyncio.timeout(_REPEAT_S):
                        await agent.moved.wait()
                except TimeoutError:
                    continue

    async def _tell(self, agent: Agent) -> None:
        node = await self._client.get(_NODES, agent.node)
        metadata: dict[str, Any] = {}
        offers = agent.gpu_offers
        if agent.config.api.labels:
            prefix = agent.config.api.label_prefix
            wanted = labels.gpu_labels(prefix, agent.gpus.cards, offers)
            for kind in agent.kinds:
                wanted |= {name: labels.value_of(text) for name, text in kind.labels().items()}
            if change := labels.change(node.metadata.labels, wanted, prefix):
                metadata["labels"] = change
        unhealthy = agent.gpus.unhealthy
        vgpu = next((offer for offer in offers if offer.kind is Kind.VGPU and offer.role is Role.CARDS), None)
        register = annotations.register_text(vgpu, unhealthy) if vgpu is not None else None
        boards = [(endpoint.board.offer, endpoint.board.unhealthy) for endpoint in agent.endpoints.values()]
        said = {REGISTER: register, OFFERED_CARDS: annotations.offered_text(boards)}
        if news := {key: text for key, text in said.items() if node.metadata.annotations.get(key) != text}:
            metadata["annotations"] = news
        if metadata:
            await self._client.patch(_NODES, agent.node, {"metadata": metadata})
        if agent.config.api.condition and agent.gpus.cards:
            await self._tell_condition(agent, {one.type: one.status for one in node.status.conditions}.get(CONDITION))

    async def _tell_condition(self, agent: Agent, status_before: str | None) -> None:
        verdicts = agent.gpus.verdicts
        bad = {verdict.card: verdict.reason for verdict in verdicts if not verdict.healthy}
        sentences = [f"{card}: {reason}" for card, reason in bad.items()]
        now = times.stamp(time.time())
        condition = {
            "type": CONDITION,
            "status": "False" if bad else "True",
            "reason": "CardsUnhealthy" if bad else "AllCardsHealthy",
            "message": "; ".join(sentences)[:1024] or f"{len(verdicts)} cards are healthy",
            "lastHeartbeatTime": now,
        }
        if condition["status"] != status_before:
            condition["lastTransitionTime"] = now
        body = {"status": {"conditions": [condition]}}
        await self._client.patch(_NODES, agent.node, body, subresource="status", content_type=STRATEGIC_PATCH)
        about = ObjectReference(kind="Node", name=agent.node, uid=agent.node, api_version="v1")
        for card, reason in bad.items():
            if self._told_bad.get(card) != reason:
                self._event(about, "CardUnhealthy", f"{card}: {reason}", warning=True)
        for card in self._told_bad.keys() - bad.keys():
            self._event(about, "CardHealthy", f"{card} is back in service")
        self._told_bad = bad

    async def _report_load(self, agent: Agent) -> None:
        told = ""
        while True:
            await asyncio.sleep(agent.config.api.load_every_s)
            text = load_text(agent.gpus.samples)
            if text == told:
                continue
            try:
                await self._client.patch(_NODES, agent.node, {"metadata": {"annotations": {LOAD: text or None}}})
                told = text
            except BatonError as error:
                _log.debug("load is not published", reason=str(error))

    async def _restore_limits(self, agent: Agent) -> None:
        """Limits are set when a container starts; this restores them after the lock daemon has lost them."""
        while True:
            await self._synced.wait()
            if agent.lock is not None:
                await agent.lock.limit(lambda: self._limits(agent))
            await asyncio.sleep(agent.config.api.load_every_s)

    def _limits(self, agent: Agent) -> list[PodLimits]:
        records = self._records(agent)
        found: dict[PodUid, PodLimits] = {}
        for endpoint in agent.endpoints.values():
            offer = endpoint.board.offer
            if offer.role is not Role.CARDS or offer.kind is not Kind.VGPU:
                continue
            for (uid, _), shares in assignments.shares_in_force(self._pods, records, offer).items():
                limits = found.setdefault(uid, PodLimits(uid))
                # The daemon's terms are per client and card; of several limits of a pod, the widest applies.
                found[uid] = PodLimits(
                    uid,
                    _widest(limits.memory_mib, [share.memory_mib for share in shares]),
                    _widest(limits.cores_percent, [share.cores_percent for share in shares]),
                    oversubscribe=False,
                )
        return list(found.values())

    def _event(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        if self._recorder is not None and self._agent is not None and self._agent.config.api.events:
            self._recorder.record(about, reason, message, warning=warning)


def _uid(pod: _Pod) -> PodUid:
    return PodUid(pod.metadata.annotations.get(_MIRRORED) or pod.metadata.uid)


def _widest(known: int, more: Sequence[int]) -> int:
    return max(known, *more) if more else known


def _about_pod(pod: NodePod) -> ObjectReference:
    return ObjectReference(kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid, api_version="v1")


def load_text(samples: Sequence[Sample]) -> str:
    """Load for schedulers as JSON, per card and in steps of five, so that noise does not change it."""
    rows: Mapping[str, dict[str, int]] = {
        sample.card: {
            "utilisation": _step(sample.utilisation_percent),
            "memory": _step(100 * (sample.memory_used_mib or 0) / sample.memory_total_mib)
            if sample.memory_total_mib
            else 0,
            "temperature": _step(sample.temperature_c),
            "power": _step(sample.power_w),
        }
        for sample in samples
    }
    return msgspec.json.encode(rows, order="sorted").decode() if rows else ""


def _step(value: float | None) -> int:
    return round((value or 0) / 5) * 5
