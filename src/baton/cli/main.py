"""The `baton` command: a table of sub-commands, each imported only when it is called.

`baton --help` must be cheap, so the table holds each command's one-line help, and a module is imported only when its
command runs or completes. A module exposes `app` (a `typer.Typer`): a single command in it becomes the command itself,
several become its sub-commands.
"""

import importlib
import os
import signal
import sys
from typing import Any, NamedTuple

import typer
from typer._click.exceptions import ClickException
from typer._click.exceptions import UsageError as ClickUsageError
from typer.core import TyperCommand, TyperGroup

from baton.cli.output import command_app, speak_any_locale
from baton.errors import BatonError, UsageError


class Entry(NamedTuple):
    """One command: its module below `baton.cli`, its one-line help, and the heading that lists it."""

    module: str
    help: str
    panel: str


_SHARE = "Sharing GPUs on this machine"
_CLUSTER = "On Kubernetes"
_STUDY = "Planning a cluster"
_SIMULATED = "Without a GPU"
_ABOUT = "About this installation"

COMMANDS: dict[str, Entry] = {
    "run": Entry("machine.run", "Run a program that shares GPUs with other programs on this machine.", _SHARE),
    "top": Entry("machine.top", "Watch which programs run on each GPU, which wait, and what each received.", _SHARE),
    "lock": Entry("machine.lock", "Show and control which programs run on the GPUs of this machine.", _SHARE),
    "lockd": Entry("programs.lockd", "Run the lock daemon, which gives programs their turns on GPUs.", _SHARE),
    "job": Entry("cluster.job", "Run, inspect and control jobs on Kubernetes.", _CLUSTER),
    "queue": Entry("cluster.queue", "Create, inspect and control the queues in which jobs wait.", _CLUSTER),
    "pod": Entry("cluster.pod", "Inspect the pods of jobs and queues.", _CLUSTER),
    "why": Entry("cluster.why", "Explain what a pod or a job waits for, and what would help.", _CLUSTER),
    "state": Entry("cluster.state", "Record the state that the scheduler sees, and replay it.", _CLUSTER),
    "agent": Entry("programs.agent", "Run the node agent, which gives containers their GPUs.", _CLUSTER),
    "admission": Entry("programs.admission", "Run the webhooks: defaults and checks for jobs and GPU pods.", _CLUSTER),
    "install": Entry("cluster.install", "Install Baton in a cluster, or upgrade an installation.", _CLUSTER),
    "controller": Entry("programs.controller", "Run the controllers of jobs, queues and pod groups.", _CLUSTER),
    "scheduler": Entry("programs.scheduler", "Run the scheduler, which decides where and when pods run.", _CLUSTER),
    "sim": Entry("sim", "Replay a trace of jobs through the scheduler and compare policies.", _STUDY),
    "demo": Entry("machine.demo", "Run the same jobs one after the other, unmanaged, and with Baton.", _SIMULATED),
    "simgpu": Entry("machine.simgpu", "Start, inspect, break and stop simulated GPUs.", _SIMULATED),
    "doctor": Entry("doctor", "Check this machine for everything that Baton needs, with remedies.", _ABOUT),
    "version": Entry("version", "Show the version of Baton and of its native libraries.", _ABOUT),
}


class LazyGroup(TyperGroup):
    """Lists commands from the table; imports a command's module only to run or complete it."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # typer's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # typer's signature
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        return TyperCommand(cmd_name, help=entry.help, rich_help_panel=entry.panel, callback=lambda: None)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # typer's signature
        for panel in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
            with formatter.section(panel):
                formatter.write_dl([(name, e.help) for name, e in COMMANDS.items() if e.panel == panel])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from baton.model.suggestions import did_you_mean

            hint = did_you_mean(args[0], COMMANDS) or f"there are {', '.join(COMMANDS)}"
            raise UsageError(f"no command {args[0]!r}; {hint}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and name in COMMANDS:
            module = importlib.import_module(f"baton.cli.{COMMANDS[name].module}")
            command = typer.main.get_command(module.app)
            command.name = name
        return name, command, rest


app = command_app(
    cls=LazyGroup,
    name="baton",
    help="GPU sharing and GPU scheduling, on Kubernetes or on one machine without it.",
    invoke_without_command=True,
    add_completion=True,
)


@app.callback()
def _root(context: typer.Context) -> None:
    """GPU sharing and GPU scheduling, on Kubernetes or on one machine without it."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


def main() -> None:
    """The entry point: an error that the user can act on becomes one sentence on stderr and an exit code."""
    speak_any_locale()
    try:
        sys.exit(app(standalone_mode=False, prog_name="baton") or 0)
    except ClickException as error:
        where = error.ctx.command_path if isinstance(error, ClickUsageError) and error.ctx else "baton"
        sys.stderr.write(f"{where}: {error.format_message().rstrip('.')}; see `{where} --help`\n")
        sys.exit(error.exit_code)
    except BatonError as error:
        sys.stderr.write(f"baton: {error}\n")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader closed the pipe (`baton … | head`), which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


if __name__ == "__main__":
    main()
