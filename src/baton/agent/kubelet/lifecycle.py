"""The life cycle of one resource's device plugin, as a pure state machine: events in, instructions out.

    WAITING      no kubelet to register with (kubelet.sock is absent); no server is running
    STARTING     the server is starting
    REGISTERING  the server answers; the Register call is in progress, or kubelet is to find the socket (registry)
    REGISTERED   kubelet accepted the plugin but has not opened its ListAndWatch stream yet
    SERVING      kubelet has an open stream: it uses the resource
    STOPPING     the server is stopping, with its streams
    PAUSED       waiting before the next attempt
    STOPPED      ended on request

The states follow from kubelet's behaviour. Kubelet opens ListAndWatch once per registration and never again, so the end
of a stream means "register again", not "wait". When an *old* stream of a resource ends, kubelet disconnects its present
client for that resource, so a second registration beside a live one loses both. Therefore only one generation of the
server exists at a time: the old one has stopped completely, with its streams closed, before the next one starts, and
events of an older generation are never mistaken for present ones. A restarted kubelet deletes every socket in its
directory before it creates its own, so a changed kubelet.sock or a lost plugin socket leads to a new generation.

The delay doubles with every attempt that did not last, with jitter so that several resources and nodes do not act in
step. A new kubelet.sock ends the delay, because a pod that is admitted before the plugin is back fails for good.
"""

import enum
import random
from collections import deque
from typing import NewType

import msgspec

Generation = NewType("Generation", int)
"""Counts the servers of one plugin; an event carries the generation it is about."""

StreamId = NewType("StreamId", int)

_HISTORY = 32


class Mode(enum.StrEnum):
    """How kubelet learns of the plugin."""

    REGISTER = "register"
    """The agent calls Register on kubelet.sock; the plugin's socket is beside it."""
    REGISTRY = "registry"
    """Kubelet finds a socket in plugins_registry and calls it; a kubelet restart deletes no socket of the agent."""


class State(enum.StrEnum):
    """See the module's description."""

    WAITING = "waiting"
    STARTING = "starting"
    REGISTERING = "registering"
    REGISTERED = "registered"
    SERVING = "serving"
    STOPPING = "stopping"
    PAUSED = "paused"
    STOPPED = "stopped"


class Pace(msgspec.Struct, frozen=True):
    """Delays and limits, in seconds."""

    first_delay_s: float = 0.1
    """Before the second attempt; doubles from there."""
    longest_delay_s: float = 5.0
    """Deliberately short: pods that are admitted meanwhile fail for good."""
    lasting_s: float = 30.0
    """A stream that lasted this long resets the delay."""
    stream_limit_s: float = 10.0
    """Kubelet opens its stream right after Register; if it does not within this time, the registration was lost."""
    found_limit_s: float = 20.0
    """Kubelet scans its plugin registry every second and gives up on an attempt after 10 s. It has missed or set aside
    a socket that it has not used for this long, and only a new socket makes it look again."""


class SocketsSeen(msgspec.Struct, frozen=True):
    """The sockets in kubelet's directory now: a mark (inode and change time) of each, or None."""

    kubelet: tuple[int, int] | None
    own: tuple[int, int] | None


class ServerUp(msgspec.Struct, frozen=True):
    """The server of this generation answers on its socket."""

    generation: Generation
    own: tuple[int, int]


class ServerFailed(msgspec.Struct, frozen=True):
    """The server of this generation could not start."""

    generation: Generation
    reason: str


class ServerDown(msgspec.Struct, frozen=True):
    """The server of this generation has stopped, and all its streams are closed."""

    generation: Generation


class Accepted(msgspec.Struct, frozen=True):
    """Kubelet answered Register, or told the registry's socket that it uses the plugin."""

    generation: Generation


class Refused(msgspec.Struct, frozen=True):
    """Kubelet refused the registration or could not be reached."""

    generation: Generation
    reason: str


class StreamOpened(msgspec.Struct, frozen=True):
    """Kubelet called ListAndWatch."""

    generation: Generation
    stream: StreamId


class StreamClosed(msgspec.Struct, frozen=True):
    """A ListAndWatch stream ended, on either side."""

    generation: Generation
    stream: StreamId


class Woken(msgspec.Struct, frozen=True):
    """The time of a `WakeAt` has come."""


class StopAsked(msgspec.Struct, frozen=True):
    """The agent is ending, or the resource has left the configuration."""


class RestartAsked(msgspec.Struct, frozen=True):
    """Register again although nothing failed: the plugin's options have changed."""


Event = (
    SocketsSeen
    | ServerUp
    | ServerFailed
    | ServerDown
    | Accepted
    | Refused
    | StreamOpened
    | StreamClosed
    | Woken
    | StopAsked
    | RestartAsked
)


class StartServer(msgspec.Struct, frozen=True):
    """Start the server of this generation; answer with ServerUp or ServerFailed."""

    generation: Generation


class StopServer(msgspec.Struct, frozen=True):
    """Stop the server, close its streams, remove its socket; answer with ServerDown."""

    generation: Generation


class Register(msgspec.Struct, frozen=True):
    """Call kubelet's Register; answer with Accepted or Refused."""

    generation: Generation


class WakeAt(msgspec.Struct, frozen=True):
    """Send Woken at this time; replaces an earlier WakeAt."""

    time_s: float


class Tell(msgspec.Struct, frozen=True):
    """Write this sentence to the log: the state changed for a reason that an operator may need."""

    state: State
    reason: str


Instruction = StartServer | StopServer | Register | WakeAt | Tell


class PluginLife:
    """The state machine of one resource. `handle` is its only input."""

    def __init__(self, mode: Mode, chance: random.Random, pace: Pace | None = None) -> None:
        self.mode = mode
        self.pace = pace or Pace()
        self.state = State.WAITING
        self.reason = "not started"
        self.generation = Generation(0)
        self.attempts = 0
        self.story: deque[tuple[float, State, str]] = deque(maxlen=_HISTORY)
        self._chance = chance
        self._kubelet: tuple[int, int] | None = None
        self._own: tuple[int, int] | None = None
        self._streams: set[StreamId] = set()
        self._had_stream = False
        self._serving_since_s: float | None = None
        self._deadline_s: float | None = None
        self._stop_wanted = False
        self._at_once = False

    @property
    def registered(self) -> bool:
        """Whether kubelet uses the plugin at this moment."""
        return self.state is State.SERVING

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Process one event; returns the instructions in their order."""
        if self.state is State.STOPPED:
            return []
        match event:
            case SocketsSeen():
                return self._sockets(event, now_s)
            case StopAsked():
                self._stop_wanted = True
                if self.state in (State.WAITING, State.PAUSED):
                    return self._become(State.STOPPED, "asked to stop", now_s)
                return self._take_down("asked to stop", now_s)
            case RestartAsked():
                return self._take_down("asked to register again", now_s, at_once=True) if self._running() else []
            case Woken():
                return self._woken(now_s)
        if event.generation != self.generation:
            return []
        match event:
            case ServerUp():
                return self._server_up(event, now_s)
            case ServerFailed() if self.state is State.STARTING:
                return self._pause(event.reason, now_s)
            case ServerFailed() | ServerDown() if self.state is State.STOPPING:
                return self._after_stop(now_s)
            case Accepted() if self.state is State.REGISTERING:
                return self._accepted(now_s)
            case Refused() if self.state in (State.REGISTERING, State.REGISTERED):
                return self._take_down(event.reason, now_s)
            case StreamOpened():
                return self._stream_opened(event, now_s)
            case StreamClosed():
                return self._stream_closed(event, now_s)
        return []

    def _running(self) -> bool:
        return self.state in (State.STARTING, State.REGISTERING, State.REGISTERED, State.SERVING)

    def _sockets(self, seen: SocketsSeen, now_s: float) -> list[Instruction]:
        before, self._kubelet = self._kubelet, seen.kubelet
        renewed = seen.kubelet is not None and seen.kubelet != before
        if self.mode is Mode.REGISTRY:
            # Kubelet finds the plugin by itself, so kubelet's own socket does not matter.
            if self.state is State.WAITING:
                return self._start(now_s)
        elif self.state is State.WAITING:
            return self._start(now_s) if seen.kubelet is not None else []
        elif self.state is State.PAUSED and renewed:
            self.attempts = 0
            return self._start(now_s)
        elif self._running() and seen.kubelet is None:
            return self._take_down("kubelet.sock is gone", now_s)
        elif self._running() and renewed:
            self.attempts = 0
            return self._take_down("kubelet has restarted (kubelet.sock is a new one)", now_s, at_once=True)
        elif self.state is State.STOPPING and renewed:
            self._at_once = True
        if self.state in (State.REGISTERING, State.REGISTERED, State.SERVING) and seen.own != self._own:
            return self._take_down("the plugin's socket was removed or replaced", now_s)
        return []

    def _server_up(self, event: ServerUp, now_s: float) -> list[Instruction]:
        if self.state is not State.STARTING:
            return []
        self._own = event.own
        if self.mode is Mode.REGISTRY:
            self._deadline_s = now_s + self.pace.found_limit_s
            return [
                *self._become(State.REGISTERING, "waiting for kubelet to find the socket", now_s),
                WakeAt(self._deadline_s),
            ]
        return [*self._become(State.REGISTERING, "asking kubelet", now_s), Register(self.generation)]

    def _accepted(self, now_s: float) -> list[Instruction]:
        if self._streams:
            return self._serve(now_s)
        if self._had_stream:
            return self._take_down("kubelet closed its stream during the registration", now_s)
        self._deadline_s = now_s + self.pace.stream_limit_s
        return [
            *self._become(State.REGISTERED, "accepted; waiting for kubelet's stream", now_s),
            WakeAt(self._deadline_s),
        ]

    def _stream_opened(self, event: StreamOpened, now_s: float) -> list[Instruction]:
        self._streams.add(event.stream)
        self._had_stream = True
        # Kubelet opens the stream before it has answered Register; the call then decides. In the registry there is no
        # Register call, and a kubelet that streams has accepted the plugin even if its notification is still pending.
        if self.state is State.REGISTERED or (self.state is State.REGISTERING and self.mode is Mode.REGISTRY):
            return self._serve(now_s)
        return []

    def _stream_closed(self, event: StreamClosed, now_s: float) -> list[Instruction]:
        self._streams.discard(event.stream)
        if self._streams or self.state is not State.SERVING:
            return []
        return self._take_down("kubelet closed its stream", now_s)

    def _serve(self, now_s: float) -> list[Instruction]:
        self._deadline_s = None
        self._serving_since_s = now_s
        return self._become(State.SERVING, "registered with kubelet", now_s)

    def _woken(self, now_s: float) -> list[Instruction]:
        if self._deadline_s is None or now_s < self._deadline_s:
            return []
        self._deadline_s = None
        if self.state is State.PAUSED:
            return self._start(now_s)
        if self.state is State.REGISTERED:
            return self._take_down(f"kubelet opened no stream within {self.pace.stream_limit_s:g} s", now_s)
        if self.state is State.REGISTERING and self._kubelet is not None:
            reason = f"kubelet did not find the socket within {self.pace.found_limit_s:g} s"
            return self._take_down(reason, now_s, at_once=True)
        if self.state is State.REGISTERING:
            # There is no kubelet to find the socket; a kubelet that starts scans the existing ones.
            self._deadline_s = now_s + self.pace.found_limit_s
            return [WakeAt(self._deadline_s)]
        return []

    def _start(self, now_s: float) -> list[Instruction]:
        self._deadline_s = None
        if self.mode is Mode.REGISTER and self._kubelet is None:
            return self._become(State.WAITING, "kubelet.sock does not exist", now_s)
        self.generation = Generation(self.generation + 1)
        self._streams.clear()
        self._had_stream = False
        self._serving_since_s = None
        self._at_once = False
        self.attempts += 1
        return [*self._become(State.STARTING, f"attempt {self.attempts}", now_s), StartServer(self.generation)]

    def _take_down(self, reason: str, now_s: float, *, at_once: bool = False) -> list[Instruction]:
        self._at_once = self._at_once or at_once
        if self.state is State.STOPPING:
            return []
        if self._serving_since_s is not None and now_s - self._serving_since_s >= self.pace.lasting_s:
            self.attempts = 0
        self._deadline_s = None
        return [*self._become(State.STOPPING, reason, now_s), StopServer(self.generation)]

    def _after_stop(self, now_s: float) -> list[Instruction]:
        if self._stop_wanted:
            return self._become(State.STOPPED, "asked to stop", now_s)
        if self.mode is Mode.REGISTER and self._kubelet is None:
            return self._become(State.WAITING, "kubelet.sock does not exist", now_s)
        if self._at_once:
            return self._start(now_s)
        return self._pause(self.reason, now_s)

    def _pause(self, reason: str, now_s: float) -> list[Instruction]:
        exponent = min(max(self.attempts - 1, 0), 16)
        delay_s = min(self.pace.first_delay_s * 2**exponent, self.pace.longest_delay_s)
        self._deadline_s = now_s + delay_s * (0.5 + self._chance.random())
        return [*self._become(State.PAUSED, reason, now_s), WakeAt(self._deadline_s)]

    def _become(self, state: State, reason: str, now_s: float) -> list[Instruction]:
        self.state, self.reason = state, reason
        self.story.append((now_s, state, reason))
        return [Tell(state, reason)]
