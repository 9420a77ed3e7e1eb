"""The options with which commands name a cluster, and the connection to it.

This module imports nothing heavy, because command modules import it to declare their options.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.errors import UsageError

if TYPE_CHECKING:
    from baton.cli.cluster.requests import Cluster

KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Kubeconfig file. Defaults to $KUBECONFIG or ~/.kube/config.")
]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="Context in the kubeconfig. Defaults to its current context.")
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace. Defaults to the namespace of the context.")
]
AllNamespacesOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="List every namespace.")]


def place(namespace: str | None) -> str:
    """The namespace that a command searched, which may surprise the user when nothing was found."""
    return f"namespace {namespace}; use -A to search all namespaces" if namespace else "any namespace"


def connect(kubeconfig: Path | None = None, context: str | None = None, server: str | None = None) -> "Cluster":
    """Connect to the cluster of the options, or else to the one of this pod or of the user's kubeconfig."""
    import msgspec

    from baton.cli.cluster.requests import Cluster
    from baton.kube.credentials import in_cluster
    from baton.kube.kubeconfig import load

    if kubeconfig is not None and not kubeconfig.is_file():
        raise UsageError(f"--kubeconfig is {str(kubeconfig)!r}, which is not a file")
    access = None
    if kubeconfig is None and context is None and not os.environ.get("KUBECONFIG"):
        access = in_cluster()
    if access is None:
        access = load([kubeconfig] if kubeconfig else None, context)
    if server:
        access = msgspec.structs.replace(access, server=server.rstrip("/"))
    return Cluster(access)
