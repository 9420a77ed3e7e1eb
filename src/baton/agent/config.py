"""The agent's configuration: which resources a node offers, and how.

One file serves a whole cluster. `resources` is what every node offers; an entry of `nodes` whose pattern fits the
node's name replaces parts of it. Within a resource, `cards` picks cards by UUID, index or model and overrides the
resource's values for them; the first entry that matches a card counts. A resource without `cards` takes every card of
its vendor.

    resources:
      - name: nvshare.com/gpu
        replicas: 10
        cards:
          - model: "*A100*"
            replicas: 20
            sharing: concurrent
            memory-overcommit: 1.5
          - index: 7
            use: false

Reading the file reports every mistake that can be found without the hardware, all at once. `offers.plan` does the same
for mistakes that depend on the cards: a card in two resources, too many slots for kubelet.
"""

import enum
import fnmatch
import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from baton.agent.documents import Document
from baton.agent.kubelet.lifecycle import Mode
from baton.agent.offers.slot_choice import Policy
from baton.agent.offers.slots import MAX_SLOTS
from baton.gpu import vendors
from baton.gpu.cards import Card, VendorName
from baton.gpu.containers import DeviceList
from baton.model.suggestions import did_you_mean

_Replicas = Annotated[int, Meta(ge=1, le=MAX_SLOTS)]
_Overcommit = Annotated[float, Meta(ge=1.0, le=100.0)]
_Seconds = Annotated[float, Meta(ge=0.0, le=3600.0)]

_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_PREFIX = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_MAX_PREFIX = 253 - len("requests.")
_MAX_LABEL_PREFIX = 253


class Kind(enum.StrEnum):
    """What a resource counts."""

    SLOTS = "slots"
    """Time-shared slots of a card, as in nvshare."""
    VGPU = "vgpu"
    """Shares with limits on memory and cores, as Volcano's vGPU: three resources that belong together."""
    WHOLE = "whole"
    """Cards that one container uses alone."""


class Sharing(enum.StrEnum):
    """Who may run on a card at one moment; the lock daemon enforces it."""

    AUTO = "auto"
    """The daemon decides by memory demand and by its measurements."""
    EXCLUSIVE = "exclusive"
    CONCURRENT = "concurrent"


class CardRule(msgspec.Struct, frozen=True, rename="kebab"):
    """Which cards, and what is different for them. A card must match every given selector."""

    uuid: str | None = None
    index: Annotated[int, Meta(ge=0)] | None = None
    model: str | None = None
    """A pattern with * and ?; case does not matter."""
    use: bool = True
    """False excludes the card from this resource."""
    replicas: _Replicas | None = None
    sharing: Sharing | None = None
    memory_overcommit: _Overcommit | None = None

    def fits(self, card: Card) -> bool:
        """Whether this rule matches `card`."""
        return (
            (self.uuid is None or self.uuid == card.id)
            and (self.index is None or self.index == card.index)
            and (self.model is None or fnmatch.fnmatch(card.model.lower(), self.model.lower()))
        )


class Resource(msgspec.Struct, frozen=True, rename="kebab"):
    """One resource, or the three of a vGPU."""

    name: str
    kind: Kind = Kind.SLOTS
    vendor: VendorName = vendors.VENDORS[0].name
    """Whose cards it offers."""
    replicas: _Replicas = 10
    """Slots, or shares, per card."""
    policy: Policy = Policy.SPREAD
    max_per_container: Annotated[int, Meta(ge=0)] = 0
    """A container that asks for more is refused; 0 means no limit."""
    sharing: Sharing = Sharing.AUTO
    memory_overcommit: _Overcommit = 1.0
    """How much memory of a card may be promised in total, as a multiple of its memory."""
    only_listed_cards: bool = False
    """Take only cards that a rule names."""
    cards: tuple[CardRule, ...] = ()
    memory_name: str = "volcano.sh/vgpu-memory"
    """For kind vgpu: the resource that counts memory."""
    cores_name: str = "volcano.sh/vgpu-cores"
    """For kind vgpu: the resource that counts percents of a card's cores."""
    memory_unit_mib: Annotated[int, Meta(ge=1, le=65536)] = 1
    """For kind vgpu: the size of one unit of the memory resource; Volcano's gpuMemoryFactor."""

    def names(self) -> tuple[str, ...]:
        """Every resource name that this entry offers to kubelet."""
        return (self.name, self.memory_name, self.cores_name) if self.kind is Kind.VGPU else (self.name,)

    def rule_for(self, card: Card) -> CardRule | None:
        """The rule for `card`; None if this resource does not take it."""
        if card.vendor != self.vendor:
            return None
        rule = next((rule for rule in self.cards if rule.fits(card)), None)
        if rule is None:
            return None if self.only_listed_cards else CardRule()
        return rule if rule.use else None


class Kubelet(msgspec.Struct, frozen=True, rename="kebab"):
    """Kubelet's directories, and how the agent registers."""

    directory: str = "/var/lib/kubelet"
    """Kubelet's root directory: the PodResources socket and the plugin registry are below it."""
    plugin_directory: str = "/var/lib/kubelet/device-plugins"
    """Fixed in kubelet; it does not depend on the root directory."""
    registration: Mode = Mode.REGISTER
    own_directory: str = "/var/lib/kubelet/plugins/baton.dev"
    """With `registration: registry`, the directory of the agent's sockets; kubelet must see the same path."""


class Hook(msgspec.Struct, frozen=True, rename="kebab"):
    """The preload library in workloads."""

    enabled: bool = True
    directory: str = "/var/lib/baton/hook"
    """On the host. All versions stay here under different names, because kubelet replays old answers."""
    container_directory: str = "/usr/lib/baton"
    """Where a container sees it."""


class Lock(msgspec.Struct, frozen=True, rename="kebab"):
    """The lock daemon."""

    socket_directory: str = "/run/baton/lock"
    """On the host. It is mounted as a directory, so that containers see the sockets of a restarted daemon."""
    container_directory: str = "/run/baton/lock"
    supervise: bool = True
    """Start `baton lockd` if none answers; it keeps running when the agent ends."""
    load_limit_s: Annotated[float, Meta(ge=0.001, le=5.0)] = 0.04
    """How long policy `load` waits for the daemon before it spreads; kubelet admits no pod meanwhile."""


class Health(msgspec.Struct, frozen=True, rename="kebab"):
    """When a card counts as unhealthy, and when as healthy again."""

    enabled: bool = True
    settle_s: _Seconds = 0.3
    """Changes within this time are reported to kubelet together, because each report rewrites its whole checkpoint."""
    heal_s: _Seconds = 0.8
    """A card must pass its probes for this long before it is offered again. Together with the time until the first
    probe and the time until kubelet is told, this makes 1.5 s, or 2 s with slow probes."""
    hold_s: _Seconds = 60.0
    """The same after a fatal Xid that no probe has confirmed: the driver sees neither the fault nor its end."""
    probe_every_s: Annotated[float, Meta(ge=0.05, le=600.0)] = 0.4
    max_temperature_c: Annotated[int, Meta(ge=40, le=150)] | None = None
    """Above it a card takes no new work. There is no limit by default, because cards throttle themselves."""
    min_link_percent: Annotated[int, Meta(ge=0, le=100)] = 50
    """A card whose link to the host uses fewer of its lanes takes no new work, because programs that share it page over
    that link. Losing half of the lanes is common and only costs time. 0 disables the check."""
    ignore_xids: tuple[int, ...] = ()


class Api(msgspec.Struct, frozen=True, rename="kebab"):
    """What the agent writes to the API server. Containers get their cards without any of it."""

    enabled: bool = True
    labels: bool = True
    label_prefix: str = "baton.dev"
    """`nvidia.com` gives the names of NVIDIA's GPU feature discovery, for nodes that do not run it; under a vendor's
    prefix only that vendor's cards are described."""
    condition: bool = True
    events: bool = True
    pods: bool = True
    """Watch this node's pods: the scheduler's choice of cards, limits, mismatches."""
    load_every_s: Annotated[float, Meta(ge=1.0, le=3600.0)] = 15.0
    """The shortest time between two publications of load, temperature and power; unchanged values are not sent."""


class Serving(msgspec.Struct, frozen=True, rename="kebab"):
    """Where the agent listens."""

    metrics_address: str = "0.0.0.0:9465"
    """Serves metrics, /healthz and /readyz; empty disables it."""
    status_socket: str = "/run/baton/agent.sock"
    """The socket that `baton agent status` asks."""


class NodeOverride(msgspec.Struct, frozen=True, rename="kebab"):
    """What differs on some nodes. A list here replaces the list of the same name."""

    name: str
    """A pattern with * and ? for node names; the first entry that matches counts."""
    resources: tuple[Resource, ...] | None = None
    devices: tuple[str, ...] | None = None


class AgentConfig(msgspec.Struct, frozen=True, rename="kebab"):
    """The whole file."""

    resources: tuple[Resource, ...] = (Resource(name="nvshare.com/gpu"),)
    nodes: tuple[NodeOverride, ...] = ()
    devices: tuple[str, ...] = ()
    """Files that describe devices of other vendors; relative paths are relative to this file."""
    device_list: DeviceList = DeviceList.ENVIRONMENT
    cdi_kind: str = ""
    """With `device-list: cdi`, the vendor and class of the names; empty for those of the card's vendor."""
    kubelet: Kubelet = Kubelet()
    hook: Hook = Hook()
    lock: Lock = Lock()
    health: Health = Health()
    api: Api = Api()
    serving: Serving = Serving()

    def resource_names(self) -> tuple[str, ...]:
        """Every name under which cards are offered."""
        return tuple(name for resource in self.resources for name in resource.names())

    def for_node(self, node: str) -> "AgentConfig":
        """The configuration for one node."""
        for override in self.nodes:
            if fnmatch.fnmatch(node, override.name):
                return msgspec.structs.replace(
                    self,
                    resources=self.resources if override.resources is None else override.resources,
                    devices=self.devices if override.devices is None else override.devices,
                )
        return self


def load(path: Path) -> AgentConfig:
    """Read the file; `DocumentError` lists every mistake in it."""
    document = Document.read(path)
    return _checked(document, path.parent)


def parse(text: str, source: str = "the agent's configuration") -> AgentConfig:
    """Read the text of a file."""
    return _checked(Document(text, source), Path())


def _checked(document: Document, home: Path) -> AgentConfig:
    config = document.convert(AgentConfig)
    if config is None:
        # The mistakes so far prevent the conversion; the names can still be checked in the same pass.
        _check_raw_names(document)
        document.close()
        raise AssertionError("a document that does not convert has mistakes")
    _check_resources(document, config.resources, "resources")
    _check_paths(document, config)
    for number, override in enumerate(config.nodes):
        _check_resources(document, override.resources or (), f"nodes[{number}].resources")
    document.close()
    return msgspec.structs.replace(
        config,
        devices=tuple(str(home / name) for name in config.devices),
        nodes=tuple(
            msgspec.structs.replace(node, devices=tuple(str(home / name) for name in node.devices))
            if node.devices is not None
            else node
            for node in config.nodes
        ),
    )


def _check_raw_names(document: Document) -> None:
    listed = document.value.get("resources")
    seen: dict[str, int] = {}
    for number, entry in enumerate(listed if isinstance(listed, list) else ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(name, str):
            _check_name(document, f"resources[{number}].name", name, seen, number)


def _check_resources(document: Document, resources: tuple[Resource, ...], path: str) -> None:
    seen: dict[str, int] = {}
    for number, resource in enumerate(resources):
        where = f"{path}[{number}]"
        fields = ("name", "memory-name", "cores-name")
        for field, name in zip(fields, resource.names(), strict=False):
            _check_name(document, f"{where}.{field}", name, seen, number)
        _check_vendor(document, where, resource)
        if resource.kind is Kind.WHOLE and resource.policy is Policy.LOAD:
            document.mistake(f"{where}.policy", "is 'load', which applies to shared cards only")
        for rule_number, rule in enumerate(resource.cards):
            _check_rule(document, f"{where}.cards[{rule_number}]", rule, resource)


def _check_vendor(document: Document, where: str, resource: Resource) -> None:
    vendor = next((vendor for vendor in vendors.VENDORS if vendor.name == resource.vendor), None)
    if vendor is None:
        near = did_you_mean(resource.vendor, vendors.names(), lead="; ")
        known = ", ".join(vendors.names())
        document.mistake(f"{where}.vendor", f"is {resource.vendor!r}: expected one of {known}{near}")
    elif resource.kind is Kind.VGPU and not vendor.runs_hook:
        document.mistake(
            f"{where}.kind", f"is 'vgpu', whose limits need Baton's hook; it does not work with {vendor.title} cards"
        )


def _check_rule(document: Document, where: str, rule: CardRule, resource: Resource) -> None:
    if rule.uuid is None and rule.index is None and rule.model is None:
        document.mistake(where, "selects no card; give uuid, index or model")
    if resource.kind is Kind.WHOLE and rule.replicas not in (None, 1):
        document.mistake(f"{where}.replicas", f"is {rule.replicas}, but the resource gives out whole cards")


def _check_name(document: Document, where: str, name: str, seen: dict[str, int], number: int) -> None:
    if problem := name_problem(name):
        document.mistake(where, f"is {name!r}: {problem}")
    elif name in seen:
        document.mistake(where, f"is {name!r}, as in resources[{seen[name]}]; a resource name can be used once")
    seen.setdefault(name, number)


def name_problem(name: str) -> str:
    """Why kubelet would refuse a resource of this name; empty if it would not."""
    prefix, slash, rest = name.partition("/")
    if not slash:
        return "expected DOMAIN/NAME, such as nvshare.com/gpu"
    if prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io") or prefix.startswith("requests."):
        return "the domain is reserved by Kubernetes; use your own"
    if len(prefix) > _MAX_PREFIX or not _PREFIX.match(prefix):
        return f"the domain must be lower-case DNS labels of at most {_MAX_PREFIX} characters in total"
    if not _NAME.match(rest):
        return "the part after / must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
    return ""


def label_problem(name: str) -> str:
    """Why the API server would refuse a label of this name, and the whole request with it; empty if it would not."""
    prefix, slash, rest = name.rpartition("/")
    if slash and (len(prefix) > _MAX_LABEL_PREFIX or not _PREFIX.match(prefix)):
        return f"the part before / must be lower-case DNS labels of at most {_MAX_LABEL_PREFIX} characters in total"
    if not _NAME.match(rest):
        return "the name must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
    return ""


def _check_paths(document: Document, config: AgentConfig) -> None:
    absolute = {
        "kubelet.directory": config.kubelet.directory,
        "kubelet.plugin-directory": config.kubelet.plugin_directory,
        "kubelet.own-directory": config.kubelet.own_directory,
        "hook.directory": config.hook.directory,
        "hook.container-directory": config.hook.container_directory,
        "lock.socket-directory": config.lock.socket_directory,
        "lock.container-directory": config.lock.container_directory,
    }
    for field, value in absolute.items():
        if not value.startswith("/"):
            document.mistake(field, f"is {value!r}: expected an absolute path; kubelet mounts it")
    address = config.serving.metrics_address
    if address and (not re.fullmatch(r"\S*:[0-9]{1,5}", address) or int(address.rpartition(":")[2]) > 65535):
        document.mistake("serving.metrics-address", f"is {address!r}: expected HOST:PORT, or nothing")
    if problem := label_problem(f"{config.api.label_prefix}/gpu.count"):
        document.mistake("api.label-prefix", f"is {config.api.label_prefix!r}: {problem}")
