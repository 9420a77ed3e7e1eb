"""One resource's connection to kubelet: carries out the instructions of the life cycle's state machine.

A task takes events from a queue, passes them to `PluginLife` and starts the resulting instructions. Every call that may
take time runs as a separate task and reports back as an event. The sockets are polled a few times per second: two
`stat` calls are cheap, work on every file system and mount, and detect any change with the next poll. A lost stream is
noticed at once.
"""

import asyncio
import contextlib
import hashlib
import os
import random
import re
from pathlib import Path
from typing import Any

import grpc
import structlog

from baton.agent.config import Kubelet
from baton.agent.kubelet import lifecycle as life
from baton.agent.kubelet.lifecycle import Generation, Mode, PluginLife, State, StreamId
from baton.agent.kubelet.plugin import RECEIVE_LIMIT_BYTES, Advisors, Board, PluginService
from baton.agent.proto import deviceplugin_pb2 as api
from baton.agent.proto import pluginregistration_pb2 as registry

_log = structlog.get_logger("baton.agent")

API_VERSION = "v1beta1"
LOOK_EVERY_S = 0.25
_REGISTER_LIMIT_S = 15.0
"""Kubelet connects back to the plugin within the call, for up to 10 s."""
_GRACE_S = 1.0
"""For an Allocate that is in progress when the server stops."""
_MAX_SOCKET_PATH = 107

LOCAL_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES))
"""One pool per channel: the shared pool remembers failures of a path and delays the next attempt."""


def socket_name(resource: str) -> str:
    """The file name of a resource's socket; kubelet joins it to its directory."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "-", resource)
    if len(plain) > 40:
        plain = f"{plain[:27]}-{hashlib.sha256(resource.encode()).hexdigest()[:12]}"
    return f"baton-{plain}.sock"


def mark(path: Path) -> tuple[int, int] | None:
    """What distinguishes a socket from a later one of the same name."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


class PluginEndpoint:
    """Serves and registers one board until it is stopped."""

    def __init__(
        self, board: Board, advisors: Advisors, kubelet: Kubelet, chance: random.Random, pace: life.Pace | None = None
    ) -> None:
        self.board = board
        self.life = PluginLife(kubelet.registration, chance, pace)
        self.registrations = 0
        self._advisors = advisors
        self._kubelet_socket = Path(kubelet.plugin_directory) / "kubelet.sock"
        name = socket_name(board.offer.name)
        if kubelet.registration is Mode.REGISTRY:
            self._socket = Path(kubelet.own_directory) / name
            self._announced = Path(kubelet.directory) / "plugins_registry" / name.replace(".sock", "-reg.sock")
        else:
            self._socket = self._announced = Path(kubelet.plugin_directory) / name
        self._events: asyncio.Queue[life.Event] = asyncio.Queue()
        self._servers: dict[Generation, tuple[PluginService, list[Any]]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._serving: asyncio.Task[None] | None = None
        self._registering: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._state_changed = asyncio.Condition()

    @property
    def resource(self) -> str:
        return self.board.offer.name

    async def run(self) -> None:
        """Run until `stop`; cancelling it stops the server at once."""
        looking = asyncio.create_task(self._look())
        loop = asyncio.get_running_loop()
        try:
            while self.life.state is not State.STOPPED:
                event = await self._events.get()
                for instruction in self.life.handle(event, loop.time()):
                    self._carry_out(instruction)
                async with self._state_changed:
                    self._state_changed.notify_all()
        finally:
            looking.cancel()
            if self._alarm:
                self._alarm.cancel()
            if self._serving is not None:
                await asyncio.gather(self._serving, return_exceptions=True)
            for call in tuple(self._calls):
                call.cancel()
            await asyncio.gather(looking, *self._calls, return_exceptions=True)
            for generation in tuple(self._servers):
                await self._stop_server(generation)

    def stop(self) -> None:
        """Stop the server and end `run`."""
        self._events.put_nowait(life.StopAsked())

    def register_again(self) -> None:
        """Make kubelet ask for the options again."""
        self._events.put_nowait(life.RestartAsked())

    async def until(self, state: State) -> None:
        """Wait until the life cycle is in `state`."""
        async with self._state_changed:
            await self._state_changed.wait_for(lambda: self.life.state is state)

    async def _look(self) -> None:
        while True:
            self._events.put_nowait(life.SocketsSeen(mark(self._kubelet_socket), mark(self._announced)))
            await asyncio.sleep(LOOK_EVERY_S)

    def _carry_out(self, instruction: life.Instruction) -> None:
        match instruction:
            case life.StartServer(generation):
                self._serving = self._spawn(self._serve(generation))
            case life.StopServer(generation):
                self._spawn(self._take_down(generation))
            case life.Register(generation):
                self._registering = self._spawn(self._register(generation))
            case life.WakeAt(time_s):
                if self._alarm:
                    self._alarm.cancel()
                loop = asyncio.get_running_loop()
                self._alarm = loop.call_at(time_s, self._events.put_nowait, life.Woken())
            case life.Tell(state, reason):
                if state is State.SERVING:
                    self.registrations += 1
                log = _log.debug if state in (State.STARTING, State.REGISTERING, State.REGISTERED) else _log.info
                log("device plugin", resource=self.resource, state=state.value, reason=reason)

    def _spawn(self, call: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def _serve(self, generation: Generation) -> None:
        def stream_seen(stream: int, is_open: bool) -> None:
            kind = life.StreamOpened if is_open else life.StreamClosed
            self._events.put_nowait(kind(generation, StreamId(stream)))

        service = PluginService(self.board, self._advisors, stream_seen)
        servers: list[Any] = []
        self._servers[generation] = (service, servers)
        try:
            servers.append(await _listen(self._socket, service.handlers()))
            if self._announced != self._socket:
                servers.append(await _listen(self._announced, self._registrar(generation)))
            found = mark(self._announced)
            if found is None:
                raise OSError(f"{self._announced} vanished as soon as it was created")
        except (OSError, RuntimeError) as error:
            await self._stop_server(generation)
            self._events.put_nowait(life.ServerFailed(generation, f"cannot serve on {self._socket}: {error}"))
            return
        self._events.put_nowait(life.ServerUp(generation, found))

    async def _take_down(self, generation: Generation) -> None:
        if self._registering is not None:
            # A call that was made for this server must not reach the next one.
            self._registering.cancel()
            await asyncio.gather(self._registering, return_exceptions=True)
            self._registering = None
        if self._serving is not None:
            # A server that is still starting can only be stopped once it runs.
            await asyncio.gather(self._serving, return_exceptions=True)
            self._serving = None
        await self._stop_server(generation)
        self._events.put_nowait(life.ServerDown(generation))

    async def _stop_server(self, generation: Generation) -> None:
        service, servers = self._servers.pop(generation, (None, []))
        if service is None:
            return
        for server in reversed(servers):
            # Stop listening first, then end the streams here: `stop` would wait its whole grace period for them.
            stopping = asyncio.ensure_future(server.stop(_GRACE_S))
            await service.close_streams()
            await stopping
        for path in {self._socket, self._announced}:
            with contextlib.suppress(OSError):
                path.unlink()

    async def _register(self, generation: Generation) -> None:
        offer = self.board.offer
        service = self._servers[generation][0]
        request = api.RegisterRequest(
            version=API_VERSION, endpoint=self._socket.name, resource_name=offer.name, options=service.options
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._kubelet_socket}", options=LOCAL_CHANNEL) as channel:
                register = channel.unary_unary(
                    "/v1beta1.Registration/Register",
                    request_serializer=api.RegisterRequest.SerializeToString,
                    response_deserializer=api.Empty.FromString,
                )
                await register(request, timeout=_REGISTER_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            reason = f"kubelet refused the registration: {error.code().name}: {error.details()}"
            self._events.put_nowait(life.Refused(generation, reason))
        else:
            self._events.put_nowait(life.Accepted(generation))

    def _registrar(self, generation: Generation) -> Any:
        """The calls that kubelet makes to a socket in its plugin registry."""

        async def get_info(_request: registry.InfoRequest, _context: Any) -> registry.PluginInfo:
            return registry.PluginInfo(
                type="DevicePlugin", name=self.resource, endpoint=str(self._socket), supported_versions=[API_VERSION]
            )

        async def notify(status: registry.RegistrationStatus, _context: Any) -> registry.RegistrationStatusResponse:
            if status.plugin_registered:
                self._events.put_nowait(life.Accepted(generation))
            else:
                self._events.put_nowait(life.Refused(generation, f"kubelet refused the registration: {status.error}"))
            return registry.RegistrationStatusResponse()

        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    get_info,
                    request_deserializer=registry.InfoRequest.FromString,
                    response_serializer=registry.PluginInfo.SerializeToString,
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    notify,
                    request_deserializer=registry.RegistrationStatus.FromString,
                    response_serializer=registry.RegistrationStatusResponse.SerializeToString,
                ),
            },
        )


def _make_way(path: Path) -> None:
    """Create the directory, and remove the socket of a previous process that was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


async def _listen(path: Path, handlers: Any) -> Any:
    if len(str(path)) > _MAX_SOCKET_PATH:
        raise OSError(f"the path has {len(str(path))} characters, more than the {_MAX_SOCKET_PATH} of a unix socket")
    _make_way(path)
    options = (("grpc.max_receive_message_length", RECEIVE_LIMIT_BYTES), ("grpc.so_reuseport", 0))
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server
