"""`python -m testbed`: manage beds from the shell, and prepare what `make setup` and `make test` need."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from baton.cli.output import Format, FormatOption, command_app, write_data, write_table
from baton.errors import BatonError, UsageError
from testbed import packages as debian
from testbed.building import build as build_set
from testbed.errors import BedError, MissingError, lack_is_failure
from testbed.programs import (
    ETCD,
    KUBERNETES_VERSION,
    KWOK,
    VOLCANO,
    VOLCANO_SUITE,
    ProgramSet,
    default_sets,
    kubernetes,
)
from testbed.state import beds, find_bed

app = command_app(help="A real Kubernetes on this machine, for tests.", no_args_is_help=True)

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

NameOption = Annotated[str, typer.Option("--name", help="Name of the bed.")]
VersionOption = Annotated[str, typer.Option("--kubernetes-version", help="Kubernetes version, as 1.MINOR.PATCH.")]


@app.command()
def up(
    kubelets: Annotated[int, typer.Option(help="Real nodes, each a kubelet with its own containerd (needs root).")] = 0,
    kwok_nodes: Annotated[int, typer.Option(help="Nodes simulated by KWOK.")] = 0,
    kwok_label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for KWOK nodes; repeatable.")] = None,
    kwok_taint: Annotated[list[str] | None, typer.Option(help="NAME=VALUE:EFFECT for KWOK nodes; repeatable.")] = None,
    kwok_resource: Annotated[
        list[str] | None, typer.Option(help="NAME=AMOUNT for KWOK nodes, for example nvidia.com/gpu=8; repeatable.")
    ] = None,
    controller_manager: Annotated[
        bool, typer.Option("--controller-manager", help="Run kube-controller-manager.")
    ] = False,
    scheduler: Annotated[bool, typer.Option("--scheduler", help="Run kube-scheduler.")] = False,
    scheduler_config: Annotated[
        Path | None, typer.Option(help="A KubeSchedulerConfiguration for kube-scheduler.", exists=True, dir_okay=False)
    ] = None,
    kubernetes_version: VersionOption = KUBERNETES_VERSION,
    port: Annotated[int | None, typer.Option(help="Port of the API server. Defaults to a free port.")] = None,
    name: NameOption = "default",
) -> None:
    """Start a bed that stays until `down`."""
    from testbed.bed import Bed, BedOptions

    began = time.monotonic()
    options = BedOptions(
        name=name,
        kubelets=kubelets,
        kwok_nodes=kwok_nodes,
        kwok_labels=dict(_pair(word, "--kwok-label") for word in kwok_label or []),
        kwok_taints=[_taint(word) for word in kwok_taint or []],
        kwok_resources=dict(_pair(word, "--kwok-resource") for word in kwok_resource or []),
        controller_manager=controller_manager,
        scheduler=scheduler or scheduler_config is not None,
        scheduler_config=_read_config(scheduler_config),
        kubernetes_version=kubernetes_version,
        port=port,
    )
    bed = Bed(options)
    bed.hand_over()
    taken_s = time.monotonic() - began
    sys.stdout.write(
        f"bed {name} is up after {taken_s:.1f} s: {kubelets} kubelets, {kwok_nodes} KWOK nodes\n"
        f"export KUBECONFIG={bed.kubeconfig}\n"
    )


def _pair(word: str, option: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise UsageError(f"{option} is '{word}'; expected NAME=VALUE")
    return name, value


def _taint(word: str) -> dict[str, str]:
    pair, colon, effect = word.rpartition(":")
    if not colon or effect not in TAINT_EFFECTS:
        raise UsageError(
            f"--kwok-taint is '{word}'; expected NAME=VALUE:EFFECT with an effect of {', '.join(TAINT_EFFECTS)}"
        )
    name, value = _pair(pair, "--kwok-taint")
    return {"key": name, "value": value, "effect": effect}


def _read_config(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        config = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise BedError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise BedError(f"{path} is not a KubeSchedulerConfiguration; expected a mapping with apiVersion and kind")
    return config


@app.command()
def down(name: NameOption = "default") -> None:
    """Stop a bed and remove everything it created."""
    from testbed.teardown import tear_down

    tear_down(find_bed(name))


@app.command()
def status(output: FormatOption = Format.TABLE) -> None:
    """List the beds of this user, with the owner and the number of processes of each."""
    from testbed.processes import marked_processes

    rows = [
        {
            "name": record.name,
            "id": record.id,
            "owner": "none (runs until `down`)" if record.owner is None else f"process {record.owner.pid}",
            "state": "garbage" if record.is_garbage else "up",
            "processes": len(list(marked_processes(record.id))),
            "directory": str(record.directory),
        }
        for record in beds()
    ]
    if output is not Format.TABLE:
        write_data(rows, output)
        return
    columns = ["name", "id", "owner", "state", "processes", "directory"]
    write_table(columns, [[str(row[column]) for column in columns] for row in rows])


@app.command()
def kubeconfig(name: NameOption = "default") -> None:
    """Print the path of a bed's kubeconfig."""
    sys.stdout.write(f"{find_bed(name).directory / 'kubeconfig'}\n")


@app.command()
def gc() -> None:
    """Remove the beds whose owner has died."""
    from testbed.teardown import collect_garbage

    for name in collect_garbage():
        sys.stdout.write(f"removed bed {name}\n")


@app.command()
def packages() -> None:
    """Install the Debian packages that real kubelets need (as root), or print one line that says what is missing."""
    if line := debian.install():
        sys.stderr.write(f"testbed: {line}\n")
        raise typer.Exit(1 if lack_is_failure() else 0)


@app.command()
def build(
    sets: Annotated[
        list[str] | None,
        typer.Argument(help="etcd, kubernetes, kwok, volcano or volcano-suite. Defaults to the first three."),
    ] = None,
    kubernetes_version: VersionOption = KUBERNETES_VERSION,
) -> None:
    """Compile the programs that are not in the user's cache yet.

    Without a Go module proxy the command prints one line and succeeds, except in CI or if sets are named.
    """
    known = {
        program_set.name: program_set
        for program_set in (ETCD, kubernetes(kubernetes_version), KWOK, VOLCANO, VOLCANO_SUITE)
    }
    if unknown := [name for name in sets or [] if name not in known]:
        raise BedError(f"cannot build '{unknown[0]}'; choose from {', '.join(known)}")
    wanted: list[ProgramSet] = [known[name] for name in sets] if sets else list(default_sets(kubernetes_version))
    try:
        for program_set in wanted:
            build_set(program_set)
    except MissingError as error:
        if lack_is_failure() or sets:
            raise
        sys.stderr.write(f"testbed: {error}; the tests on a real Kubernetes are skipped\n")


@app.command()
def suite(
    packages: Annotated[
        list[str] | None, typer.Argument(help="Packages of the suite. Defaults to all of them.")
    ] = None,
    focus: Annotated[str, typer.Option(help="Only the cases whose names match this regular expression.")] = "",
    results: Annotated[
        Path, typer.Option(help="Folder for reports and logs, with a subfolder per package.", file_okay=False)
    ] = Path("build/suite"),
) -> None:
    """Run Volcano's own end-to-end suite against Baton on KWOK nodes, and print the result of each package.

    Requires `python -m testbed build` and `python -m testbed build volcano-suite`. Exits with status 1 if a case fails.
    """
    from rich.markup import escape

    from testbed.suite import COLUMNS, run

    tallies = run(packages or [], results, focus=focus)
    write_table(COLUMNS, [tally.row() for tally in tallies])
    failed = [(tally.package, *failure) for tally in tallies for failure in tally.failed]
    if failed:
        sys.stdout.write("\n")
        write_table(("failed in", "case", "first words"), [[escape(word) for word in row] for row in failed])
        raise typer.Exit(1)


def main() -> None:
    """Run the command line; errors are printed as one sentence."""
    try:
        app(prog_name="python -m testbed", standalone_mode=True)
    except BatonError as error:
        sys.stderr.write(f"testbed: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
