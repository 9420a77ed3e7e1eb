"""`baton doctor`: checks everything that Baton can use on this machine, and gives a remedy for each problem.

A finding is `ok`, `absent` (an optional part is missing) or `broken` (a part is there but does not work). Only `broken`
makes the exit code 1: a laptop without a cluster is healthy.
"""

import contextlib
import enum
import http.client
import os
import shutil
import ssl
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from baton.cli.output import Format, FormatOption, QuietOption, command_app, write_data, write_table
from baton.cli.version import hook_version
from baton.errors import BatonError

if TYPE_CHECKING:
    from baton.gpu.cards import GpuSource
    from baton.kube.kubeconfig import Access

app = command_app()

_PROBE_TIMEOUT_S = 3.0
_KUBELET = Path("/var/lib/kubelet")


class Verdict(enum.StrEnum):
    """The result of a check."""

    OK = "ok"
    ABSENT = "absent"
    BROKEN = "broken"


class Finding(msgspec.Struct, frozen=True):
    """One check and its result."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def check_compiler() -> Finding:
    """A C compiler is needed only to build from source."""
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return Finding("compiler", Verdict.OK, path)
    return Finding(
        "compiler",
        Verdict.ABSENT,
        "no cc, gcc or clang on PATH; only a source checkout needs one",
        "apt-get install gcc libc6-dev",
    )


def check_hook() -> Finding:
    """The preload library that shares a GPU between processes."""
    version = hook_version()
    if version is None:
        return Finding(
            "hook",
            Verdict.BROKEN,
            "libbaton.so is missing or does not load",
            "reinstall Baton, or run `make native` in a checkout",
        )
    return Finding("hook", Verdict.OK, f"libbaton.so {version}")


def check_gpus() -> Finding:
    """The drivers of all vendors list real GPUs; the simulated driver answers the same calls as NVIDIA's."""
    from baton.gpu import vendors
    from baton.gpu.cards import NoDriverError

    simulated = 'without a GPU, use simulated ones: eval "$(baton simgpu start)"'
    sources, errors = vendors.open_drivers(vendors.VENDORS)
    found: list[str] = []
    sick: list[str] = []
    for source in sources:
        with contextlib.closing(source):
            count, problems = _look_at_cards(source)
            found.append(f"{count} GPU{'s' if count != 1 else ''} through the {source.description}")
            sick += problems
    failed = [str(error) for error in errors if not isinstance(error, NoDriverError)]
    if failed:
        return Finding("gpus", Verdict.BROKEN, "; ".join([*found, *failed]), f"load the driver; {simulated}")
    if sick:
        detail = "; ".join([*found, *sick])
        return Finding("gpus", Verdict.BROKEN, detail, "reset or replace the card, then check again")
    if not found:
        detail = "; ".join(map(str, errors))
        return Finding("gpus", Verdict.ABSENT, detail, f"install the driver of your cards; {simulated}")
    return Finding("gpus", Verdict.OK, "; ".join(found))


def _look_at_cards(source: "GpuSource") -> tuple[int, list[str]]:
    """The number of cards, and the problems of those that are not healthy."""
    cards = {card.id: card for card in source.cards()}
    sick = [f"GPU {cards[state.card].index}: {state.reason}" for state in source.health() if not state.healthy]
    if source.silent_cards:
        sick.append(f"{source.silent_cards} of {len(cards) + source.silent_cards} GPUs do not answer")
    return len(cards), sick


def check_cluster() -> Finding:
    """The cluster of the kubeconfig answers with its version."""
    from baton.kube import kubeconfig

    if not any(path.is_file() for path in kubeconfig.default_paths()) and "KUBECONFIG" not in os.environ:
        return Finding(
            "cluster",
            Verdict.ABSENT,
            "no kubeconfig; a single machine does not need one",
            "set KUBECONFIG to use a cluster",
        )
    try:
        access = kubeconfig.load()
    except BatonError as error:
        return Finding("cluster", Verdict.BROKEN, str(error), "correct the kubeconfig")
    if access.exec_command:
        return Finding("cluster", Verdict.OK, f"{access.server} (credentials from {access.exec_command[0]}, not tried)")
    try:
        version = _server_version(access)
    except (OSError, http.client.HTTPException, msgspec.DecodeError, ssl.SSLError) as error:
        return Finding(
            "cluster",
            Verdict.BROKEN,
            f"{access.server} does not answer: {error}",
            "check the server, the network and the certificates",
        )
    return Finding("cluster", Verdict.OK, f"{access.server} runs Kubernetes {version}")


def _server_version(access: "Access") -> str:
    url = urllib.parse.urlsplit(access.server)
    connection: http.client.HTTPConnection
    if context := access.ssl_context():
        connection = http.client.HTTPSConnection(url.netloc, timeout=_PROBE_TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(url.netloc, timeout=_PROBE_TIMEOUT_S)
    token = access.token_file.read_text().strip() if access.token_file else access.token
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", f"{url.path}/version", headers=headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(f"HTTP {response.status} {response.reason}")
        return str(msgspec.json.decode(body)["gitVersion"])
    finally:
        connection.close()


def check_kubelet() -> Finding:
    """The directories in which a node agent and kubelet find each other's sockets."""
    if not _KUBELET.is_dir():
        return Finding(
            "kubelet",
            Verdict.ABSENT,
            f"{_KUBELET} does not exist: this machine is not a Kubernetes node",
            "run the agent on the cluster's nodes",
        )
    missing = [name for name in ("device-plugins", "pod-resources") if not (_KUBELET / name / "kubelet.sock").exists()]
    if missing:
        return Finding(
            "kubelet",
            Verdict.BROKEN,
            f"no kubelet.sock in {', '.join(str(_KUBELET / name) for name in missing)}",
            "start kubelet",
        )
    return Finding("kubelet", Verdict.OK, f"sockets under {_KUBELET}")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_compiler,
    check_hook,
    check_gpus,
    check_cluster,
    check_kubelet,
)

_COLOURS = {Verdict.OK: "green", Verdict.ABSENT: "yellow", Verdict.BROKEN: "red"}


@app.command()
def doctor(output: FormatOption = Format.TABLE, quiet: QuietOption = False) -> None:
    """Check this machine for everything that Baton needs, with remedies.

    Exits with 1 if a part is broken; a missing optional part is not an error. --quiet lists only broken parts.
    """
    from rich.markup import escape

    findings = [check() for check in CHECKS]
    shown = [finding for finding in findings if not quiet or finding.verdict is Verdict.BROKEN]
    if output is not Format.TABLE:
        write_data(shown, output)
    elif shown:
        write_table(
            ("check", "verdict", "detail", "remedy"),
            (
                (
                    f.check,
                    f"[{_COLOURS[f.verdict]}]{f.verdict}[/]",
                    escape(f.detail),
                    escape(f.remedy) if f.verdict is not Verdict.OK else "",
                )
                for f in shown
            ),
        )
    raise typer.Exit(int(any(finding.verdict is Verdict.BROKEN for finding in findings)))
