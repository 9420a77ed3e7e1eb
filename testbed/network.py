"""The network of a bed with kubelets: one bridge on the machine, one link into each node, routes to the pods.

The nodes and the machine share the bridge; every node and the machine have a route to the pods of every node through
that node's address. The machine itself forwards nothing, so none of its settings change and no packet filter is needed.
The bridge also has the first address of the cluster's service range, where the API server listens: clients in pods
reach it at the address in their environment, without kube-proxy.
"""

import os
import subprocess
from collections.abc import Sequence

from testbed.errors import BedError
from testbed.programs import find_tool
from testbed.state import MAX_KUBELETS, BedRecord


def _ip(lines: Sequence[str], *, enter: Sequence[str] = ()) -> None:
    """Run lines of `ip` as one batch."""
    tool = str(find_tool("ip", "iproute2"))
    result = subprocess.run(
        [*enter, tool, "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        reason = " ".join(result.stderr.split())
        raise BedError(f"cannot create the network of the bed ({reason}); real kubelets need root with CAP_NET_ADMIN")


def _pod_routes(record: BedRecord, *, besides: int = 0) -> list[str]:
    numbers = [number for number in range(1, MAX_KUBELETS + 1) if number != besides]
    return [f"route add {record.pod_range(number)} via {record.node_address(number)}" for number in numbers]


def create_bridge(record: BedRecord) -> None:
    """Create the machine's side of the network."""
    bridge = record.link_prefix
    _ip(
        [
            f"link add {bridge} type bridge",
            f"addr add {record.network[1]}/24 dev {bridge}",
            f"addr add {record.service_range[1]}/32 dev {bridge}",
            f"link set {bridge} up",
            *_pod_routes(record),
        ]
    )


def connect_node(record: BedRecord, number: int, init_pid: int, enter: Sequence[str]) -> None:
    """Give the node's network namespace its link, address and routes; it routes for its pods.

    After a power cut the kernel removes the old link some time after the node's last process, so it is removed here.
    """
    link = f"{record.link_prefix}n{number}"
    if link in links():
        _delete(link)
    _ip(
        [
            f"link add {link} type veth peer name eth0 netns {init_pid}",
            f"link set {link} master {record.link_prefix} up",
        ]
    )
    _ip(
        [
            "link set lo up",
            f"addr add {record.node_address(number)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {record.network[1]}",
            *_pod_routes(record, besides=number),
        ],
        enter=enter,
    )


def remove(record: BedRecord) -> None:
    """Remove the remaining links of the bed. Their routes disappear with them."""
    ours = [name for name in links() if name.startswith(record.link_prefix)]
    for name in sorted(ours, key=len, reverse=True):
        _delete(name)


def _delete(link: str) -> None:
    """Remove a link; the kernel may remove it first."""
    subprocess.run([str(find_tool("ip", "iproute2")), "link", "del", link], capture_output=True, check=False)


def links() -> list[str]:
    """The names of the machine's network links."""
    return os.listdir("/sys/class/net")
