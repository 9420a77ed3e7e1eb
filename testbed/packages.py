"""The Debian packages that real kubelets need, and the tests that are skipped without them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.errors import MissingError

CNI_DIRECTORIES = ("/usr/lib/cni", "/opt/cni/bin")

# Package: files of which at least one must exist.
NODE_PACKAGES: dict[str, tuple[str, ...]] = {
    "containerd": ("containerd", "ctr"),
    "runc": ("runc",),
    "containernetworking-plugins": tuple(f"{directory}/bridge" for directory in CNI_DIRECTORIES),
    "busybox-static": ("busybox",),
    "iproute2": ("ip",),
    "util-linux": ("nsenter", "unshare", "mount"),
}

SKIPPED = "the tests on real kubelets are skipped"


def missing_packages() -> list[str]:
    """The packages of which no file is installed."""
    return [name for name, files in NODE_PACKAGES.items() if not any(map(_is_here, files))]


def _is_here(file: str) -> bool:
    if file.startswith("/"):
        return Path(file).exists()
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return shutil.which(file, path=path) is not None


def require_node_packages() -> None:
    """Raise one sentence if real kubelets cannot run here."""
    if missing := missing_packages():
        raise MissingError(f"{', '.join(missing)} missing; as root on Debian: apt-get install {' '.join(missing)}")


def install() -> str | None:
    """Install the missing packages where possible; otherwise return one line: what is missing and what is skipped."""
    missing = missing_packages()
    if not missing:
        return None
    names = " ".join(missing)
    if shutil.which("apt-get") is None:
        return (
            f"missing on this machine, which is not Debian: {names}; {SKIPPED}; install them with the package manager"
        )
    if os.geteuid() != 0:
        return f"missing: {names}; {SKIPPED}; as root: apt-get install {names}"
    sys.stderr.write(f"testbed: installing {names}\n")
    if _apt("install", missing) and not missing_packages():
        return None
    if _apt("update", []) and _apt("install", missing) and not missing_packages():
        return None
    return f"apt-get could not install {' '.join(missing_packages())}; {SKIPPED}; see `apt-get install {names}`"


def _apt(verb: str, names: list[str]) -> bool:
    """Run apt-get quietly. Services must not start: the bed does not use the host's containerd."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = verb == "install" and not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        command = ["apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=300", verb, "--no-install-recommends", *names]
        if verb == "update":
            command = ["apt-get", "-qq", "update"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
    finally:
        if ours:
            policy.unlink(missing_ok=True)
