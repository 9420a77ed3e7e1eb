"""The first process of a node: sets up the node's own view of the machine and then reaps orphaned processes.

Run by path, without packages, as process 1 of new mount, network, host name and process namespaces. The node gets its
own `/var` and `/run`, so kubelet, containerd, CNI and our programs use the same paths as on a real machine. Everything
that this process mounts disappears with it; when it dies, the kernel kills all other processes of the node.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path


def mount(*words: str) -> None:
    """Run mount(8)."""
    subprocess.run(["mount", *words], check=True)


def has_overlay(scratch: Path) -> bool:
    """Whether overlayfs works on the bed's file system; inside another container it may not."""
    for name in ("lower", "upper", "work", "merged"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
    merged = str(scratch / "merged")
    tried = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True, check=False
    )
    if tried.returncode == 0:
        subprocess.run(["umount", merged], check=True)
    return tried.returncode == 0


def furnish(bed: Path, node: Path) -> None:
    """Mount the node's own directories; the bed's directory keeps its path even if one of them covers it."""
    mount("-t", "proc", "proc", "/proc")
    bed_handle = os.open(bed, os.O_PATH)
    for name in ("var", "run"):
        mount("--bind", str(node / name), f"/{name}")
        if Path("/", name) in bed.parents:
            bed.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                ["mount", "--bind", f"/proc/self/fd/{bed_handle}", str(bed)], check=True, pass_fds=[bed_handle]
            )
    os.close(bed_handle)
    mount("--make-rshared", "/")
    Path("/proc/sys/kernel/hostname").write_text(node.name)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def main() -> None:
    """Set up the node, report that it is ready, then reap children until killed."""
    bed, node = Path(sys.argv[1]), Path(sys.argv[2])
    overlay = has_overlay(node / "overlay")
    furnish(bed, node)
    (node / "snapshotter").write_text("overlayfs" if overlay else "native")
    (node / "furnished").touch()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue


if __name__ == "__main__":
    main()
