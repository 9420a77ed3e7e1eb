"""The lock daemon: the core, its sockets, its journal and its telemetry on one event loop.

Everything happens on one thread, one event after another; only telemetry, which may block, is read in another thread.
The order in `submit` makes a restart safe: the core decides, the journal is written, then the frames are sent.
"""

import asyncio
import contextlib
import fcntl
import os
import pwd
import resource
import secrets
import signal
import time
from collections import deque
from typing import TYPE_CHECKING

import structlog

from baton import __version__
from baton.errors import BatonError, UnavailableError
from baton.lock import peers, wire
from baton.lock.config import Config, Rule
from baton.lock.control import Choose, Chosen, Done, DropRule, Park, SetCard, SetClient, SetRule
from baton.lock.core import events as ev
from baton.lock.core.events import ClientId, Event, Instruction, Terms
from baton.lock.core.machine import LockCore
from baton.lock.core.state import Client
from baton.lock.daemon import commands
from baton.lock.daemon.accounts import Accounts
from baton.lock.daemon.allowances import Group
from baton.lock.daemon.control_socket import control_listener
from baton.lock.daemon.holders import Holders
from baton.lock.daemon.journal import CardSetting
from baton.lock.daemon.listener import Listener
from baton.lock.daemon.overrides import Overrides
from baton.lock.daemon.sessions import Sessions
from baton.lock.daemon.workload_socket import workload_listener
from baton.lock.paths import Paths
from baton.lock.peers import Peer, Rights
from baton.lock.placement import Placements
from baton.lock.status import Status, collect
from baton.lock.telemetry import NoTelemetry, Telemetry
from baton.model.ids import CardId
from baton.observe.program import Program

if TYPE_CHECKING:
    from baton.lock.daemon.metrics import LockMetrics
    from baton.observe.serving import Server

log = structlog.get_logger("baton.lock")

DEFAULT_CARD = CardId("default")
MAX_CARDS = 64
_SAVE_EVERY_S = 1.0
_SAMPLE_BUSY_S = 0.2
_SAMPLE_IDLE_S = 2.0


class LockDaemon:
    """One daemon for all cards of a machine."""

    def __init__(
        self,
        paths: Paths,
        config: Config = Config(),
        telemetry: Telemetry | None = None,
        metrics_port: int | None = None,
    ) -> None:
        self.paths = paths
        self.config = config
        self.epoch = secrets.token_hex(8)
        self.rights = Rights(_group_id(config.control_group), peers.pod_of(os.getpid()))
        self.core = LockCore(config.settings)
        self.sessions = Sessions(self)
        self.rules: list[Rule] = list(config.rules)
        self.telemetry: Telemetry = telemetry or NoTelemetry()
        self.inventory: list[CardId] = []
        self.events_handled = 0
        self.metrics_port = metrics_port
        self.metrics: LockMetrics | None = None
        self._server: Server | None = None
        self._started_s = 0.0
        self._holders = Holders(paths.journal, config.settings.holder_grace_s, self.submit)
        self._accounts = Accounts(paths.accounts, self.core)
        self._placements = Placements()
        self._listeners: list[Listener] = []
        self._card_listeners: dict[CardId, Listener] = {}
        self._queue: deque[Event] = deque()
        self._busy = False
        self._decides = True
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = 0.0
        self._lock_fd = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._contention = asyncio.Event()

    async def start(self) -> None:
        """Take over the directory, restore the state of the earlier daemon, and listen."""
        self._loop = asyncio.get_running_loop()
        self._started_s = self.now_s()
        try:
            self.paths.prepare()
            earlier = self._take_directory()
        except OSError as error:
            raise self.paths.unusable(error) from error
        _raise_descriptor_limit()
        for info in self.telemetry.cards():
            self.inventory.append(info.id)
            self.submit(ev.CardAdded(info.id, info.capacity_bytes, info.link_bytes_per_s))
        for setting in self._accounts.restore(self._started_s):
            self.apply_setting(setting)
        self.rules = self.overrides.before(self.config.rules)
        self._holders.recall(list(self.core.cards), earlier=earlier, now_s=self.now_s())
        if self.metrics_port is not None:
            await self._serve_metrics(self.metrics_port)
        # The socket for workloads comes last: every client that can register can already be controlled and monitored,
        # and a program that waits for the daemon has only one thing to wait for.
        try:
            self._listeners.append(control_listener(self.paths.control, self, 0o660, self._loop))
            if self.rights.gid is not None:
                with contextlib.suppress(PermissionError):
                    os.chown(self.paths.control, -1, self.rights.gid)
            for card in list(self.core.cards):
                self._listen_for(card)
            main = workload_listener(self.paths.sockets / "scheduler.sock", self.sessions, None, self._loop)
            self._listeners.append(main)
        except OSError as error:
            raise self.paths.unusable(error) from error
        self._tasks.append(self._loop.create_task(self._keep_accounts()))
        self._tasks.append(self._loop.create_task(self._sample()))
        log.info("ready", socket=str(self.paths.sockets / "scheduler.sock"), gpus=len(self.core.cards), pid=os.getpid())

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        await Program().run(self._work)

    async def _work(self) -> None:
        await self.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self.stop()

    async def _serve_metrics(self, port: int) -> None:
        from baton.lock.daemon.metrics import LockMetrics
        from baton.observe.serving import Address, Readiness, Server, health_routes

        def readiness() -> Readiness:
            return Readiness.waiting_for("" if self._listeners else "not listening for workloads yet")

        self.metrics = LockMetrics(self.status, self.counts)
        address = Address(f"127.0.0.1:{port}", "--metrics-port")
        self._server = Server([address], health_routes(self.metrics.registry, readiness))
        await self._server.start()

    async def stop(self) -> None:
        """Stop without disturbing the workloads, which continue and find the next daemon.

        From here on the daemon grants nothing: a grant that is missing in the journal would lead to a second holder.
        """
        self._decides = False
        # Listeners first: a client that reconnected to this daemon would lose its account, which only the next one has.
        for listener in (*self._listeners, *self._card_listeners.values()):
            listener.close(unlink=True)
        self.sessions.abandon()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()
        self.save()
        if self._timer is not None:
            self._timer.cancel()
        self._holders.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    def now_s(self) -> float:
        """The clock of every decision: monotonic, and finer than the clock of the event loop."""
        return time.monotonic()

    def submit(self, event: Event) -> None:
        """Let the core handle an event, and carry out the instructions; events that arise meanwhile wait their turn."""
        if not self._decides:
            return
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                self._handle(self._queue.popleft())
        finally:
            self._busy = False
        if isinstance(event, ev.Requested) and any(len(card.active) > 1 for card in self.core.cards.values()):
            self._contention.set()
        self._arm()

    def _handle(self, event: Event) -> None:
        self.events_handled += 1
        if type(event) is ev.Joined:
            self._holders.joined(event.client, event.pid)
        recorded = False
        for instruction in self.core.handle(event, self.now_s()):
            if type(instruction) is ev.Record:
                self._holders.note(self.core.cards[instruction.card])
                recorded = True
                continue
            if recorded:
                self._holders.write()
                recorded = False
            self._carry_out(instruction)
        if recorded:
            self._holders.write()
        if type(event) is ev.Left:
            self._holders.left(event.client)
        elif type(event) is ev.Resumed and event.previous in self._accounts.parked:
            self._accounts.parked.discard(event.previous)
            self._queue.append(ev.Parked(event.client, True))
        if type(event) is ev.Resumed and (terms := self.overrides.inherit_terms(event.previous, event.client)):
            self._queue.append(ev.TermsSet(event.client, terms))
        self._accounts.changed = True

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case ev.Log(level, event, client, card, detail):
                names = {"client": f"{client:016x}" if client else None, "gpu": card, "detail": detail or None}
                getattr(log, level)(event, **{key: value for key, value in names.items() if value is not None})
            case ev.Kill(client, pid, reason):
                if self._holders.same_process(client, pid):
                    log.warning("killed", pid=pid, reason=reason)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            case _:
                if self.metrics is not None and type(instruction) is ev.Grant:
                    client_of = self.core.clients[instruction.client]
                    self.metrics.waited(client_of.card.id, self.now_s() - client_of.requested_s)
                self.sessions.carry_out(instruction)

    def _arm(self) -> None:
        deadline_s = self.core.next_deadline()
        if deadline_s is None:
            return
        if self._timer is not None:
            if self._armed_s <= deadline_s:
                return
            self._timer.cancel()
        self._armed_s = deadline_s
        # An event loop may round to milliseconds; waking up too early would only repeat the work.
        self._timer = self._loop.call_later(max(deadline_s - self.now_s(), 0.0) + 0.0005, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.submit(ev.Ticked())

    def _take_directory(self) -> bool:
        earlier = self.paths.lock.exists()
        self._lock_fd = os.open(self.paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock_fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock_fd)
            self._lock_fd = -1
            raise UnavailableError(
                f"another lock daemon (pid {owner}) serves {str(self.paths.private)!r}; "
                "stop it, or use another --socket-dir"
            ) from None
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)
        return earlier

    def apply_setting(self, setting: CardSetting) -> None:
        """Apply a setting to a card, and remember it over restarts."""
        card = CardId(setting.card)
        self.overrides.cards[card] = setting
        self.submit(ev.CardAdded(card))
        self.submit(ev.ModeSet(ev.Mode(setting.mode), card))
        self.submit(ev.QuantumSet(setting.quantum_s, card))
        self.submit(ev.SchedulingSet(setting.on, card))

    @property
    def overrides(self) -> Overrides:
        """What was set with `baton lock`."""
        return self._accounts.overrides

    def save(self) -> None:
        """Write accounts and overrides to their file."""
        self._accounts.save(self.now_s())

    async def _keep_accounts(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            for rule in self._accounts.close_unclaimed(self.now_s()):
                self.rules.remove(rule)
                log.info("rule forgotten: no client of its pod has resumed", pod_uid=rule.pod_uid)
            if self._accounts.changed:
                self.save()

    async def _sample(self) -> None:
        if isinstance(self.telemetry, NoTelemetry):
            return
        failing = False
        while True:
            try:
                readings = await asyncio.to_thread(self.telemetry.read)
                failing = False
            except (BatonError, OSError) as error:
                if not failing:
                    log.warning("telemetry failed", error=str(error))
                failing, readings = True, {}
            for card_id, reading in readings.items():
                if card_id in self.core.cards:
                    by_pid = dict(reading.memory_by_pid) if reading.memory_by_pid is not None else None
                    self.submit(ev.Sampled(card_id, reading.capacity_bytes, reading.pcie_bytes, by_pid))
            cards = self.core.cards.values()
            contended = any(len(card.active) > 1 for card in cards)
            shortest_s = min([_SAMPLE_BUSY_S, *(max(card.quantum_s / 10, 0.01) for card in cards)])
            if contended:
                await asyncio.sleep(shortest_s)
                continue
            # Wake up for the first switch after a quiet time, because it shows what a switch costs.
            self._contention.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAMPLE_IDLE_S):
                    await self._contention.wait()

    def card_named(self, raw: bytes | None) -> CardId | None:
        """The card that a client names, or the first card; created on demand if the machine's cards are unknown."""
        if raw is None:
            if self.inventory:
                return self.inventory[0]
            return next(iter(self.core.cards), None) or self._new_card(DEFAULT_CARD)
        card = CardId(wire.uuid_text(raw))
        if card in self.core.cards:
            return card
        if self.inventory or len(self.core.cards) >= MAX_CARDS:
            return None
        return self._new_card(card)

    def _new_card(self, card: CardId) -> CardId:
        self.submit(ev.CardAdded(card))
        self._holders.expect_unknown(card, self.now_s())
        self._listen_for(card)
        return card

    def _listen_for(self, card: CardId) -> None:
        if card in self._card_listeners:
            return
        path = self.paths.card_socket(card)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.parent.chmod(0o711)
            self._card_listeners[card] = workload_listener(path, self.sessions, card, self._loop)
        except OSError as error:
            log.warning("no separate socket for the GPU", gpu=card, path=str(path), error=str(error))

    def is_on(self, card: CardId) -> bool:
        """Whether scheduling is on for a card."""
        return self.core.cards[card].on

    def idle_s(self, card: CardId) -> float:
        """The idle time after which a client should release the lock."""
        return self.core.cards[card].idle_s

    def group_of(self, client: ClientId, run: str = "") -> Group | None:
        """For a client in a pod the pod, by its cgroup; otherwise the run that its user started."""
        known = self.core.clients.get(client)
        if known is None:
            return None
        if known.pod_uid and known.pod_uid != peers.UNKNOWN_POD:
            return ("pod", known.pod_uid)
        run = run or known.run
        return ("run", str(known.uid), run) if run and not known.pod_uid else None

    def terms_for(self, peer: Peer, namespace: str, pod: str, tenant: str) -> Terms:
        """The terms of the first rule that matches."""
        return self._first_rule(tenant=tenant, namespace=namespace, pod=pod, pod_uid=peer.pod, uid=peer.uid)

    def rule_terms(self, client: Client) -> Terms:
        """The terms that the rules give to a connected client."""
        return self._first_rule(
            tenant=client.tenant, namespace=client.namespace, pod=client.pod, pod_uid=client.pod_uid, uid=client.uid
        )

    def _first_rule(self, *, tenant: str, namespace: str, pod: str, pod_uid: str, uid: int) -> Terms:
        for rule in self.rules:
            if rule.matches(tenant=tenant, namespace=namespace, pod=pod, pod_uid=pod_uid, uid=uid):
                return rule.terms()
        return Terms()

    def status(self) -> Status:
        """The complete status, for the control socket and for metrics."""
        return collect(
            self.core,
            self.now_s(),
            version=__version__,
            pid=os.getpid(),
            epoch=self.epoch,
            started_s=self._started_s,
        )

    def control(self, request: SetCard | SetClient | SetRule | DropRule | Park) -> Done:
        """Carry out a command."""
        return commands.carry_out(self, request)

    def choose(self, request: Choose) -> Chosen:
        """GPUs for a run that starts now."""
        return Chosen(self._placements.choose(self.status(), request.run, request.gpus))

    def forget(self, run: str) -> None:
        """A run for which GPUs were chosen has ended."""
        self._placements.forget(run)

    def counts(self) -> dict[str, int]:
        """Counters of the daemon itself."""
        return {
            "events": self.events_handled,
            "frames_received": self.sessions.frames_received,
            "frames_sent": self.sessions.frames_sent,
            "journal_failures": self._holders.failures,
        }

    def tenant_of(self, peer: Peer, namespace: str) -> str:
        """The namespace for a pod, otherwise the user name."""
        if peer.pod and namespace:
            return namespace
        try:
            return pwd.getpwuid(peer.uid).pw_name
        except KeyError:
            return f"uid-{peer.uid}"


def _group_id(name: str | None) -> int | None:
    if name is None:
        return None
    import grp

    try:
        return int(name) if name.isascii() and name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise UnavailableError(
            f"control_group {name!r} is not a group of this machine; create it, or name another one"
        ) from None


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
