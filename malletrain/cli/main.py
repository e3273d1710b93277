"""`malletrain`: one command with many below it, each loaded only when it is asked for."""

import importlib
import os
import sys
from dataclasses import dataclass
from typing import NoReturn

import click

from malletrain import __version__, pip_install


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command of a module of `malletrain.cli` that is not loaded yet: what the list says, which extra it needs."""

    module: str
    summary: str
    extra: str = "daemon"


COMMANDS = {
    "status": CommandEntry("jobs", "Show the cluster and every malleable job, or one in full."),
    "top": CommandEntry("top", "Watch the cluster live."),
    "web": CommandEntry("jobs", "Print a link to the daemon's web page."),
    "cancel": CommandEntry("jobs", "End jobs for good."),
    "hold": CommandEntry("jobs", "Pause jobs."),
    "release": CommandEntry("jobs", "Resume paused jobs."),
    "events": CommandEntry("jobs", "Print what happened."),
    "logs": CommandEntry("logs", "Print what a job's workers have printed."),
    "wait": CommandEntry("jobs", "Wait until jobs are over."),
    "explain": CommandEntry("jobs", "Say why a job has its nodes, or a node its pilot."),
    "profile": CommandEntry("jobs", "Show how a job scales, and what is measured next."),
    "report": CommandEntry("jobs", "Show node hours by account and user."),
    "promise": CommandEntry("promise", "Show the promise to the main queue, its cost and how it was kept."),
    "observed": CommandEntry("admin.observed", "Report what --observe found."),
    "drain": CommandEntry("admin.operators", "Keep pilots off nodes until a time (operators)."),
    "ban": CommandEntry("admin.operators", "Refuse a user, and end the user's jobs (operators)."),
    "unban": CommandEntry("admin.operators", "Admit a user again (operators)."),
    "stop": CommandEntry("admin.operators", "Cancel every pilot; works without the daemon."),
    "snapshot": CommandEntry("admin.site", "Print the cluster as MalleTrain sees it (JSON)."),
    "setup": CommandEntry("admin.setup", "Set Slurm up for harvesting, or undo that."),
    "doctor": CommandEntry("admin.site", "Check a site, with a remedy for each fault."),
    "init": CommandEntry("scripts", "Propose the changes that make a script malleable."),
    "check": CommandEntry("scripts", "Check that a script trains correctly when it is resized.", "check"),
    "plan": CommandEntry("sizing", "Solve one sizing problem.", "sizing"),
    "fit": CommandEntry("sizing", "Fit a scalability curve to samples.", "sizing"),
    "study": CommandEntry("study", "Search with Optuna; each trial is a malleable job.", "study"),
    "score": CommandEntry("admin.observed", "Say what a daemon's journal was worth.", "replay"),
    "replay": CommandEntry("replay", "What would idle nodes have trained? From your own log.", "replay"),
}

#: Options that earlier releases had, by command, and what to use instead.
GONE_OPTIONS = {
    "stop --me": "scancel --me --partition=PARTITION ends your own pilots",
    "score --waterfall": "malletrain replay --report shows where idle time goes",
    "replay --compare": "compare the answer.json of two reports: both have the same keys",
    "replay --schedule": "--scheduler models what main jobs wait",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, and listed without being imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now.
        Raises click.UsageError: a package that it needs is not installed; names the extra to install."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            command: click.Command = getattr(importlib.import_module(f"malletrain.cli.{entry.module}"), cmd_name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "malletrain":
                raise
            remedy = pip_install(entry.extra)
            raise click.UsageError(f"{cmd_name} needs the package {error.name}: {remedy}") from error
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with the nearest command named when there is none of that name."""
        import difflib  # here: it takes 8 ms

        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"did you mean {near[0]}?" if near else "see malletrain --help"
            raise click.UsageError(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the summaries above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
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
        click.echo(f"{name}: {one_line(_gone_option(error) or error.format_message())}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # the reader (`| head`) has gone; Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # An error that is meant for the reader carries its exit status; anything else is a bug: show its trace.
        status = getattr(error, "exit_status", None)
        if not isinstance(status, int):
            raise
        for fault in str(error).splitlines() or [type(error).__name__]:
            click.echo(f"{name}: {one_line(fault)}", err=True)
        sys.exit(status)
    sys.exit(0)


def _gone_option(error: click.ClickException) -> str:
    """What to use in place of an option that an earlier release had; "" of any other error."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    command, option = error.ctx.info_name, error.option_name
    instead = GONE_OPTIONS.get(f"{command} {option}", "")
    if command == "replay" and not instead:
        from malletrain.cli.replayed_site import ReplaySettings

        key = option.removeprefix("--").replace("-", "_")
        instead = f"set {key} in [replay] of the file of --config" if key in ReplaySettings.model_fields else ""
    return instead and f"{command} {option} is gone: {instead}"


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())
