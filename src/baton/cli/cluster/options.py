"""How commands name a cluster: the options they share, and the way to it.

Nothing heavy is imported here, because command modules import this one to declare their options.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.errors import UsageError

if TYPE_CHECKING:
    from baton.cli.cluster.requests import Cluster

KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Kubeconfig file; $KUBECONFIG or ~/.kube/config else.")
]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; its current one else.")
]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; the context's own else.")]
AllNamespacesOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="In every namespace.")]


def place(namespace: str | None) -> str:
    """Where was looked, for the sentence that nothing is there: the namespace may be a surprise."""
    return f"namespace {namespace}; -A looks in all of them" if namespace else "any namespace"


def connect(kubeconfig: Path | None = None, context: str | None = None, server: str | None = None) -> "Cluster":
    """The cluster that the options name; without any, the one around this pod or of the user's kubeconfig."""
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
