"""`malletrain ban` and `malletrain unban`: users whom the daemon refuses. Runs on the base wheel."""

import click

from malletrain.cli.common_options import as_json
from malletrain.cli.jobs import say_json
from malletrain.cli.render import printable
from malletrain.wire.daemon import connect


@click.command(epilog="Example:  malletrain ban mallory --reason 'ticket 4711'")
@click.argument("user", required=False)
@click.option("--reason", help="Why; the user sees it.")
@as_json
def ban(user: str | None, reason: str | None, as_json: bool) -> None:
    """Refuse USER (a name or id) and end its jobs; without USER, list who is refused.

    For operators, who cannot be banned.
    """
    daemon = connect()
    if user is not None:
        if not reason:
            raise click.UsageError("give --reason: the user sees it, and the journal keeps it")
        daemon.ban(user, reason)
        click.echo(f"{user} is refused; the user's jobs end. To end the ban: malletrain unban {user}")
    elif reason:
        raise click.UsageError("--reason needs a USER")
    else:
        rows = daemon.bans()
        if as_json:
            say_json(rows)
        else:
            for row in rows:
                click.echo(printable(f"{row.get('user')} ({row.get('uid')}): {row.get('reason')}"))
            if not rows:
                click.echo("no user is banned")


@click.command(epilog="Example:  malletrain unban mallory")
@click.argument("user")
def unban(user: str) -> None:
    """Admit USER again. For operators."""
    connect().unban(user)
    click.echo(f"{user} is admitted")
