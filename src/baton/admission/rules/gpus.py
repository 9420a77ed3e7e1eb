"""Impossible GPU shares, and pods that would take GPUs by themselves.

Kubelet puts the environment of a device plugin before the container's own, so a container that sets
`NVIDIA_VISIBLE_DEVICES` chooses its GPUs itself, and the scheduler's accounts and the lock would be wrong about it.
That is refused for every container of a pod that asks for shared GPUs. `void` and `none` in a container without a
GPU only hide GPUs and are allowed.
"""

from collections.abc import Sequence

from baton.admission.findings import Field, Findings, Rule, show
from baton.admission.patches import Patches
from baton.engine.state.resources import SLOTS, VGPU_CORES, VGPU_MEMORY, VGPU_NUMBER
from baton.gpu import vendors
from baton.mapping.cards import GPU_MEMORY, GPU_NUMBER, MODE, VGPU_PERCENTAGE
from baton.model.quantities import QuantityError, scaled

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
PRELOAD = "LD_PRELOAD"
WHOLE = "nvidia.com/gpu"
MODES = ("hami-core", "mig")

_VGPU = (VGPU_NUMBER, VGPU_MEMORY, VGPU_PERCENTAGE, VGPU_CORES)
_HIDING = ("void", "none", "")

SETS_VISIBLE_DEVICES = Rule(
    "sets-visible-devices",
    "{field} sets {variable} to {value} in a pod that asks for {resource}: it would override the GPU that the"
    " container is assigned; remove the variable",
)
SETS_PRELOAD = Rule(
    "sets-preload",
    "{field} sets LD_PRELOAD to {value} in a container that asks for {resource}: it would replace the library that "
    "shares "
    "the GPU; remove it, and use /etc/ld.so.preload in the image for libraries of your own",
)
PERCENTAGE = Rule("vgpu-percentage", "{field} is {value}, expected 1 to 100: it is the percentage of one card's memory")
CORES = Rule(
    "vgpu-cores",
    "{field} is {value}, expected 0 to 100: it is the percentage of one card's compute; for more than one card raise "
    "volcano.sh/vgpu-number",
)
NEEDS_NUMBER = Rule(
    "vgpu-needs-number",
    "{field} is {value} but {number} is not set, so the container would get no card; add `{number}: 1`",
)
NUMBER_ZERO = Rule(
    "vgpu-number-zero",
    "{field} is {value} while {other} is set, so the container would get no card; set it to 1 or remove {other}",
)
NOT_WHOLE = Rule("gpu-not-whole", "{field} is {value}, expected a whole number, not negative")
MIXED = Rule(
    "gpu-mixed",
    "{field} asks for {value}: a container gets its GPUs from one resource only; keep one of them",
)
VGPU_MODE = Rule("vgpu-mode", "{field} is {value}, expected {modes}; no node has another mode")


def wants_shares(spec: Field, slots: Sequence[str] = (SLOTS,)) -> str:
    """The first resource of shared GPUs that the pod asks for, or nothing."""
    ignored = Findings()
    for part in ("containers", "initContainers"):
        for container in spec[part].items(ignored):
            for name in (*slots, *_VGPU, GPU_MEMORY, GPU_NUMBER):
                if container["resources"]["limits"][name]:
                    return name
    return ""


def default_shares(spec: Field, patches: Patches, *root: str | int) -> None:
    """Memory of a card without a number of cards means one card, because kubelet assigns cards only by number."""
    ignored = Findings()
    for part in ("containers", "initContainers"):
        for place, container in enumerate(spec[part].items(ignored)):
            limits = container["resources"]["limits"]
            if limits[VGPU_MEMORY] and not limits[VGPU_NUMBER]:
                patches.set(*root, part, place, "resources", "limits", VGPU_NUMBER, value="1")


def check_gpus(pod: Field, findings: Findings, slots: Sequence[str] = (SLOTS,)) -> None:
    """Check a pod or a pod template: `metadata` and `spec`."""
    spec = pod["spec"]
    resource = wants_shares(spec, slots)
    if not resource:
        _warn_of_whole_cards(spec, findings)
        return
    mode = pod["metadata"]["annotations"][MODE]
    if mode and mode.value not in MODES:
        findings.add(VGPU_MODE, mode, modes=" or ".join(MODES))
    for part in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec[part].items(findings):
            asked = _check_container(container, findings, slots)
            _check_environment(container, asked, resource, findings)


def _warn_of_whole_cards(spec: Field, findings: Findings) -> None:
    """NVIDIA's plugin assigns whole cards, so this is a warning and not a refusal."""
    ignored = Findings()
    for container in spec["containers"].items(ignored):
        for variable in container["env"].items(ignored):
            if container["resources"]["limits"][WHOLE] and variable["name"].value == VISIBLE_DEVICES:
                findings.warn(
                    f"{variable.path} sets {VISIBLE_DEVICES} to {show(_given(variable))}: it overrides the cards that "
                    f"{WHOLE} gives; remove it"
                )


def _check_container(container: Field, findings: Findings, slots: Sequence[str]) -> str:
    """Check one container. Returns the resource that its cards come from, or nothing."""
    limits = container["resources"]["limits"]
    names = [name for name in (*slots, *_VGPU, GPU_MEMORY, GPU_NUMBER, WHOLE) if limits[name]]
    amounts: dict[str, int] = {}
    for name in names:
        amount = _amount(limits[name])
        if amount is None:
            findings.add(NOT_WHOLE, limits[name])
        else:
            amounts[name] = amount
    families = list(dict.fromkeys(VGPU_NUMBER if name in _VGPU else name for name in names))
    if len(families) > 1:
        findings.add(MIXED, Field(limits.path, " and ".join(names)))
    if VGPU_PERCENTAGE in amounts and not 1 <= amounts[VGPU_PERCENTAGE] <= 100:
        findings.add(PERCENTAGE, limits[VGPU_PERCENTAGE])
    if amounts.get(VGPU_CORES, 0) > 100:
        findings.add(CORES, limits[VGPU_CORES])
    parts = [name for name in (VGPU_MEMORY, VGPU_PERCENTAGE, VGPU_CORES) if limits[name]]
    if parts and not limits[VGPU_NUMBER]:
        findings.add(NEEDS_NUMBER, limits[parts[0]], number=VGPU_NUMBER)
    elif parts and amounts.get(VGPU_NUMBER) == 0:
        findings.add(NUMBER_ZERO, limits[VGPU_NUMBER], other=parts[0])
    if limits[VGPU_MEMORY] and limits[VGPU_PERCENTAGE]:
        findings.warn(
            f"{limits.path} has both {VGPU_MEMORY} ({show(limits[VGPU_MEMORY].value)}) and {VGPU_PERCENTAGE} "
            f"({show(limits[VGPU_PERCENTAGE].value)}); the percentage takes precedence"
        )
    return families[0] if families else ""


def _check_environment(container: Field, asked: str, resource: str, findings: Findings) -> None:
    ignored = Findings()
    variables = {variable for vendor in vendors.VENDORS for variable in vendor.variables}
    for variable in container["env"].items(ignored):
        name = variable["name"].value
        if isinstance(name, str) and name in variables:
            hides = not variable["valueFrom"] and (variable["value"].value or "") in _HIDING
            if asked or not hides:
                own = Field(variable.path, _given(variable))
                findings.add(SETS_VISIBLE_DEVICES, own, variable=name, resource=resource)
        elif name == PRELOAD and asked and asked != WHOLE:
            findings.add(SETS_PRELOAD, Field(variable.path, _given(variable)), resource=asked)


def _given(variable: Field) -> object:
    return variable["valueFrom"].value if variable["valueFrom"] else variable["value"].value or ""


def _amount(quantity: Field) -> int | None:
    """A whole number of indivisible units; None when it is not one."""
    value = quantity.value
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        milli = scaled(value, 1000)
    except QuantityError:
        return None
    return milli // 1000 if milli >= 0 and milli % 1000 == 0 else None
