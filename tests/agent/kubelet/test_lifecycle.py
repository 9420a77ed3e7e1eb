"""The plugin's life cycle: whatever kubelet does, one registration at a time, and registered again in the end.

`World` models everything around the state machine: a kubelet that may restart, lose the plugin's socket, cancel
streams, refuse or ignore registrations, and calls that take time. It checks the invariants at every step.
"""

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from baton.agent.kubelet import lifecycle as life
from baton.agent.kubelet.lifecycle import Generation, Mode, PluginLife, State, StreamId

Mark = tuple[int, int]


class World:
    """Kubelet, sockets and time around one plugin. `step` completes pending calls, in any order."""

    def __init__(self, mode: Mode = Mode.REGISTER, seed: int = 0) -> None:
        self.now_s = 0.0
        self.life = PluginLife(mode, random.Random(seed))
        self.kubelet: Mark | None = None
        self.own: Mark | None = None
        self.servers: set[Generation] = set()
        self.streams: dict[StreamId, Generation] = {}
        self.pending: list[life.Instruction] = []
        self.wake_at_s: float | None = None
        self.counter = 0
        self.unasked = False
        """In the registry: whether kubelet has seen our socket appear and is still to ask it. It sees it once."""
        self.told: list[str] = []

    def now_is(self, state: State) -> bool:
        return self.life.state is state

    def number(self) -> int:
        self.counter += 1
        return self.counter

    def send(self, event: life.Event) -> None:
        for instruction in self.life.handle(event, self.now_s):
            match instruction:
                case life.WakeAt(time_s):
                    self.wake_at_s = time_s
                case life.Tell(_, reason):
                    self.told.append(reason)
                case life.StartServer(generation):
                    assert not self.servers, "a server was started beside a running one"
                    self.servers.add(generation)
                    self.pending.append(instruction)
                case life.Register(generation):
                    assert self.servers == {generation}, "registered something other than the running server"
                    assert not self.streams, "registered while an old stream was open"
                    self.pending.append(instruction)
                case _:
                    self.pending.append(instruction)

    def look(self) -> None:
        self.send(life.SocketsSeen(self.kubelet, self.own))

    def start_kubelet(self) -> None:
        """Kubelet wipes its directory (not the registry), then serves; streams to the former one are dead."""
        self.stop_kubelet()
        if self.life.mode is Mode.REGISTER:
            self.own = None
        self.kubelet = (self.number(), 0)
        self.unasked = self.own is not None

    def stop_kubelet(self) -> None:
        for stream in list(self.streams):
            self.cancel(stream)

    def crash_kubelet(self) -> None:
        self.stop_kubelet()
        self.kubelet = None

    def cancel(self, stream: StreamId) -> None:
        self.send(life.StreamClosed(self.streams.pop(stream), stream))

    def step(self, *, refuse: bool = False, mute: bool = False) -> None:
        """Complete the oldest call under way."""
        if not self.pending:
            return
        match self.pending.pop(0):
            case life.StartServer(generation):
                self.own = (self.number(), 1)
                self.unasked = self.kubelet is not None and not mute
                self.send(life.ServerUp(generation, self.own))
                self.found_in_registry()
            case life.StopServer(generation):
                for stream in [s for s, of in self.streams.items() if of == generation]:
                    self.cancel(stream)
                self.servers.discard(generation)
                self.own = None
                self.unasked = False
                self.send(life.ServerDown(generation))
            case life.Register(generation):
                if self.kubelet is None or refuse:
                    self.send(life.Refused(generation, "connection refused"))
                    return
                if generation in self.servers and not mute:
                    self.open_stream(generation)
                self.send(life.Accepted(generation))

    def fail_server(self) -> None:
        if self.life.state is State.STARTING:
            self.servers.clear()
            self.pending.clear()
            self.send(life.ServerFailed(self.life.generation, "address in use"))

    def open_stream(self, generation: Generation) -> None:
        stream = StreamId(self.number())
        self.streams[stream] = generation
        self.send(life.StreamOpened(generation, stream))

    def found_in_registry(self) -> None:
        if self.life.mode is Mode.REGISTRY and self.unasked and self.servers:
            self.unasked = False
            (generation,) = self.servers
            self.send(life.Accepted(generation))
            self.open_stream(generation)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        if self.wake_at_s is not None and self.now_s >= self.wake_at_s:
            self.wake_at_s = None
            self.send(life.Woken())

    def settle(self) -> None:
        """Let the world be kind for a while: kubelet runs, calls complete, time passes."""
        for _ in range(60):
            self.look()
            while self.pending:
                self.step()
            self.found_in_registry()
            self.pass_time(1.0)


def serving(mode: Mode = Mode.REGISTER) -> World:
    world = World(mode)
    world.start_kubelet()
    world.settle()
    assert world.life.registered
    return world


def test_registers_at_once_when_kubelet_is_there() -> None:
    world = World()
    world.start_kubelet()
    world.look()
    world.step()
    world.step()
    assert world.now_is(State.SERVING)
    assert world.now_s == 0.0


def test_without_kubelet_nothing_is_started() -> None:
    world = World()
    world.look()
    assert world.now_is(State.WAITING)
    assert not world.servers


def test_the_plugin_registers_with_a_restarted_kubelet_without_delay() -> None:
    world = serving()
    first = world.life.generation
    world.start_kubelet()
    world.look()
    while world.pending:
        world.step()
    assert world.life.registered
    assert world.life.generation == first + 1


def test_a_cancelled_stream_leads_to_a_new_registration_although_kubelet_did_not_restart() -> None:
    """The race of two plugins of one resource: the end of the other plugin's stream cancels this one."""
    world = serving()
    world.cancel(next(iter(world.streams)))
    assert world.now_is(State.STOPPING)
    world.settle()
    assert world.life.registered


def test_a_lost_plugin_socket_leads_to_a_new_one() -> None:
    world = serving()
    world.own = None
    world.look()
    assert world.told[-1] == "the plugin's socket was removed or replaced"
    world.settle()
    assert world.life.registered


def test_an_accepted_registration_without_a_stream_is_repeated() -> None:
    world = World()
    world.start_kubelet()
    world.look()
    world.step()
    world.step(mute=True)
    assert world.now_is(State.REGISTERED)
    world.pass_time(10.0)
    assert world.now_is(State.STOPPING)
    world.settle()
    assert world.life.registered


def test_a_stream_that_comes_and_goes_during_register_counts_as_lost() -> None:
    world = World()
    world.start_kubelet()
    world.look()
    world.step()
    generation = world.life.generation
    world.open_stream(generation)
    world.cancel(next(iter(world.streams)))
    world.send(life.Accepted(generation))
    assert world.now_is(State.STOPPING)


def test_refusals_lead_to_growing_delays_up_to_the_limit() -> None:
    world = World(seed=7)
    world.start_kubelet()
    delays = []
    for _ in range(10):
        world.look()
        while world.pending:
            world.step(refuse=True)
        assert world.now_is(State.PAUSED)
        assert world.wake_at_s is not None
        delays.append(world.wake_at_s - world.now_s)
        world.pass_time(delays[-1])
    assert delays[0] <= 0.15
    assert delays[3] > delays[0]
    assert max(delays) <= world.life.pace.longest_delay_s * 1.5


def test_a_long_lived_stream_resets_the_delay() -> None:
    world = serving()
    world.life.attempts = 12
    world.pass_time(world.life.pace.lasting_s)
    world.cancel(next(iter(world.streams)))
    assert world.life.attempts == 0


def test_a_new_kubelet_cuts_the_delay_short() -> None:
    world = World()
    world.start_kubelet()
    world.look()
    for _ in range(3):
        world.step(refuse=True)
    assert world.now_is(State.PAUSED)
    world.start_kubelet()
    world.look()
    assert world.now_is(State.STARTING)


def test_events_of_an_earlier_generation_change_nothing() -> None:
    world = serving()
    old = Generation(world.life.generation - 1)
    for event in (life.ServerDown(old), life.StreamClosed(old, StreamId(1)), life.Refused(old, "late")):
        world.send(event)
    assert world.life.registered


def test_stopping_takes_the_server_down_and_ends() -> None:
    world = serving()
    world.send(life.StopAsked())
    world.step()
    assert world.now_is(State.STOPPED)
    assert not world.servers
    world.look()
    assert world.now_is(State.STOPPED)


def test_in_the_registry_a_kubelet_restart_without_losing_the_stream_changes_nothing() -> None:
    world = serving(Mode.REGISTRY)
    generation = world.life.generation
    world.kubelet = (world.number(), 0)
    world.look()
    assert world.life.registered
    assert world.life.generation == generation


def test_in_the_registry_a_lost_stream_leads_to_a_new_socket_for_kubelet_to_find() -> None:
    world = serving(Mode.REGISTRY)
    generation = world.life.generation
    world.crash_kubelet()
    world.start_kubelet()
    world.settle()
    assert world.life.registered
    assert world.life.generation > generation


def test_in_the_registry_a_socket_that_kubelet_ignores_is_created_again() -> None:
    world = World(Mode.REGISTRY)
    world.start_kubelet()
    world.look()
    world.step(mute=True)
    assert world.now_is(State.REGISTERING)
    world.pass_time(world.life.pace.found_limit_s)
    assert world.told[-1] == "kubelet did not find the socket within 20 s"
    world.settle()
    assert world.life.registered


def test_in_the_registry_an_absent_kubelet_needs_no_new_socket() -> None:
    world = World(Mode.REGISTRY)
    world.look()
    world.step()
    for _ in range(5):
        world.pass_time(world.life.pace.found_limit_s)
        world.look()
    assert world.now_is(State.REGISTERING)
    assert world.life.generation == 1
    world.start_kubelet()
    world.settle()
    assert world.life.registered
    assert world.life.generation == 1


MISFORTUNES: dict[str, Callable[[World], None]] = {
    "look": World.look,
    "step": World.step,
    "refuse": lambda world: world.step(refuse=True),
    "mute": lambda world: world.step(mute=True),
    "kubelet restarts": World.start_kubelet,
    "kubelet crashes": World.crash_kubelet,
    "stream cancelled": lambda world: world.cancel(next(iter(world.streams))) if world.streams else None,
    "socket removed": lambda world: setattr(world, "own", None),
    "short while": lambda world: world.pass_time(0.3),
    "long while": lambda world: world.pass_time(40.0),
    "restart asked": lambda world: world.send(life.RestartAsked()),
    "server fails": World.fail_server,
}


@pytest.mark.parametrize("mode", list(Mode))
@example(course=["kubelet restarts", "look", "mute"], seed=0)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    course=st.lists(st.sampled_from(sorted(MISFORTUNES)), max_size=60),
    seed=st.integers(min_value=0, max_value=1000),
)
def test_never_two_registrations_and_always_registered_in_the_end(mode: Mode, course: list[str], seed: int) -> None:
    world = World(mode, seed)
    for misfortune in course:
        MISFORTUNES[misfortune](world)
    if world.kubelet is None:
        world.start_kubelet()
    world.settle()
    assert world.life.registered, list(world.life.story)
    assert len(world.servers) == 1
    assert set(world.streams.values()) == {world.life.generation}
