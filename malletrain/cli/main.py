"""`malletrain`: one command with many below it, each loaded only when it is asked for.

So `malletrain status` runs on the base wheel, and in the time that its own imports take.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import NoReturn

import click

from malletrain import __version__, pip_install


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command that is not loaded yet: where it is, what its list entry says, which extra it needs."""

    module: str
    attribute: str
    summary: str
    extra: str = ""


COMMANDS = {
    "status": CommandEntry(
        "malletrain.cli.jobs", "status", "Show the cluster and every malleable job, or one in full."
    ),
    "top": CommandEntry("malletrain.cli.top", "top", "Watch the cluster live."),
    "web": CommandEntry("malletrain.cli.jobs", "web", "Print a link to the daemon's web page."),
    "cancel": CommandEntry("malletrain.cli.jobs", "cancel", "End jobs for good."),
    "hold": CommandEntry("malletrain.cli.jobs", "hold", "Pause jobs."),
    "release": CommandEntry("malletrain.cli.jobs", "release", "Resume paused jobs."),
    "events": CommandEntry("malletrain.cli.jobs", "events", "Print what happened."),
    "logs": CommandEntry("malletrain.cli.logs", "logs", "Print what a job's workers have printed."),
    "wait": CommandEntry("malletrain.cli.jobs", "wait", "Wait until jobs are over."),
    "explain": CommandEntry("malletrain.cli.jobs", "explain", "Say why a job has its nodes, or a node its pilot."),
    "profile": CommandEntry("malletrain.cli.profile", "profile", "Show how a job scales, and what is measured next."),
    "report": CommandEntry("malletrain.cli.jobs", "report", "Show node hours by account and user."),
    "promise": CommandEntry(
        "malletrain.cli.promise", "promise", "Show the promise to the main queue, its cost and how it was kept."
    ),
    "observed": CommandEntry("malletrain.cli.admin.observed", "observed", "Report what --observe found.", "daemon"),
    "drain": CommandEntry("malletrain.cli.jobs", "drain", "Keep pilots off nodes until a time (operators)."),
    "ban": CommandEntry("malletrain.cli.admin.bans", "ban", "Refuse a user, and end the user's jobs (operators)."),
    "unban": CommandEntry("malletrain.cli.admin.bans", "unban", "Admit a user again (operators)."),
    "stop": CommandEntry("malletrain.cli.jobs", "stop", "Cancel every pilot; works without the daemon."),
    "snapshot": CommandEntry(
        "malletrain.cli.admin.site", "snapshot", "Print the cluster as MalleTrain sees it (JSON)."
    ),
    "setup": CommandEntry("malletrain.cli.admin.setup", "setup", "Set Slurm up for harvesting, or undo that."),
    "doctor": CommandEntry("malletrain.cli.admin.site", "doctor", "Check a site, with a remedy for each fault."),
    "init": CommandEntry("malletrain.cli.scripts", "init", "Propose the changes that make a script malleable."),
    "check": CommandEntry(
        "malletrain.cli.scripts", "check", "Check that a script trains correctly when it is resized.", "check"
    ),
    "plan": CommandEntry("malletrain.cli.sizing", "plan", "Solve one sizing problem.", "sizing"),
    "fit": CommandEntry("malletrain.cli.sizing", "fit", "Fit a scalability curve to samples.", "sizing"),
    "study": CommandEntry(
        "malletrain.cli.study", "study", "Search with Optuna; each trial is a malleable job.", "study"
    ),
    "score": CommandEntry("malletrain.cli.score", "score", "Say what a daemon's journal was worth.", "replay"),
    "replay": CommandEntry(
        "malletrain.cli.replay", "replay", "What would idle nodes have trained? From your own log.", "replay"
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, and listed without being imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands that this installation holds, in the order of `COMMANDS`."""
        return [name for name, entry in COMMANDS.items() if importlib.util.find_spec(entry.module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now.

        Raises:
            click.UsageError: a package that it needs is not installed; names the extra to install.
        """
        entry = COMMANDS.get(cmd_name)
        if entry is None or importlib.util.find_spec(entry.module) is None:
            return None
        try:
            command = getattr(importlib.import_module(entry.module), entry.attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "malletrain":
                raise
            remedy = pip_install(entry.extra or "daemon")
            raise click.UsageError(f"{cmd_name} needs the package {error.name}: {remedy}") from error
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}:{entry.attribute} is no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with the nearest command named when there is none of that name."""
        import difflib

        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"did you mean {near[0]}?" if near else "see malletrain --help"
            raise click.UsageError(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the summaries above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Example:  malletrain status        malletrain COMMAND --help",
)
@click.version_option(__version__, prog_name="malletrain")
def cli() -> None:
    """Train PyTorch jobs on a supercomputer's transiently idle nodes.

    Submit with mtbatch. The daemon is found by MALLETRAIN_URL, ~/.config/malletrain/client.toml,
    /etc/malletrain/client.toml, or what your own `malletraind --user` wrote.
    """


def main(argv: list[str] | None = None) -> NoReturn:
    """The entry point."""
    run(cli, "malletrain", argv)


def run(command: click.Command, name: str, argv: list[str] | None = None) -> NoReturn:
    """Run a click command as a program: one line on stderr for each fault, exit status 0, 1 or 2."""
    try:
        command(argv, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        click.echo(f"{name}: {one_line(error.format_message())}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`| head`) has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # An error that is meant for the reader carries its exit status; anything else is a bug: show its trace.
        status = getattr(error, "exit_status", None)
        if not isinstance(status, int):
            raise
        # One line a fault: an error may name several at once.
        for fault in str(error).splitlines() or [type(error).__name__]:
            click.echo(f"{name}: {one_line(fault)}", err=True)
        sys.exit(status)
    sys.exit(0)


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())
