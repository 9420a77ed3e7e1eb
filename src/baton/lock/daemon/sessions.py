"""From frames to events and from instructions to frames.

A session is what one connection has sent so far: nothing, REGISTER, IDENTITY. The kernel says who the peer is. The
terms that it asks for count only if it may control the daemon (see `Rights`); otherwise the daemon's rules apply.
"""

import os
from collections.abc import Callable
from typing import Protocol

import structlog

from baton.lock import wire
from baton.lock.core import events as ev
from baton.lock.core.events import ClientId, Event, Instruction, Priority, Terms
from baton.lock.daemon.allowances import Allowances, Group
from baton.lock.daemon.workload_socket import UNKNOWN_FRAMES, Connection
from baton.lock.peers import Peer, Rights
from baton.lock.wire import Kind
from baton.model.ids import CardId

log = structlog.get_logger("baton.lock")

UNREGISTERED = 0xF00DF00DF00DF00D
REPORT_MS = 500
MAX_WEIGHT = 1000.0
MAX_TQ_S = 86_400


class Host(Protocol):
    """What sessions need from the daemon."""

    epoch: str
    rights: Rights

    def submit(self, event: Event) -> None:
        """Let the core handle an event, and carry out the instructions."""

    def card_named(self, raw: bytes | None) -> CardId | None:
        """The card that a client names; None if there is no such card."""

    def is_on(self, card: CardId) -> bool:
        """Whether scheduling is on for a card."""

    def idle_s(self, card: CardId) -> float:
        """The idle time after which a client should release the lock."""

    def terms_for(self, peer: Peer, namespace: str, pod: str, tenant: str) -> Terms:
        """The terms that the daemon's rules give."""

    def tenant_of(self, peer: Peer, namespace: str) -> str:
        """The tenant of a client for which no trusted peer named one."""

    def group_of(self, client: ClientId, run: str = "") -> Group | None:
        """The group with which a client shares its memory limit; None if it does not share it.

        `run` is the run that its IDENTITY names, before the core knows it.
        """


class Sessions:
    """All connections of workloads, by client id."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.connections: dict[ClientId, Connection] = {}
        self.names: dict[ClientId, tuple[str, str]] = {}
        self._allowances = Allowances()
        self.frames_received = 0
        self.frames_sent = 0
        self._handlers: dict[int, Callable[[Connection, bytes], None]] = {
            Kind.REGISTER: self._register,
            Kind.REQ_LOCK: self._request,
            Kind.LOCK_RELEASED: self._release,
            Kind.SCHED_ON: self._switch,
            Kind.SCHED_OFF: self._switch,
            Kind.SET_TQ: self._set_quantum,
            Kind.IDENTITY: self._identity,
            Kind.REPORT: self._report,
            Kind.RESUME: self._resume,
        }

    def received(self, connection: Connection, raw: bytes) -> None:
        """Handle one frame of a connection."""
        self.frames_received += 1
        handler = self._handlers.get(raw[0])
        if handler is None:
            connection.strange += 1
            if connection.strange == 1:
                log.warning("unknown message type", type=raw[0], pid=connection.peer.pid, client=connection.client)
            if connection.strange > UNKNOWN_FRAMES:
                connection.close(f"sent {connection.strange} frames of unknown types")
            return
        handler(connection, raw)

    def lost(self, connection: Connection) -> None:
        """A connection was lost or closed."""
        client = connection.client
        if client is not None and self.connections.get(client) is connection:
            del self.connections[client]
            self.names.pop(client, None)
            self._allowances.leave(client)
            self._host.submit(ev.Left(client))

    def abandon(self) -> None:
        """Drop all connections without telling the peers or the core."""
        for connection in list(self.connections.values()):
            connection.closed = True
            connection.abort()
        self.connections.clear()
        self._allowances.close()

    def carry_out(self, instruction: Instruction) -> None:
        """Send the frame for an instruction; clients that have left in the meantime are ignored."""
        match instruction:
            case ev.Grant(client):
                self._send(client, wire.LOCK_OK)
            case ev.Drop(client):
                self._send(client, wire.DROP_LOCK)
            case ev.Switch(client, on):
                self._send(client, wire.SCHED_ON if on else wire.SCHED_OFF)
            case ev.Limit(client, memory_bytes, cores_percent, oversubscribe):
                if memory_bytes:
                    self._share_limit(client)
                limits = {"memory": memory_bytes, "cores": round(cores_percent), "oversubscribe": int(oversubscribe)}
                self._send(client, wire.extension(Kind.LIMITS, limits))
            case ev.Notice(client, code, reason):
                self._send(client, wire.extension(Kind.NOTICE, {"reason": reason, "code": code}))
            case ev.Hint(card, _):
                for connection in list(self.connections.values()):
                    if connection.extended and connection.card == card:
                        self.frames_sent += 1
                        connection.send(self._hello(card))
            case ev.Close(client, reason):
                connection_of = self.connections.pop(client, None)
                self._allowances.leave(client)
                if connection_of is not None:
                    connection_of.client = None
                    connection_of.close(reason)

    def _send(self, client: ClientId, frame: bytes) -> None:
        connection = self.connections.get(client)
        if connection is not None:
            self.frames_sent += 1
            connection.send(frame)

    def _share_limit(self, client: ClientId, run: str = "") -> None:
        connection, group = self.connections.get(client), self._host.group_of(client, run)
        if connection is None or connection.card is None or group is None:
            return
        joined = self._allowances.join(client, group, connection.card)
        if joined is None:
            return
        fd, slot = joined
        if connection.send_with(wire.extension(Kind.ALLOWANCE, {"slot": slot}), fd):
            self.frames_sent += 1
        else:
            log.warning("memory limit is not shared within the group", client=f"{client:016x}", pid=connection.peer.pid)
            self._allowances.leave(client)

    def _register(self, connection: Connection, raw: bytes) -> None:
        if connection.client is not None:
            connection.close("registered twice on one connection")
            return
        frame = wire.unpack(raw)
        extended, gpu = wire.registered_gpu(frame)
        card = connection.card or self._host.card_named(gpu)
        if card is None:
            reason = f"there is no GPU {wire.uuid_text(gpu) if gpu else '0'} on this machine"
            if extended:
                connection.send(wire.extension(Kind.NOTICE, {"reason": reason, "code": "refused"}))
            connection.close(reason)
            return
        client = self._new_id()
        pod, namespace = (wire.name(part) for part in (frame.pod, frame.namespace))
        pod, namespace = ("" if text == "none" else text for text in (pod, namespace))
        peer = connection.peer
        tenant = self._host.tenant_of(peer, namespace)
        connection.client, connection.extended, connection.card = client, extended, card
        self.connections[client] = connection
        self.names[client] = (namespace, pod)
        # In one write: if HELLO does not follow the welcome at once, a hook takes this daemon for nvshare's.
        greeting = [wire.welcome(client, on=self._host.is_on(card)), *([self._hello(card)] if extended else [])]
        self.frames_sent += len(greeting)
        connection.send(b"".join(greeting))
        terms = self._host.terms_for(peer, namespace, pod, tenant)
        self._host.submit(
            ev.Joined(client, card, peer.pid, peer.uid, pod, namespace, tenant, extended, terms, peer.pod)
        )

    def _hello(self, card: CardId) -> bytes:
        values = {
            "version": wire.EXTENSION_VERSION,
            "epoch": self._host.epoch,
            "gpu": card,
            "idle_ms": max(1, round(self._host.idle_s(card) * 1000)),
            "report_ms": REPORT_MS,
        }
        return wire.extension(Kind.HELLO, values)

    def _new_id(self) -> ClientId:
        while True:
            number = int.from_bytes(os.urandom(8), "little")
            if number not in (0, UNREGISTERED) and number not in self.connections:
                return ClientId(number)

    def _known(self, connection: Connection, what: str) -> ClientId | None:
        if connection.client is None:
            connection.close(f"{what} before REGISTER")
        return connection.client

    def _request(self, connection: Connection, _raw: bytes) -> None:
        client = connection.client
        if client is None:
            connection.close("REQ_LOCK before REGISTER")
            return
        self._host.submit(ev.Requested(client))

    def _release(self, connection: Connection, _raw: bytes) -> None:
        client = connection.client
        if client is None:
            connection.close("LOCK_RELEASED before REGISTER")
            return
        self._host.submit(ev.Released(client))

    def _switch(self, connection: Connection, raw: bytes) -> None:
        on = raw[0] == Kind.SCHED_ON
        if self._allowed(connection, "SCHED_ON" if on else "SCHED_OFF"):
            self._host.submit(ev.SchedulingSet(on, self._scope(connection)))

    def _set_quantum(self, connection: Connection, raw: bytes) -> None:
        text = wire.name(wire.unpack(raw).data)
        if not self._allowed(connection, "SET_TQ"):
            return
        try:
            seconds = int(text, 0)
        except ValueError:
            seconds = 0
        if not 1 <= seconds <= MAX_TQ_S:
            log.warning("SET_TQ ignored", value=text, expected=f"whole seconds from 1 to {MAX_TQ_S}")
            return
        self._host.submit(ev.QuantumSet(float(seconds), self._scope(connection)))

    def _scope(self, connection: Connection) -> CardId | None:
        return connection.card if connection.client is None else None

    def _allowed(self, connection: Connection, what: str) -> bool:
        if self._host.rights.may_control(connection.peer):
            return True
        log.warning("command refused", command=what, pid=connection.peer.pid, uid=connection.peer.uid)
        return False

    def _identity(self, connection: Connection, raw: bytes) -> None:
        client = self._known(connection, "IDENTITY")
        if client is None:
            return
        values = wire.fields(wire.unpack(raw))
        namespace, pod = self.names.get(client, ("", ""))
        trusted = self._host.rights.may_control(connection.peer)
        tenant = values.get("tenant", "") if trusted else ""
        tenant = tenant or self._host.tenant_of(connection.peer, namespace)
        terms = self._host.terms_for(connection.peer, namespace, pod, tenant)
        asked = asked_terms(values, terms)
        if trusted:
            terms = asked
        elif asked != terms:
            log.info("ignored the terms that a workload asked for", client=client, pid=connection.peer.pid)
        run = values.get("run", "")[:64]
        if asked.memory_bytes:
            # Even if the request does not count: the hook applies the limit by itself.
            self._share_limit(client, run)
        self._host.submit(
            ev.Described(
                client,
                values.get("name", "")[:64],
                tenant[:64],
                run,
                terms,
                values.get("gang", "")[:64],
                int(wire.number(values, "gang_size", 64)),
            )
        )

    def _report(self, connection: Connection, raw: bytes) -> None:
        client = self._known(connection, "REPORT")
        if client is None:
            return
        values = wire.fields(wire.unpack(raw))
        self._host.submit(
            ev.Reported(
                client,
                int(wire.number(values, "allocated", 2.0**50)),
                int(wire.number(values, "launches")),
                wire.number(values, "sync_us") / 1e6,
                wire.number(values, "wait_us") / 1e6,
            )
        )

    def _resume(self, connection: Connection, raw: bytes) -> None:
        client = self._known(connection, "RESUME")
        if client is None:
            return
        values = wire.fields(wire.unpack(raw))
        try:
            previous = int(values.get("id", "0"), 16)
        except ValueError:
            previous = 0
        self._host.submit(
            ev.Resumed(
                client,
                ClientId(previous),
                values.get("holding") == "1",
                values.get("waiting") == "1",
                wire.number(values, "held_us", 1e15) / 1e6,
            )
        )


def asked_terms(values: dict[str, str], default: Terms) -> Terms:
    """The terms in an IDENTITY; for missing or invalid values, those of the daemon's rules."""
    weight = min(wire.number(values, "weight"), MAX_WEIGHT) or default.weight
    try:
        priority = Priority[values.get("priority", "").upper()]
    except KeyError:
        priority = default.priority
    cores = min(wire.number(values, "cores"), 100.0) or default.cores_percent
    memory = int(wire.number(values, "memory", 2.0**50)) or default.memory_bytes
    oversubscribe = values.get("oversubscribe")
    return Terms(
        max(weight, 0.001),
        priority,
        cores,
        memory,
        default.oversubscribe if oversubscribe not in ("0", "1") else oversubscribe == "1",
    )
