"""Options that several programs share: the log, the API server, the lease."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.errors import UsageError

if TYPE_CHECKING:
    from baton.kube.client import Client
    from baton.kube.election import Election
    from baton.kube.kubeconfig import Access

LogJson = Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log debugging details.")]


def access(kubeconfig: Path | None) -> "Access":
    """How to reach the API server: by the given kubeconfig, the pod's service account, or $KUBECONFIG."""
    from baton.kube.credentials import in_cluster
    from baton.kube.kubeconfig import load

    return load([kubeconfig]) if kubeconfig is not None else in_cluster() or load()


def lease_name(text: str) -> tuple[str, str]:
    """The namespace and the name in `--lease`."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise UsageError(f"--lease is {text!r}, expected NAMESPACE/NAME")
    return namespace, name


def election(client: "Client", lease: tuple[str, str], identity: str, duration_s: float) -> "Election":
    """A candidate for the lease. The leader renews it every 2/15 of its duration and gives up at two thirds."""
    from baton.kube.election import Election

    namespace, name = lease
    return Election(
        client,
        name,
        namespace,
        identity,
        duration_s=duration_s,
        renew_deadline_s=duration_s * 2 / 3,
        retry_s=duration_s * 2 / 15,
    )
