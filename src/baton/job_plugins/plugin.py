"""The interface of a job plugin: its arguments, its objects, and helpers for changes to a pod."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from baton.errors import BatonError
from baton.job_plugins.pod_bodies import Body, pod_name
from baton.model.meta import Metadata
from baton.model.numerals import whole_number
from baton.model.resource import Resource
from baton.model.volcano import Job, TaskSpec

Value = str | int | bool


_MOST_HOSTS = 65_536


class AnyObject(msgspec.Struct, frozen=True):
    """An object of which only the metadata matters."""

    metadata: Metadata


SERVICES: Resource[AnyObject] = Resource("", "v1", "services", AnyObject)
CONFIG_MAPS: Resource[AnyObject] = Resource("", "v1", "configmaps", AnyObject)
SECRETS: Resource[AnyObject] = Resource("", "v1", "secrets", AnyObject)
NETWORK_POLICIES: Resource[AnyObject] = Resource("networking.k8s.io", "v1", "networkpolicies", AnyObject)


class PluginObject(NamedTuple):
    """An object that a plugin adds to a job."""

    resource: Resource[AnyObject]
    name: str
    make: Callable[[], Body]
    """Returns the object without metadata. May be slow: it runs in a thread, and only when the object is missing or has
    to be updated."""
    renewed: bool = False
    """Whether an existing object is updated."""


class Plugin:
    """One plugin of one job."""

    name: ClassVar[str]
    arguments: ClassVar[Mapping[str, Value]] = {}
    """Arguments and their defaults. The type of the default is the type of the argument."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.values = parsed(words, self.arguments)

    def text(self, name: str) -> str:
        return str(self.values[name])

    def number(self, name: str) -> int:
        return int(self.values[name])

    def flag(self, name: str) -> bool:
        return bool(self.values[name])

    def change_pod(self, job: Job, task: TaskSpec, index: int, pod: Body) -> None:
        """Change a pod before it is created."""

    def objects(self, job: Job) -> list[PluginObject]:
        """The objects that the job needs besides its pods."""
        return []


def parsed(words: Iterable[str], defaults: Mapping[str, Value]) -> dict[str, Value]:
    """Arguments as Go's flag package reads them: `-name=value`, `--name value`, `--switch`; `--` ends them.

    An invalid argument keeps its default, as in Volcano: a job that runs there must not fail here.
    """
    values = dict(defaults)
    waiting: str | None = None
    for word in words:
        if waiting is not None:
            _assign(values, waiting, word)
            waiting = None
            continue
        if word == "--" or not word.startswith("-"):
            break
        name, equals, text = word.lstrip("-").partition("=")
        if name not in values:
            break
        if equals:
            _assign(values, name, text)
        elif isinstance(values[name], bool):
            values[name] = True
        else:
            waiting = name
    return values


def _assign(values: dict[str, Value], name: str, text: str) -> None:
    kind = type(values[name])
    if kind is bool:
        values[name] = text.lower() in ("1", "t", "true")
    elif kind is int:
        number = whole_number(text)
        values[name] = number if number is not None else values[name]
    else:
        values[name] = text


def containers(pod: Body) -> list[Body]:
    return list(pod["spec"].get("containers") or ())


def all_containers(pod: Body) -> list[Body]:
    return [*containers(pod), *(pod["spec"].get("initContainers") or ())]


def add_env(targets: Iterable[Body], *variables: Body) -> None:
    for container in targets:
        container["env"] = [*(container.get("env") or ()), *variables]


def open_port(container: Body, name: str, port: int) -> None:
    """Declare a port unless the container already has it."""
    ports = container.get("ports") or []
    if all(known.get("containerPort") != port for known in ports):
        container["ports"] = [*ports, {"name": name, "containerPort": port}]


def find_task(job: Job, name: str) -> TaskSpec | None:
    return next((task for task in job.spec.tasks if task.name == name), None)


def hosts_of(job: Job, task: TaskSpec) -> list[str]:
    """The addresses of a task's pods in the headless service of the job. A fixed host name is one address."""
    if task.replicas > _MOST_HOSTS:
        raise BatonError(
            f"task {task.name} has {task.replicas} replicas, and a plugin lists the addresses of at most {_MOST_HOSTS},"
            " because a ConfigMap or Secret holds at most 1 MiB"
        )
    spec: dict[str, Any] = task.template.get("spec") or {}
    subdomain = spec.get("subdomain") or job.metadata.name
    fixed = spec.get("hostname")
    if fixed:
        return [f"{fixed}.{subdomain}"] if task.replicas else []
    return [f"{pod_name(job.metadata.name, task.name, index)}.{subdomain}" for index in range(task.replicas)]
