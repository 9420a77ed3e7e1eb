"""`baton install`: installs Baton in the cluster of the kubeconfig."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from baton.cli.cluster.options import ContextOption, KubeconfigOption
from baton.cli.output import QuietOption, command_app, note

if TYPE_CHECKING:
    from baton.kube.client import Client

app = command_app()


@app.command()
def install(
    crds: Annotated[bool, typer.Option("--crds", help="Install only the custom resource definitions.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the API server check every object without storing it.")
    ] = False,
    as_yaml: Annotated[
        bool, typer.Option("--print", help="Print the objects as YAML instead of applying them.")
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    quiet: QuietOption = False,
) -> None:
    """Install Baton in a cluster, or upgrade an installation.

    Prints one line per object: created, changed or unchanged. A second run leaves correct objects unchanged, and
    never touches fields that others have set.
    """
    from baton.install.apply import manifests
    from baton.install.crds import definitions
    from baton.kube.client import Client
    from baton.kube.kubeconfig import load

    objects = definitions() if crds else [*definitions(), *manifests()]
    if as_yaml:
        typer.echo(_as_yaml(objects), nl=False)
        return
    client = Client(load([kubeconfig] if kubeconfig else None, context))
    asyncio.run(_install(client, objects, dry_run=dry_run, quiet=quiet))


def _as_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """Plain documents; a round trip through JSON copies shared parts, which YAML would otherwise write as anchors."""
    import json

    import yaml

    return yaml.safe_dump_all(json.loads(json.dumps(objects)), sort_keys=False, explicit_start=True, width=120)


async def _install(client: "Client", objects: Sequence[Mapping[str, Any]], *, dry_run: bool, quiet: bool) -> None:
    from baton.install.apply import apply, wait_established

    async with client:
        note(f"installing into {client.access.server} (context {client.access.context})", quiet=quiet)
        async for applied in apply(client, objects, dry_run=dry_run):
            where = f"{applied.namespace}/" if applied.namespace else ""
            typer.echo(f"{applied.kind} {where}{applied.name} {applied.outcome}{' (dry run)' if dry_run else ''}")
        if not dry_run:
            await wait_established(client, objects)
