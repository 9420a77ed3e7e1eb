"""The daemon's configuration: one YAML file. All mistakes are reported at once."""

import fnmatch
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from baton.errors import UsageError
from baton.lock.core.events import Priority, Terms
from baton.lock.core.settings import Settings

PRIORITIES = {"low": Priority.LOW, "normal": Priority.NORMAL, "high": Priority.HIGH}


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Terms for the workloads that match every given field; the first matching rule applies."""

    tenant: str = "*"
    namespace: str = "*"
    pod: str = "*"
    pod_uid: str = "*"
    uid: int | None = None
    weight: float = 1.0
    priority: str = "normal"
    cores_percent: float = 0.0
    memory_bytes: int = 0
    oversubscribe: bool = True

    def matches(self, *, tenant: str, namespace: str, pod: str, pod_uid: str, uid: int) -> bool:
        """Whether the rule applies to a workload. The pod's uid comes from its cgroup and cannot be forged."""
        return (
            fnmatch.fnmatchcase(tenant, self.tenant)
            and fnmatch.fnmatchcase(namespace, self.namespace)
            and fnmatch.fnmatchcase(pod, self.pod)
            and fnmatch.fnmatchcase(pod_uid, self.pod_uid)
            and (self.uid is None or self.uid == uid)
        )

    def terms(self) -> Terms:
        """The terms that the rule gives."""
        return Terms(self.weight, PRIORITIES[self.priority], self.cores_percent, self.memory_bytes, self.oversubscribe)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the `--config` file."""

    settings: Settings = Settings()
    rules: tuple[Rule, ...] = ()
    control_group: str | None = None
    """The group whose members may control the daemon, in addition to root and the daemon's user."""


def load(path: Path) -> Config:
    """Read and check a configuration file."""
    try:
        raw = msgspec.yaml.decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; name an existing file") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: not valid YAML: {error}") from error
    try:
        config = msgspec.convert(raw or {}, type=Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from error
    problems = [*check_settings(config.settings), *check_rules(config.rules)]
    if problems:
        raise UsageError(f"{path}: " + "; ".join(problems))
    return config


def check_settings(settings: Settings) -> list[str]:
    """All problems with the settings, one clause each."""
    problems: list[str] = []
    positive = [
        "default_quantum_s", "min_quantum_s", "max_quantum_s", "link_bytes_per_s", "window_s", "drop_grace_s",
        "patience_quanta", "thrash_samples",
    ]  # fmt: skip
    not_negative = [
        "handover_s", "min_idle_s", "max_idle_s", "slice_switches", "revoke_s", "gang_grace_s", "holder_grace_s",
        "thrash_penalty_quanta", "thrash_slowdown",
    ]  # fmt: skip
    shares = ["switch_share", "fits_below", "full_above", "thrash_rate"]
    values: dict[str, Any] = msgspec.structs.asdict(settings)
    checks: list[tuple[Sequence[str], Callable[[Any], bool], str]] = [
        (positive, lambda value: value > 0, "a number above 0"),
        (not_negative, lambda value: value >= 0, "0 or more"),
        (shares, lambda value: 0 < value <= 1, "a share above 0 and at most 1"),
        (("quantum_s", "idle_s"), lambda value: value is None or value > 0, "a number above 0, or null for automatic"),
    ]
    for names, right, expected in checks:
        wrong = [name for name in names if not right(values[name])]
        problems += [f"settings.{name} is {values[name]}, expected {expected}" for name in wrong]
    if settings.min_quantum_s > settings.max_quantum_s:
        problems.append("settings.min_quantum_s is above settings.max_quantum_s; it must not be")
    if settings.min_idle_s > settings.max_idle_s:
        problems.append("settings.min_idle_s is above settings.max_idle_s; it must not be")
    if settings.fits_below > settings.full_above:
        problems.append("settings.fits_below is above settings.full_above; it must not be")
    return problems


def check_rules(rules: tuple[Rule, ...]) -> list[str]:
    """All problems with the rules, one clause each."""
    problems: list[str] = []
    for index, rule in enumerate(rules):
        if not 0 < rule.weight <= 1000:
            problems.append(f"rules[{index}].weight is {rule.weight}, expected a number above 0 and at most 1000")
        if rule.priority not in PRIORITIES:
            problems.append(f"rules[{index}].priority is {rule.priority!r}, expected one of {', '.join(PRIORITIES)}")
        if not 0 <= rule.cores_percent <= 100:
            problems.append(f"rules[{index}].cores_percent is {rule.cores_percent}, expected 0 to 100")
        if rule.memory_bytes < 0:
            problems.append(f"rules[{index}].memory_bytes is {rule.memory_bytes}, expected 0 (none) or more")
    return problems
